"""Runs the build stages synthesize, verify, lower and check: one by one, all together, or with a cache."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest, program_id
from chorale.synth.build.schedules import BuiltSchedule, LoweredProgram, Observer, build_schedule, unobserved
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
    """Synthesize, verify, lower and check. Never raises: every error is returned as a BuildFailure."""
    try:
        schedule = build_schedule(request.source, observe)
        return build_result(schedule, build_program(schedule.verified, request.lowering, observe), request.lowering)
    except Exception as error:  # one bad candidate must not end a campaign
        return BuildFailure.of(error)


def build_program(
    verified: VerifiedSchedule, lowering: LoweringOptions, observe: Observer = unobserved
) -> LoweredProgram:
    """Lower `verified` to a program, write it as text, read it back, and check it on its topology.

    Raises InvalidInput if an option exceeds a limit, and CheckFailed if the program is wrong.
    """
    with observe("lowering"):
        program = lower(verified, lowering)
        text = target_named(lowering.target).emit(program)
    with observe("check"):
        read_back = read_checked(text.encode(), verified.schedule.topology, program.collective.custom)
    return LoweredProgram(program, text, read_back)


def unexecuted_text(verified: VerifiedSchedule, lowering: LoweringOptions) -> str:
    """Lower `verified` and return the text of the program. It is read back, but not executed symbolically.

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
    """A checked plan in which switches multicast or add, and its text."""

    text: str
    read_back: ExecutionPlan


def build_switch_plan(verified: VerifiedSchedule, lowering: LoweringOptions) -> SwitchPlan:
    """Lower a schedule in which switches act to a plan, write it as text, read it back, and check it on its topology.

    Raises InvalidInput if the schedule cannot be expressed as a plan, and CheckFailed if the plan is wrong.
    """
    text = plan_text(switch_plan(verified.schedule.expand(), lowering))
    read_back = read_checked(text.encode(), verified.schedule.topology)
    assert isinstance(read_back, ExecutionPlan)
    return SwitchPlan(text, read_back)


def build_result(built: BuiltSchedule, program: LoweredProgram, lowering: LoweringOptions) -> BuildResult:
    """Combine schedule and program into a value that can be pickled."""
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


Value = TypeVar("Value")

LARGEST_UNITS = 2**21
"""Size limit of a `MemoryCache`. A transfer counts as 1 unit, an instruction as 4; a unit takes about 50 bytes."""

_INSTRUCTION_UNITS = 4


class BuildCache(Protocol):
    """Stores verified schedules and checked programs, by the content id of their request.

    Entries may be dropped at any time. A damaged entry counts as missing and raises nothing.
    """

    def schedule(self, request: ScheduleRequest) -> BuiltSchedule | None: ...

    def add_schedule(self, request: ScheduleRequest, built: BuiltSchedule) -> None: ...

    def program(self, request: BuildRequest, schedule: BuiltSchedule) -> LoweredProgram | None: ...

    def add_program(self, request: BuildRequest, program: LoweredProgram) -> None: ...


class CachingBuilder:
    """Builds requests one after the other, and looks each up in `caches` first. The fastest cache should come first.

    Many points of a search space share a schedule, or even a program, which is then built only once. `synthesized` and
    `lowered` count how many schedules and programs were actually built.
    """

    def __init__(self, *caches: BuildCache) -> None:
        self._caches: Sequence[BuildCache] = caches or (MemoryCache(),)
        self.synthesized = 0
        self.lowered = 0

    def build(self, request: BuildRequest, observe: Observer = unobserved) -> BuildResult | BuildFailure:
        """Build `request` or take the result from a cache; return the same as the function `build`."""
        try:
            schedule = self._schedule(request.source, observe)
            return build_result(schedule, self._program(request, schedule, observe), request.lowering)
        except Exception as error:  # one bad candidate must not end a campaign
            return BuildFailure.of(error)

    def _schedule(self, request: ScheduleRequest, observe: Observer) -> BuiltSchedule:
        built, missed = _first_hit(self._caches, lambda cache: cache.schedule(request))
        if built is None:
            self.synthesized += 1
            built = build_schedule(request, observe)
        for cache in missed:
            cache.add_schedule(request, built)
        return built

    def _program(self, request: BuildRequest, schedule: BuiltSchedule, observe: Observer) -> LoweredProgram:
        program, missed = _first_hit(self._caches, lambda cache: cache.program(request, schedule))
        if program is None:
            self.lowered += 1
            program = build_program(schedule.verified, request.lowering, observe)
        for cache in missed:
            cache.add_program(request, program)
        return program


def _first_hit(
    caches: Sequence[BuildCache], look: Callable[[BuildCache], Value | None]
) -> tuple[Value | None, list[BuildCache]]:
    """Return the value from the first cache that has it (None if none does), and the caches tried before that one."""
    missed: list[BuildCache] = []
    for cache in caches:
        value = look(cache)
        if value is not None:
            return value, missed
        missed.append(cache)
    return None, missed


@dataclass(slots=True)
class _Entry:
    """A schedule and the programs lowered from it. Programs are stored by the id of their request."""

    schedule: BuiltSchedule
    programs: dict[str, LoweredProgram] = field(default_factory=dict)
    units: int = 0


class MemoryCache:
    """A BuildCache in memory. When it is full, the least recently used schedules are dropped with their programs."""

    def __init__(self, largest_units: int = LARGEST_UNITS) -> None:
        self._largest_units = largest_units
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def schedule(self, request: ScheduleRequest) -> BuiltSchedule | None:
        entry = self._entries.get(request.id)
        if entry is None:
            return None
        self._entries.move_to_end(request.id)
        return entry.schedule

    def add_schedule(self, request: ScheduleRequest, built: BuiltSchedule) -> None:
        self._entries[request.id] = _Entry(built, units=built.verified.schedule.transfer_count)

    def program(self, request: BuildRequest, schedule: BuiltSchedule) -> LoweredProgram | None:
        entry = self._entries.get(request.source.id)
        return None if entry is None else entry.programs.get(request.id)

    def add_program(self, request: BuildRequest, program: LoweredProgram) -> None:
        entry = self._entries[request.source.id]
        entry.programs[request.id] = program
        instructions = (len(block.instructions) for rank in program.program.ranks for block in rank.blocks)
        entry.units += _INSTRUCTION_UNITS * sum(instructions)
        while len(self._entries) > 1 and sum(entry.units for entry in self._entries.values()) > self._largest_units:
            self._entries.popitem(last=False)  # the first entry is the least recently used
