"""Runs the first two build stages, synthesize and verify.

A caller that wants to measure stages passes an `Observer`: each of the stages `synthesis`, `verification`, `lowering`
and `check` runs inside a context manager that the observer returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chorale.synth.build.request import ScheduleRequest
from chorale.synth.executor.base import Executor, Progress, SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.schedule.codec import to_parquet
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.transforms import pipeline_split
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

if TYPE_CHECKING:
    from chorale.synth.programs.program import AnyProgram, Program

Observer = Callable[[str], AbstractContextManager[object]]
"""Called with a stage's name; returns a context manager in which the stage runs."""


def unobserved(_stage: str) -> AbstractContextManager[object]:
    """An Observer that does nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class BuiltSchedule:
    """A verified schedule and its Parquet file."""

    verified: VerifiedSchedule
    file: bytes


@dataclass(frozen=True, slots=True, eq=False)
class LoweredProgram:
    """A checked program: as lowered, as text in its target's format, and as read back from that text."""

    program: Program
    text: str
    read_back: AnyProgram


def build_schedule(request: ScheduleRequest, observe: Observer = unobserved) -> BuiltSchedule:
    """Synthesize and verify the schedule that `request` describes. Raises the errors of both stages."""
    verified = verified_schedule(request, SerialExecutor(), None, observe)
    return BuiltSchedule(verified, to_parquet(verified.schedule))


def verified_schedule(
    request: ScheduleRequest, executor: Executor, progress: Progress | None = None, observe: Observer = unobserved
) -> VerifiedSchedule:
    """Synthesize and verify the schedule of `request`, in symmetric form if the network is large and symmetric."""
    with observe("synthesis"):
        schedule = synthesize_unverified(
            request.method, request.topology, request.collective, request.options, executor, progress
        )
        if request.depth > 1:
            schedule = pipeline_split(schedule.expand(), request.depth)
    return verify_schedule(schedule, request.options.verified_bytes, observe)


def verify_schedule(
    schedule: AnySchedule, size_bytes: int | None = None, observe: Observer = unobserved
) -> VerifiedSchedule:
    """Verify an existing schedule, for example one from a file. Raises CheckFailed if it is wrong."""
    with observe("verification"):
        return verify(schedule, size_bytes)
