"""Synthesize, verify, lower, check: the four stages, one at a time and together."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, program_id
from chorale.synth.build.schedules import BuiltSchedule, LoweredProgram, Observer, build_schedule, unobserved
from chorale.synth.errors import CheckFailed
from chorale.synth.identity import rational_text
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switch_plans import switch_plan
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.targets.lift import lift_code, read_checked
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import target_named
from chorale.synth.verify.verified import VerifiedSchedule


def build(request: BuildRequest, observe: Observer = unobserved) -> BuildResult | BuildFailure:
    """Synthesize, verify, lower and check. Never raises: an error is returned as a BuildFailure."""
    try:
        schedule = build_schedule(request.source, observe)
        return build_result(schedule, build_program(schedule.verified, request.lowering, observe), request.lowering)
    except Exception as error:  # one bad candidate must not end a campaign
        return BuildFailure.of(error)


def build_program(
    verified: VerifiedSchedule, lowering: LoweringOptions, observe: Observer = unobserved
) -> LoweredProgram:
    """Return the program of `verified`, written as text, read back and checked on its topology.

    Raises InvalidInput for options beyond a limit, CheckFailed for a program that is not sound.
    """
    with observe("lowering"):
        program = lower(verified, lowering)
        text = target_named(lowering.target).emit(program)
    with observe("check"):
        read_back = read_checked(text.encode(), verified.schedule.topology, program.collective.custom)
    return LoweredProgram(program, text, read_back)


def unexecuted_text(verified: VerifiedSchedule, lowering: LoweringOptions) -> str:
    """Return the text of the program of `verified`, which keeps the rules of its target and is read back as it was
    meant; what it does is not executed, which takes long for very many ranks. InvalidInput, CheckFailed as above."""
    program = lower(verified, lowering)
    text = target_named(lowering.target).emit(program)
    if lift_code(text.encode()) != program:
        rule = "a program must be read back as it was meant"
        raise CheckFailed(rule, program.name, "report this: the writer is at fault")
    return text


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """A checked plan in which switches act, and its text."""

    text: str
    read_back: ExecutionPlan


def build_switch_plan(verified: VerifiedSchedule, lowering: LoweringOptions) -> SwitchPlan:
    """Return the plan of a schedule in which switches act, written as text, read back and checked on its topology.

    Raises InvalidInput where no plan can do that, CheckFailed for one that is not sound.
    """
    text = plan_text(switch_plan(verified.schedule.expand(), lowering))
    read_back = read_checked(text.encode(), verified.schedule.topology)
    assert isinstance(read_back, ExecutionPlan)
    return SwitchPlan(text, read_back)


def build_result(built: BuiltSchedule, program: LoweredProgram, lowering: LoweringOptions) -> BuildResult:
    """Return schedule and program as one value that can be pickled."""
    schedule = built.verified.schedule
    return BuildResult(
        schedule_id=schedule.id,
        schedule=built.file,
        program_id=program_id(schedule.id, lowering),
        program=program.program,
        program_text=program.text,
        time_per_byte=rational_text(built.verified.cost.time_per_byte),
        steps=built.verified.cost.steps,
        chunks_per_shard=schedule.chunks_per_shard,
    )
