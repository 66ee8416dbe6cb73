"""What jobs say of the programs that they run: whether a new table serves them worse than the one before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_CALLS = 10
"""Calls of a program at a size without which it is not judged."""
MIN_SLOWDOWN = 1.05
_DEVIATIONS = 4.0
"""Standard errors between two means: less than one in ten thousand by chance, for means of ten calls and more."""
_MOST_BYTES = 1 << 24

Key = tuple[str, str, int]
"""Digest of a program, collective, size in bytes."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Calls of one kind: how many, the sum of their seconds, and the sum of the squares of these."""

    calls: int = 0
    seconds: float = 0.0
    squares: float = 0.0

    def since(self, before: CallTimes) -> CallTimes:
        """Return the calls after `before`; all of them where the job began anew."""
        if before.calls > self.calls:
            return self
        return CallTimes(self.calls - before.calls, self.seconds - before.seconds, self.squares - before.squares)

    def __add__(self, other: CallTimes) -> CallTimes:
        return CallTimes(self.calls + other.calls, self.seconds + other.seconds, self.squares + other.squares)

    @property
    def mean_s(self) -> float:
        return self.seconds / self.calls

    @property
    def variance_of_mean(self) -> float:
        """Of the mean; infinite for less than two calls."""
        if self.calls < 2:
            return math.inf
        return max(self.squares - self.calls * self.mean_s**2, 0.0) / (self.calls - 1) / self.calls


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A size at which jobs take longer with the new program than with the former one. ratio: of the means"""

    collective: str
    size_bytes: int
    former: CallTimes
    present: CallTimes

    @property
    def ratio(self) -> float:
        return self.present.mean_s / self.former.mean_s


Snapshot = Mapping[Key, CallTimes]


def read_jobs(paths: Sequence[Path]) -> Snapshot:
    """Return the times in the status files of jobs, added up; a file that is not there or no status counts for none."""
    times: dict[Key, CallTimes] = {}
    for path in paths:
        for key, calls in _of_file(path):
            times[key] = times.get(key, CallTimes()) + calls
    return times


def slowdowns(changed: Snapshot, published: Snapshot, now: Snapshot) -> list[Slowdown]:
    """Return where jobs run a program since the publication beyond doubt slower than another before it.

    changed, published, now: what jobs had said when the fabric changed, when the table was published, and now. The
    present programs are compared with what ran between the first two: before, the fabric was another.
    """
    former = {key: times.since(changed.get(key, CallTimes())) for key, times in published.items()}
    present = {key: times.since(published.get(key, CallTimes())) for key, times in now.items()}
    rows = []
    for (digest, collective, size), times in sorted(present.items()):
        for (other, of_collective, of_size), before in sorted(former.items()):
            is_rival = other != digest and (of_collective, of_size) == (collective, size)
            if is_rival and _is_slower(before, times):
                rows.append(Slowdown(collective, size, before, times))
    return rows


def _is_slower(former: CallTimes, present: CallTimes) -> bool:
    if min(former.calls, present.calls) < MIN_CALLS:
        return False
    error_s = math.sqrt(former.variance_of_mean + present.variance_of_mean)
    difference_s = present.mean_s - former.mean_s
    return present.mean_s > MIN_SLOWDOWN * former.mean_s and difference_s > _DEVIATIONS * error_s


def _of_file(path: Path) -> Iterator[tuple[Key, CallTimes]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return
        rows: list[dict[str, Any]] = json.loads(path.read_text())["sizes"]
        for row in rows:
            key = str(row["digest"]), str(row["collective"]), int(row["size_bytes"])
            yield key, CallTimes(int(row["calls"]), float(row["seconds"]), float(row["seconds_squared"]))
    except (OSError, ValueError, KeyError, TypeError):  # a job that has not begun, or whose file is no status
        return
