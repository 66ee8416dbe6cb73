"""Runs of verified schedules, from Python."""

from __future__ import annotations

from typing import Any

from chorale.design import Sizes, size_list, verify
from chorale.products import MeasuredRun
from chorale.runners.api.base import RunFailure, RunRequest
from chorale.runners.api.registry import runner_config
from chorale.synth.build.build import build_program
from chorale.synth.build.schedules import LoweredProgram
from chorale.synth.errors import CheckFailed
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.files.home import Home


def run(
    schedule: VerifiedSchedule | str,
    sizes: Sizes = "1MiB",
    runner: str = "local",
    *,
    repeats: int = 5,
    dtype: str = "float32",
    timeout_s: float = 300.0,
    seed: int = 0,
    **options: Any,
) -> MeasuredRun:
    """Execute a verified schedule, check every element of every result, and time it.

    Args:
        schedule: A verified schedule, or the name of a schedule file, which is verified.
        sizes: Buffer sizes in bytes, as text, a number or several.
        runner: What executes it: local, mpi, oneccl, msccl, simulated or recorded.
        repeats: Measured repetitions of each size.
        dtype: Element type.
        timeout_s: Seconds after which a run counts as hung.
        seed: Fixes the data.
        **options: Of the runner, as `chorale tune --schema` lists them for its kind, such as link_mbps.

    Raises:
        InvalidInput: What was given does not fit together.
        CheckFailed: Nothing was measured; it says why.

    >>> from chorale.design import synthesize
    >>> measured = run(synthesize("ring:4", method="ring"), "1MiB", "simulated", link_mbps=1000)
    >>> round(measured.times[2**20] * 1e3, 2)
    6.29
    """
    verified = verify(schedule) if isinstance(schedule, str) else schedule
    config = runner_config(runner, options)
    built: LoweredProgram = build_program(verified, config.lowering())
    network = verified.schedule.topology
    request = RunRequest(network, {"program": built.program}, size_list(sizes), repeats, 1, timeout_s, dtype, seed)
    running = config.create(Home.from_environment().root)
    try:
        outcome = running.submit(request)
    finally:
        running.close()
    if isinstance(outcome, RunFailure):
        raise CheckFailed(
            f"a run must end with a measurement ({outcome.kind})", outcome.message, "see `chorale doctor`"
        )
    return MeasuredRun.of(outcome)
