"""From a candidate's parameters to a verified program that is ready to run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from synth.collective import Collective
from synth.errors import CheckFailed, ChoraleError, InvalidInput
from synth.executor.serial import SerialExecutor
from synth.identity import content_id, rational_text
from synth.lowering.check import check_program
from synth.lowering.lift import lift
from synth.lowering.lower import lower
from synth.lowering.options import LoweringOptions
from synth.lowering.program import Program
from synth.lowering.targets import target_named
from synth.method import Options
from synth.methods import synthesize
from synth.schedule.codec import to_parquet
from synth.schedule.cut import cut
from synth.topology.topology import Topology
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import verify


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to synthesize (`wanted` of the method), how deep to pipeline (`cut`) and how to lower it (`options`)."""

    topology: Topology
    collective: Collective
    method: str
    wanted: Options
    options: LoweringOptions
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """A verified schedule, lowered, written as text, read back and checked.

    `schedule` is a Parquet file; `program_text` the program in the dialect of its target. `program_id` is the
    content id of the schedule's id and all lowering options: equal ids mean the same instructions.
    """

    schedule_id: str
    schedule: bytes
    program_id: str
    program: Program
    program_text: str
    time_per_byte: str
    steps: int
    chunks_per_shard: int
    seconds: float


class RefusalKind(StrEnum):
    """Why a recipe gave no program."""

    INVALID = "invalid"  # the parameters do not fit together or exceed a limit
    UNSOUND = "unsound"  # the result failed verification: a fault of the method
    CRASH = "crash"  # an unexpected error, or the worker died


@dataclass(frozen=True, slots=True)
class Refusal:
    """A recipe that gave no program, as a value; `message` is one line."""

    kind: RefusalKind
    message: str


def prepare(recipe: Recipe) -> Prepared | Refusal:
    """Synthesize, verify, lower and check `recipe`. Never raises: what goes wrong comes back as a Refusal."""
    began_s = time.perf_counter()
    try:
        return lowered(*scheduled(recipe), recipe.options, began_s)
    except Exception as error:  # one bad candidate must not end a campaign
        return refusal_of(error)


def refusal_of(error: Exception) -> Refusal:
    """Return what `error` means for a recipe."""
    if isinstance(error, InvalidInput):
        return Refusal(RefusalKind.INVALID, str(error))
    if isinstance(error, CheckFailed):
        return Refusal(RefusalKind.UNSOUND, str(error))
    message = str(error) if isinstance(error, ChoraleError) else f"{type(error).__name__}: {error}"
    return Refusal(RefusalKind.CRASH, " ".join(message.split()))


def scheduled(recipe: Recipe) -> tuple[VerifiedSchedule, bytes]:
    """Return the verified schedule of `recipe`, also as a file; raises what synthesis and verification raise."""
    verified = synthesize(recipe.method, recipe.topology, recipe.collective, recipe.wanted, SerialExecutor())
    if recipe.depth > 1:
        verified = verify(cut(verified.schedule.expand(), recipe.depth))
    return verified, to_parquet(verified.schedule)


def lowered(verified: VerifiedSchedule, file: bytes, options: LoweringOptions, began_s: float) -> Prepared:
    """Return the checked program of `verified`, whose file is `file`; `began_s` is when its making began.

    Raises InvalidInput for options beyond a limit, CheckFailed for a program that is not sound.
    """
    program = lower(verified, options)
    text = target_named(options.target).emit(program)
    _check(text)
    schedule = verified.schedule
    return Prepared(
        schedule_id=schedule.id,
        schedule=file,
        program_id=program_id(schedule.id, options),
        program=program,
        program_text=text,
        time_per_byte=rational_text(verified.cost.time_per_byte),
        steps=verified.cost.steps,
        chunks_per_shard=schedule.chunks_per_shard,
        seconds=time.perf_counter() - began_s,
    )


def _check(text: str) -> None:
    """Read the program back from its text and check that it does its collective."""
    for violation in check_program(lift(text.encode())):
        raise CheckFailed("a lowered program must be sound", violation.message, "report this candidate")


def program_id(schedule_id: str, options: LoweringOptions) -> str:
    """Return the content id of what lowering makes of a schedule with `options`."""
    return content_id(
        {
            "schedule": schedule_id,
            "target": options.target,
            "channels": options.channels,
            "instances": options.instances,
            "protocol": options.protocol,
            "in_place": options.in_place,
            "sm_count": options.sm_count,
            "fuse": options.fuse,
        }
    )
