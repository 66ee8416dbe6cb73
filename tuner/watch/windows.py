"""When a watch may tune by itself: hours of the day, and whether jobs run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SILENT_S = 10.0
"""A job writes its status each second; one that has not for so long has ended."""
_MINUTES_A_DAY = 24 * 60
_HOURS = re.compile(r"([0-2]?\d):([0-5]\d)-([0-2]?\d):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of each day in minutes since midnight; one that begins after it ends goes on past midnight."""

    first: int
    last: int

    @staticmethod
    def of(text: str) -> Hours:
        """Return what a text such as 22:00-06:00 says; ValueError for another one."""
        match = _HOURS.fullmatch(text)
        if match is None:
            raise ValueError("hours must be written like 22:00-06:00")
        numbers = [int(group) for group in match.groups()]
        first, last = 60 * numbers[0] + numbers[1], 60 * numbers[2] + numbers[3]
        if max(first, last) > _MINUTES_A_DAY or first == last:
            raise ValueError("hours must lie between 00:00 and 24:00, and not be empty")
        return Hours(first, last)

    def contains(self, minute: int) -> bool:
        """Return whether the minute of a day is in it."""
        if self.first < self.last:
            return self.first <= minute < self.last
        return minute >= self.first or minute < self.last


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """What the operator of a fabric allows.

    hours:        in the local time of this machine; none allow nothing
    is_exclusive: whether no job may run meanwhile
    idle_share:   of the ranks of the fabric on which no job may run
    """

    hours: tuple[Hours, ...]
    is_exclusive: bool = True
    idle_share: float = 0.0

    def closed(self, now_s: float, busy_share: float) -> str | None:
        """Return why nothing may be tuned now, None if it may.

        busy_share: of the ranks of the fabric on which jobs run
        """
        local = time.localtime(now_s)
        if not any(each.contains(60 * local.tm_hour + local.tm_min) for each in self.hours):
            return "outside of the hours that are allowed"
        if self.is_exclusive and busy_share > 0:
            return "a job runs"
        if 1 - busy_share < self.idle_share:
            return f"jobs run on {busy_share:.0%} of the ranks"
        return None


def busy_share(jobs: Sequence[Path], ranks: int, now_s: float) -> float:
    """Return the part of `ranks` that jobs have whose status files were written lately; together no more than 1."""
    return min(1.0, sum(_ranks_of(path, ranks) for path in jobs if _is_running(path, now_s)) / ranks)


def _is_running(path: Path, now_s: float) -> bool:
    try:
        return now_s - path.stat().st_mtime < _SILENT_S
    except OSError:  # a job that has not begun
        return False


def _ranks_of(path: Path, otherwise: int) -> int:
    """Return the number of ranks that a status names; a job that does not tell is taken to have all of them."""
    try:
        return int(json.loads(path.read_text())["ranks"])
    except (OSError, ValueError, KeyError, TypeError):
        return otherwise
