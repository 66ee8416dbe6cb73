"""Reads and writes the journal of a launch: an append-only file of records with a single writer.

The first line describes the launch and its conditions; the other lines are records. The last key of each line, `crc32`,
is a checksum of the bytes before it and reveals changes by a faulty disk or an editor. Lines written by earlier
versions have no checksum.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from chorale.runners.measurement.private_files import PRIVATE_FILE
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import content_id
from chorale.synth.redaction import redacted_document
from chorale.tuner.files.home import Home
from chorale.tuner.trials.records import FinalComparison, TrialRecord

if TYPE_CHECKING:
    from chorale.synth.topology.topology import Topology
    from chorale.tuner.config.campaign import Campaign

Write = Callable[[int, bytes | memoryview], int]
"""Writes bytes to a file descriptor and returns their number, like `os.write`. Tests inject faults here."""

RECOVERY_S = 6.0
"""Seconds for which a failed write is retried before the launch ends, because a full disk may recover."""
MAX_JOURNAL_BYTES = 2**28
_REMEMBERED_BYTES = 64
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EFBIG)
"""Error numbers of failures that may pass: the disk or file server may soon accept data again."""

_log = logging.getLogger("chorale.store")
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}$')
_CHECKSUM_KEY = b'"crc32":'


class JournalLost(Unavailable):
    """Raised if another process writes into this launch's journal, so that this process must stop recording."""

    def __init__(self, path: Path, what: str) -> None:
        way_out = "let the other launch end, then see `chorale tune --resume`"
        super().__init__("the journal {}", f"{path} {what}", way_out)


class Journal:
    """Appends lines to a file; a line is on disk (fsync) when `append` returns. Threads may share a journal.

    A line is written completely or not at all. After a failed write the file is truncated to its previous length, and
    opening the file drops an incomplete last line, which a crash may have left. There is only one writer, because the
    file is locked while it is open. Some file servers ignore locks, and a lock does not stop a user from replacing the
    file. Every `append` therefore checks that the path still refers to the opened file and nobody else wrote to it.
    """

    def __init__(self, path: Path, write: Write = os.write, patience_s: float = 0.0) -> None:
        """Open or create the file. Raises Unavailable if another process has it open for longer than `patience_s`."""
        self.path = path
        self._write = write
        self._turn = threading.RLock()  # the thread that uploads to MLflow must not read a half-written line
        self._descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        deadline_s = time.monotonic() + patience_s
        try:
            while True:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the file is closed
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline_s:
                        way_out = "wait for the other process, or start a new launch without --resume"
                        value = f"another process is working in {path.parent}"
                        raise Unavailable("another process is running this launch: {}", value, way_out) from None
                except OSError as error:
                    way_out = "point CHORALE_HOME at a file system that has locks"
                    value = f"{path}: {error.strerror}"
                    raise Unavailable("the journal cannot be locked: {}", value, way_out) from error
                time.sleep(0.05)
            self.torn_bytes = drop_torn_end(path)
            self._size_bytes = os.fstat(self._descriptor).st_size
            self._end = self._last_bytes(self._size_bytes)
        except BaseException:
            self.close()
            raise

    def lines(self) -> list[bytes]:
        return read_journal(self.path).split(b"\n")[:-1]

    def append(self, line: bytes) -> None:
        """Add one line. Raises OSError and leaves the file unchanged if the line cannot be written completely.

        Raises JournalLost if another process has written to the file or replaced it.
        """
        if b"\n" in line:
            raise ValueError("a journal line must not contain line breaks")
        with self._turn:
            self.require_ours()
            content = line + b"\n"
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[self._write(self._descriptor, rest) :]
                os.fsync(self._descriptor)
            except BaseException:
                os.ftruncate(self._descriptor, self._size_bytes)
                raise
            self._size_bytes += len(content)
            self._end = (self._end + content)[-_REMEMBERED_BYTES:]
            self._require_named()  # raises if the file was replaced: nobody would ever read this line

    def close(self) -> None:
        """Close and unlock the file. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def require_ours(self) -> None:
        """Raise JournalLost if the file was replaced, or if its end has changed since this object's last write.

        Raises Unavailable if the file cannot be read any more, for example because its file server is gone.
        """
        with self._turn:
            try:
                opened = self._require_named()
                is_ours = opened.st_size == self._size_bytes and self._last_bytes(self._size_bytes) == self._end
            except OSError as error:
                value, way_out = f"{self.path}: {error.strerror}", "make its folder reachable, then --resume"
                raise Unavailable("the journal cannot be read: {}", value, way_out) from error
            if not is_ours:
                raise JournalLost(self.path, "has lines of another process")

    def _require_named(self) -> os.stat_result:
        """Return the status of the open file. Raises JournalLost if the path now refers to another file."""
        opened = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            raise JournalLost(self.path, "was removed") from None
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            raise JournalLost(self.path, "was replaced by another file")
        return opened

    def _last_bytes(self, size_bytes: int) -> bytes:
        start = max(0, size_bytes - _REMEMBERED_BYTES)
        return os.pread(self._descriptor, size_bytes - start, start)


def read_journal(path: Path) -> bytes:
    """Return the journal at `path`. Raises InvalidInput if it is not a regular file, is unreadable or is too large."""
    with open(_open_regular(path, os.O_RDONLY), "rb") as stream:
        content = stream.read(MAX_JOURNAL_BYTES + 1)
    if len(content) > MAX_JOURNAL_BYTES:
        rule = f"a journal must have at most {MAX_JOURNAL_BYTES // 2**20} MiB"
        raise InvalidInput(rule, path, "move it away, or start a new launch without --resume")
    return content


def _open_regular(path: Path, flags: int) -> int:
    rule, way_out = "cannot use the journal {}", "restore it, or start a new launch"
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, PRIVATE_FILE)  # so that opening a pipe does not block
    except OSError as error:
        raise InvalidInput(rule, f"{path}: {error.strerror}", way_out) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput(rule, f"{path}: no regular file", way_out)
    return descriptor


def drop_torn_end(path: Path) -> int:
    """Drop everything after the last line break of the file at `path`; return the number of bytes dropped."""
    if not path.exists():
        return 0
    content = read_journal(path)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
        _log.warning("%s ended in an unfinished line, which was dropped", path.name)
    return len(content) - whole


def patiently(write: Callable[[], object], sleep: Callable[[float], None] = time.sleep) -> None:
    """Call `write`. If the disk accepts no data, retry every second for about `RECOVERY_S` s, then raise the error."""
    for waited_s in range(int(RECOVERY_S) + 1):
        try:
            write()
            return
        except JournalLost:
            raise
        except (OSError, Unavailable) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if getattr(cause, "errno", None) not in _PASSING or waited_s >= RECOVERY_S:
                raise
            if not waited_s:
                _log.error("cannot save results: %s; trying again for %g s", error, RECOVERY_S)
        sleep(1.0)


@dataclass(frozen=True, slots=True)
class Launch:
    """The description of a launch in the first line of its journal.

    launch_id:  unique id of the launch; part of every trial id, so that no trial is recorded twice anywhere
    number:     number of the launch within its campaign, starting at 1
    conditions: settings that must not differ between trials that are compared (see `conditions_of`)
    campaign:   the resolved campaign file with which the launch began
    """

    launch_id: str
    number: int
    conditions: Mapping[str, Any]
    campaign: Mapping[str, Any]
    started_unix_s: float
    format: str = "chorale-launch/1"

    def __post_init__(self) -> None:
        """Hide passwords, which journals of earlier versions may contain."""
        object.__setattr__(self, "campaign", redacted_document(dict(self.campaign)))


launch_codec: TypeAdapter[Launch] = TypeAdapter(Launch)


def conditions_of(campaign: Campaign, topology: Topology) -> dict[str, Any]:
    """Return what comparable trials have in common: network, collective, sizes, runner, baselines, repetitions."""
    weights = {} if campaign.weights is None else {"weights": list(campaign.weights)}
    options = campaign.runner.config.conditions()
    always = {"fabric": None, "link_mbps": None, "alpha_us": 0, "link_latency_us": 0}  # options with their defaults
    if campaign.runner.runner.is_nested:
        options = {campaign.runner.kind: options}
    return {
        **weights,
        "topology": topology.id,
        "collective": campaign.collective,
        "sizes": list(campaign.sizes),
        "runner": {"kind": campaign.runner.kind, **always, **options},
        "baselines": list(campaign.baseline_names),
        "repeats": campaign.repeats,
        "objective": campaign.objective,
    }


def space_id(campaign: Campaign, conditions: Mapping[str, Any]) -> str:
    """Return a content id of the search space and the conditions. Each such id has its own Optuna study."""
    exact = {key: repr(value) for key, value in conditions.items()}
    return content_id({"dimensions": campaign.search.dimensions(), "conditions": exact})


def launch_folders(home: Home, name: str) -> list[Path]:
    """Return the folders of the launches of campaign `name`, oldest first."""
    folder = home.campaign(name)
    numbered = [path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name))


@dataclass(frozen=True, slots=True)
class WriterChange:
    """Marks where the process `writer` reopened the launch. That process wrote the lines that follow."""

    writer: str
    state: Literal["writer"] = "writer"


JournalRecord = TrialRecord | FinalComparison | WriterChange

line_codec: TypeAdapter[JournalRecord] = TypeAdapter(Annotated[JournalRecord, Field(discriminator="state")])
"""Reads and writes the lines of a journal after the first; reading checks every field."""


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A line that is not a valid record or that repeats a trial. `number` is the line number, starting at 1."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class JournalContent:
    """The parsed content of a journal. `launch` is None if the first line is damaged."""

    launch: Launch | None
    records: tuple[TrialRecord, ...]
    final: FinalComparison | None
    damaged: tuple[DamagedLine, ...]


def journal_line(record: Launch | JournalRecord) -> bytes:
    """Return the line of a launch or a record: a JSON object that ends with a checksum of the bytes before it."""
    text = launch_codec.dump_json(record) if isinstance(record, Launch) else line_codec.dump_json(record)
    body = text[:-1]
    return body + b',"crc32":"%08x"}' % zlib.crc32(body)


def parse_lines(lines: Sequence[bytes]) -> JournalContent:
    """Return the launch and the records in `lines`, and the lines that are damaged or repeat a trial."""
    launch: Launch | None = None
    damaged: list[DamagedLine] = []
    trials: dict[str, TrialRecord] = {}
    final: FinalComparison | None = None
    record: Launch | JournalRecord
    for number, line in enumerate(lines, 1):
        seal = _CHECKSUM.search(line)
        wrong_sum = seal is not None and zlib.crc32(line[: seal.start()]) != int(seal[1], 16)
        if wrong_sum or (seal is None and _CHECKSUM_KEY in line):
            damaged.append(DamagedLine(number, "changed since it was written"))
            continue
        try:
            record = launch_codec.validate_json(line) if number == 1 else line_codec.validate_json(line)
        except ValidationError:
            damaged.append(DamagedLine(number, "no record"))
            continue
        if isinstance(record, Launch):
            launch = record
        elif isinstance(record, FinalComparison):
            final = record
        elif not isinstance(record, WriterChange):
            if record.trial_id in trials:
                damaged.append(DamagedLine(number, f"trial {record.trial_id[:12]} was recorded before"))
            trials.setdefault(record.trial_id, record)
    return JournalContent(launch, tuple(trials.values()), final, tuple(damaged))


def read_content(path: Path, most_lines: int | None = None) -> JournalContent:
    """Return the content of the journal at `path`, up to line `most_lines` if given; skip an incomplete last line."""
    return parse_lines(read_journal(path).split(b"\n")[:-1][:most_lines])
