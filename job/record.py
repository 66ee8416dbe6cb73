"""Records which collectives a job calls, for which groups and sizes, how often, and how long they take.

A record file is JSON: {"format": "chorale-record/1", "ranks", "calls": [{"collective", "dtype", "group" (null: all
ranks, or a list of ranks), "root" (null or a position), "size_bytes" (of the whole vector), "calls", "seconds"}…]}.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from chorale.job.files import read_file
from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import InvalidInput, fault_in

FORMAT = "chorale-record/1"
MAX_BYTES, MAX_RANKS = 2**26, 2**20
VARIABLE = "CHORALE_RECORD"


@dataclass(frozen=True, slots=True)
class CallKey:
    """Identifies a kind of call: calls with equal keys are counted together.

    group:      ranks of the job in the group's order; None for all ranks of the job in order
    root:       position of the root in the group; None for collectives without a root
    size_bytes: size of the whole vector, for example the output of an allgather or the input of a reduce-scatter
    """

    collective: str
    dtype: str
    group: tuple[int, ...] | None
    root: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CallCount:
    """The number of calls of one kind, and their total time in seconds as one rank measured it."""

    calls: int
    seconds: float

    def __add__(self, other: CallCount) -> CallCount:
        return CallCount(self.calls + other.calls, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the collective calls of a job with `ranks` ranks: number and time of each kind of call."""

    ranks: int
    calls: Mapping[CallKey, CallCount]

    @property
    def seconds(self) -> float:
        return math.fsum(count.seconds for count in self.calls.values())


def merge(records: Sequence[Record]) -> Record:
    """Return the sum of `records` (at least one). Raises InvalidInput if their jobs had different rank counts."""
    ranks = sorted({record.ranks for record in records})
    if len(ranks) != 1:
        rule = "the records are of jobs with different numbers of ranks: {}"
        raise InvalidInput(rule, ", ".join(map(str, ranks)), "use them one by one")
    calls: dict[CallKey, CallCount] = {}
    for record in records:
        for key, count in record.calls.items():
            calls[key] = calls[key] + count if key in calls else count
    return Record(ranks[0], calls)


def record_bytes(record: Record) -> bytes:
    """Return the file content for `record`, with the calls that took the most time first."""
    order = sorted(record.calls.items(), key=lambda item: (-item[1].seconds, repr(item[0])))
    calls = [{**asdict(key), **asdict(count)} for key, count in order]
    lines = ",\n".join(json.dumps(call) for call in calls)
    return f'{{"format": "{FORMAT}", "ranks": {record.ranks}, "calls": [\n{lines}\n]}}\n'.encode()


def read_record(path: Path) -> Record:
    """Return the record in the file at `path`. Raises InvalidInput if it cannot be read or is not a record."""
    return parse_record(read_file(path, MAX_BYTES))


def parse_record(data: bytes) -> Record:
    """Return the record in `data`, a file's content. Raises InvalidInput if it is not a record."""
    require_small_json(data, "a record")
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        ranks = require_ranks(_whole(document["ranks"], 1))
        parts = [Record(ranks, {_key(call, ranks): _count(call)}) for call in document["calls"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        rule = f"a record must have the {FORMAT} format"
        raise InvalidInput(rule, fault_in(error), "record the job again: chorale record") from error
    return merge([Record(ranks, {}), *parts])


def require_ranks(ranks: int) -> int:
    """Return `ranks`. Raises ValueError if it exceeds MAX_RANKS."""
    if ranks > MAX_RANKS:
        raise ValueError(f"a job of {ranks} ranks; at most {MAX_RANKS} are allowed")
    return ranks


def _key(call: Mapping[str, Any], ranks: int) -> CallKey:
    group = None if call["group"] is None else tuple(_whole(rank, 0) for rank in call["group"])
    if group is not None and (len(set(group)) != len(group) or not group or max(group) >= ranks):
        raise ValueError(f"not a group of a job with {ranks} ranks: {group}")
    root = None if call["root"] is None else _whole(call["root"], 0)
    return CallKey(str(call["collective"]), str(call["dtype"]), group, root, _whole(call["size_bytes"], 0))


def _count(call: Mapping[str, Any]) -> CallCount:
    seconds = float(call["seconds"])
    if not 0 <= seconds < math.inf:
        raise ValueError(f"no time: {seconds}")
    return CallCount(_whole(call["calls"], 1), seconds)


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"not a whole number of at least {least}: {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class SizeCluster:
    """A range of sizes that are tuned together.

    size_bytes: size that represents the range; a merged cluster takes it from the part with more time
    first_bytes, last_bytes: smallest and largest size in the range
    seconds:    time spent at all sizes in the range
    """

    size_bytes: int
    first_bytes: int
    last_bytes: int
    seconds: float


def size_clusters(seconds: Mapping[int, float], most: int) -> list[SizeCluster]:
    """Group all sizes above 0 (in bytes) into at most `most` >= 1 clusters; return the clusters sorted by size.

    seconds: time spent at each size

    At first, each size is a cluster. Until at most `most` clusters remain, the two neighbours with the smallest product
    of distance (in octaves) and time (of the cluster with less time) are merged. This rule tends to keep two sizes
    separate if jobs spend much time at both.
    """
    clusters = [SizeCluster(size, size, size, spent) for size, spent in sorted(seconds.items()) if size > 0]
    while len(clusters) > most:
        losses = [
            min(one.seconds, other.seconds) * math.log2(other.size_bytes / one.size_bytes)
            for one, other in pairwise(clusters)
        ]
        index = losses.index(min(losses))
        one, other = clusters[index : index + 2]
        size = (other if other.seconds >= one.seconds else one).size_bytes
        joined = SizeCluster(size, one.first_bytes, other.last_bytes, one.seconds + other.seconds)
        clusters[index : index + 2] = [joined]
    return clusters


def size_weights(clusters: Iterable[SizeCluster]) -> list[float]:
    """Return each cluster's share of the total time; equal shares if no time was spent."""
    spent = [cluster.seconds for cluster in clusters]
    total = math.fsum(spent)
    return [1 / len(spent) if total == 0 else part / total for part in spent]


def is_stream(path: Path) -> bool:
    """Return whether `path` is a device, a pipe or a link such as /dev/stdout, which cannot be replaced by a file."""
    return path.exists() and (not path.is_file() or path.parent == Path("/dev"))


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file at `path` with a new file that has this `content`. Devices and pipes are written to directly.

    Raises OSError if the file cannot be written.
    """
    if is_stream(path):
        path.write_bytes(content)
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # random, so that nobody can place a link there
    try:
        with draft.open("xb") as stream:
            stream.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class JobRecorder:
    """Counts one rank's calls in a job with `ranks` ranks. Thread-safe."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._calls: dict[CallKey, CallCount] = {}

    def add(
        self, collective: str, dtype: str, group: Sequence[int], root: int | None, size_bytes: int, seconds: float
    ) -> None:
        """Count a call; see `CallKey`. `group` lists the job's ranks in the group's order."""
        everyone = tuple(group) == tuple(range(self._ranks))
        key = CallKey(collective, dtype, None if everyone else tuple(group), root, size_bytes)
        with self._lock:
            self._calls[key] = self._calls.get(key, CallCount(0, 0.0)) + CallCount(1, seconds)

    def record(self) -> Record:
        with self._lock:
            return Record(self._ranks, dict(self._calls))

    def write(self, path: Path) -> None:
        """Write the record to a file, completely or not at all."""
        write_whole(path, record_bytes(self.record()))


class CallClock:
    """Measures how long one group's calls take. Because the calls run one after another, a call's time only starts
    when all earlier calls have ended.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_end_s = 0.0

    def start(self) -> Callable[[], float]:
        """Start timing a call. Return a function to be called when the call ends; it returns the call's seconds."""
        called_s = self._clock()

        def end() -> float:
            now_s = self._clock()
            with self._lock:
                began_s, self._last_end_s = max(called_s, self._last_end_s), now_s
            return now_s - began_s

        return end


_recorders: dict[tuple[str, int], JobRecorder] = {}


def recorder_of(rank: int, ranks: int, environment: Mapping[str, str] = os.environ) -> JobRecorder | None:
    """Return this process's recorder (always the same object), or None unless CHORALE_RECORD is set and `rank` is 0.

    The record is written when the process ends. It does not contain calls of groups to which rank 0 does not belong.
    """
    file = environment.get(VARIABLE)
    if not file or rank != 0:
        return None
    if (file, ranks) not in _recorders:
        _recorders[file, ranks] = JobRecorder(ranks)
        atexit.register(_recorders[file, ranks].write, Path(file))
    return _recorders[file, ranks]
