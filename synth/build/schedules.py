"""The first two stages: synthesize and verify.

No stage reads a clock: a caller that measures stages passes an `Observer`, whose context encloses each of the stages
`synthesis`, `verification`, `lowering` and `check`.
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
    from chorale.synth.programs.postconditions import AnyProgram
    from chorale.synth.programs.program import Program

Observer = Callable[[str], AbstractContextManager[object]]
"""Called with the name of a stage; the context that it returns is held while the stage runs."""


def unobserved(_stage: str) -> AbstractContextManager[object]:
    """Observe nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class BuiltSchedule:
    """A verified schedule, and the same as a Parquet file."""

    verified: VerifiedSchedule
    file: bytes


@dataclass(frozen=True, slots=True, eq=False)
class LoweredProgram:
    """A checked program, its text in the format of its target, and the program that was read back from the text."""

    program: Program
    text: str
    read_back: AnyProgram


def build_schedule(request: ScheduleRequest, observe: Observer = unobserved) -> BuiltSchedule:
    """Return the verified schedule of `request`; raises what synthesis and verification raise."""
    verified = verified_schedule(request, SerialExecutor(), None, observe)
    return BuiltSchedule(verified, to_parquet(verified.schedule))


def verified_schedule(
    request: ScheduleRequest, executor: Executor, progress: Progress | None = None, observe: Observer = unobserved
) -> VerifiedSchedule:
    """Return the verified schedule, in the form that suits its size; raises what synthesis and verification raise."""
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
    """Verify an existing schedule, for example from a file; raises CheckFailed if it is wrong."""
    with observe("verification"):
        return verify(schedule, size_bytes)
