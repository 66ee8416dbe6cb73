"""Building with caches: schedules and programs that were built before are not built again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from chorale.synth.build.build import build_program, build_result
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.build.schedules import BuiltSchedule, LoweredProgram, Observer, build_schedule, unobserved
from chorale.synth.programs.program import Program

Value = TypeVar("Value")

LARGEST_UNITS = 2**21
"""Limit of what is held in memory: a transfer counts 1 unit, an instruction 4; a unit is some 50 bytes."""

_INSTRUCTION_UNITS = 4


class BuildCache(Protocol):
    """Holds schedules and programs under the content ids of requests. What it returns is verified and checked.

    It may drop entries at any time. A damaged entry counts as missing: lookups do not raise because of it.
    """

    def schedule(self, request: ScheduleRequest) -> BuiltSchedule | None: ...

    def add_schedule(self, request: ScheduleRequest, built: BuiltSchedule) -> None: ...

    def program(self, request: BuildRequest, schedule: BuiltSchedule) -> LoweredProgram | None: ...

    def add_program(self, request: BuildRequest, program: LoweredProgram) -> None: ...


class CachingBuilder:
    """Builds requests one after the other, after a lookup in `caches`, the fastest first.

    Points of a search space differ mostly in how one schedule is lowered, or in what lowering does not see: then
    synthesis and verification, or all of it, are not done again. `synthesized` and `lowered` count what was done.
    """

    def __init__(self, *caches: BuildCache) -> None:
        self._caches: Sequence[BuildCache] = caches or (MemoryCache(),)
        self.synthesized = 0
        self.lowered = 0

    def build(self, request: BuildRequest, observe: Observer = unobserved) -> BuildResult | BuildFailure:
        """Return what `chorale.synth.build.build.build` returns."""
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
    """Return the value in the first cache that has it (None without one), and the caches before that."""
    missed: list[BuildCache] = []
    for cache in caches:
        value = look(cache)
        if value is not None:
            return value, missed
        missed.append(cache)
    return None, missed


@dataclass(slots=True)
class _Entry:
    """A schedule, and the programs lowered from it by the id of their request."""

    schedule: BuiltSchedule
    programs: dict[str, LoweredProgram] = field(default_factory=dict)
    units: int = 0


class MemoryCache:
    """A BuildCache in memory: schedules with their programs, the least recently used dropped first."""

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
        entry.units += _INSTRUCTION_UNITS * _instructions(program.program)
        while len(self._entries) > 1 and sum(entry.units for entry in self._entries.values()) > self._largest_units:
            self._entries.popitem(last=False)  # never the latest


def _instructions(program: Program) -> int:
    return sum(len(block.instructions) for rank in program.ranks for block in rank.blocks)
