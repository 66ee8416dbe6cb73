"""Writes down what this process calls, where CHORALE_RECORD names a file: rank 0 of the job writes it at the end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

from chorale.job.record import CallCount, CallKey, Record, record_bytes
from chorale.job.whole_files import write_whole

VARIABLE = "CHORALE_RECORD"


class JobRecorder:
    """What one rank of a job with so many ranks calls. Threads may add at the same time."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._calls: dict[CallKey, CallCount] = {}

    def add(
        self, collective: str, dtype: str, group: Sequence[int], root: int | None, size_bytes: int, seconds: float
    ) -> None:
        """Count a call; see `CallKey`. `group` are the ranks of the job in the group's order."""
        everyone = tuple(group) == tuple(range(self._ranks))
        key = CallKey(collective, dtype, None if everyone else tuple(group), root, size_bytes)
        with self._lock:
            self._calls[key] = self._calls.get(key, CallCount(0, 0.0)) + CallCount(1, seconds)

    def record(self) -> Record:
        """Return what was called so far."""
        with self._lock:
            return Record(self._ranks, dict(self._calls))

    def write(self, path: Path) -> None:
        """Write the file, which is there whole or not at all."""
        write_whole(path, record_bytes(self.record()))


class CallClock:
    """Seconds that calls of one group take. Calls of a group follow one another, so that a call that was made while
    others were under way counts from their end."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_end_s = 0.0

    def start(self) -> Callable[[], float]:
        """Begin a call; what is returned ends it, and gives its seconds."""
        called_s = self._clock()

        def end() -> float:
            now_s = self._clock()
            with self._lock:
                began_s, self._last_end_s = max(called_s, self._last_end_s), now_s
            return now_s - began_s

        return end


_recorders: dict[tuple[str, int], JobRecorder] = {}


def recorder_of(rank: int, ranks: int, environment: Mapping[str, str] = os.environ) -> JobRecorder | None:
    """Return the recorder of this process, the same at each call; None without CHORALE_RECORD, and on ranks but 0.

    Its file is written when the process ends. Groups that rank 0 is not part of are not seen.
    """
    file = environment.get(VARIABLE)
    if not file or rank != 0:
        return None
    if (file, ranks) not in _recorders:
        _recorders[file, ranks] = JobRecorder(ranks)
        atexit.register(_recorders[file, ranks].write, Path(file))
    return _recorders[file, ranks]
