"""Verified schedules measured beside one another on a runner, and beside what the links allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.runners.api.base import Measurement, RunFailure, RunRequest
from chorale.runners.api.registry import runner_config
from chorale.runners.measurement.driver import LinkLimit, link_limit
from chorale.synth.build.build import build_program
from chorale.synth.errors import CheckFailed
from chorale.synth.verify.verified import VerifiedSchedule


@dataclass(frozen=True, slots=True)
class MeasuredContest:
    """What was measured, and the least time that the links allow, where their rate is known."""

    measurement: Measurement
    limit: LinkLimit | None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each size: microseconds of each schedule, the fastest, and the least that links allow."""
        rows = []
        names = list(self.measurement.results)
        for index, first in enumerate(self.measurement.results[names[0]]):
            times_us = {name: self.measurement.results[name][index].median_s * 1e6 for name in names}
            least_us = None if self.limit is None else self.limit.least_s(first.size_bytes) * 1e6
            best = min(times_us, key=times_us.__getitem__)
            rows.append({"size_bytes": first.size_bytes, "times_us": times_us, "best": best, "bound_us": least_us})
        return rows


def contest(
    schedules: Mapping[str, VerifiedSchedule],
    runner: str,
    sizes_bytes: Sequence[int],
    home: Path,
    *,
    options: Mapping[str, Any] | None = None,
    repeats: int = 5,
    timeout_s: float = 60.0,
) -> MeasuredContest:
    """Measure all `schedules`, of one network and collective, by turns on `runner`.

    CheckFailed with the reason where nothing was measured; what the runner raises where it is not available.
    """
    config = runner_config(runner, options)
    programs = {name: build_program(schedule, config.lowering()).program for name, schedule in schedules.items()}
    schedule = next(iter(schedules.values())).schedule
    request = RunRequest(schedule.topology, programs, tuple(sizes_bytes), repeats, 1, timeout_s, "float32", 0)
    running = config.create(home)
    try:
        outcome = running.submit(request)
    finally:
        running.close()
    if isinstance(outcome, RunFailure):
        raise CheckFailed(f"the {runner} runner must measure ({outcome.kind})", outcome.message, "see `chorale doctor`")
    limit = link_limit(schedule.topology, schedule.collective, outcome.environment)
    return MeasuredContest(outcome, limit)
