"""Seconds per stage of a command, and the memory it took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stopwatch:
    """A stopwatch with one total per named stage, in order of first use."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to stage `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def report(self, outside_total: tuple[str, ...] = ()) -> dict[str, float]:
        """Return {"total": …, one key per stage}; stages in `outside_total` do not count in the total."""
        total = sum(value for name, value in self.seconds.items() if name not in outside_total)
        return {"total": total, **self.seconds}


def peak_memory_bytes() -> int:
    """Return the largest resident size that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
