"""Runs the build stages synthesize, verify, lower and check: separately, all together, or with a cache."""

from collections import OrderedDict
from dataclasses import dataclass, field

from chorale.synth.build.build import BuiltSchedule, LoweredProgram, Observer, build_schedule, unobserved
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest, program_id
from chorale.synth.errors import CheckFailed
from chorale.synth.identity import rational_text
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import switch_plan
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.targets.lift import lift_code, read_checked
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import target_named
from chorale.synth.verify.verified import VerifiedSchedule


def build(request: BuildRequest, observe: Observer = unobserved) -> BuildResult | BuildFailure:
    """Synthesize, verify, lower and check. Never raises an exception: every error is returned as a BuildFailure."""
    try:
        schedule = build_schedule(request.source, observe)
        return build_result(schedule, build_program(schedule.verified, request.lowering, observe), request.lowering)
    except Exception as error:  # one bad candidate must not end a campaign
        return BuildFailure.of(error)


def build_program(
    verified: VerifiedSchedule, lowering: LoweringOptions, observe: Observer = unobserved
) -> LoweredProgram:
    """Lower `verified` to a program, write the program as text, read it back, and check it on its topology.

    Raises InvalidInput if an option exceeds a limit, and CheckFailed if the program is wrong.
    """
    with observe("lowering"):
        program = lower(verified, lowering)
        text = target_named(lowering.target).emit(program)
    with observe("check"):
        read_back = read_checked(text.encode(), verified.schedule.topology, program.collective.custom)
    return LoweredProgram(program, text, read_back)


def unexecuted_text(verified: VerifiedSchedule, lowering: LoweringOptions) -> str:
    """Lower `verified` and return the program's text, which is read back but not executed symbolically.

    For very many ranks, symbolic execution takes too long. Raises InvalidInput and CheckFailed like `build_program`.
    """
    program = lower(verified, lowering)
    text = target_named(lowering.target).emit(program)
    if lift_code(text.encode()) != program:
        rule = "the written program {} reads back differently"
        raise CheckFailed(rule, program.name, "please report this defect of the writer")
    return text


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """Text of an MSCCL++ plan in which switches multicast or add, and the plan as read back from it and checked."""

    text: str
    read_back: ExecutionPlan


def build_switch_plan(verified: VerifiedSchedule, lowering: LoweringOptions) -> SwitchPlan:
    """Lower a schedule whose switches add or multicast to a plan, write it as text, read it back, and check it.

    Raises InvalidInput if the schedule cannot be expressed as a plan, and CheckFailed if the plan is wrong.
    """
    text = plan_text(switch_plan(verified.schedule.expand(), lowering))
    read_back = read_checked(text.encode(), verified.schedule.topology)
    assert isinstance(read_back, ExecutionPlan)
    return SwitchPlan(text, read_back)


def build_result(built: BuiltSchedule, program: LoweredProgram, lowering: LoweringOptions) -> BuildResult:
    """Return the schedule and the program in a single value that can be pickled."""
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


LARGEST_UNITS = 2**21
"""Memory limit of a `CachingBuilder`, in units of about 50 bytes. A transfer takes 1 unit, an instruction 4."""

_INSTRUCTION_UNITS = 4


@dataclass(slots=True)
class _Entry:
    """A schedule and the programs lowered from it, by the ids of their requests."""

    schedule: BuiltSchedule
    programs: dict[str, LoweredProgram] = field(default_factory=dict)
    units: int = 0


class CachingBuilder:
    """Builds requests one after another and keeps the results in memory.

    Many points of a search space share a schedule, or even a program, which is then built only once. `synthesized` and
    `lowered` count how many schedules and programs were actually built. Above `largest_units`, the least recently used
    schedules are dropped together with their programs.
    """

    def __init__(self, largest_units: int = LARGEST_UNITS) -> None:
        self._largest_units = largest_units
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.synthesized = 0
        self.lowered = 0

    def build(self, request: BuildRequest, observe: Observer = unobserved) -> BuildResult | BuildFailure:
        """Build `request` or take the result from memory. The result is the same as for the function `build`."""
        try:
            entry = self._entry(request.source, observe)
            return build_result(entry.schedule, self._program(entry, request, observe), request.lowering)
        except Exception as error:  # one bad candidate must not end a campaign
            return BuildFailure.of(error)

    def _entry(self, request: ScheduleRequest, observe: Observer) -> _Entry:
        entry = self._entries.get(request.id)
        if entry is None:
            self.synthesized += 1
            built = build_schedule(request, observe)
            entry = self._entries[request.id] = _Entry(built, units=built.verified.schedule.transfer_count)
        self._entries.move_to_end(request.id)
        return entry

    def _program(self, entry: _Entry, request: BuildRequest, observe: Observer) -> LoweredProgram:
        program = entry.programs.get(request.id)
        if program is None:
            self.lowered += 1
            program = entry.programs[request.id] = build_program(entry.schedule.verified, request.lowering, observe)
            instructions = (len(block.instructions) for rank in program.program.ranks for block in rank.blocks)
            entry.units += _INSTRUCTION_UNITS * sum(instructions)
            while len(self._entries) > 1 and sum(each.units for each in self._entries.values()) > self._largest_units:
                self._entries.popitem(last=False)  # the first entry is the least recently used
        return program
