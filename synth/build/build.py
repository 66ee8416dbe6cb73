"""Runs the build stages synthesize, verify, lower and check, one at a time or all together, with or without a cache.

A caller that wants to measure the stages passes an `Observer`, which returns a context manager for each of the stages
`synthesis`, `verification`, `lowering` and `check`. The stage runs inside this context manager.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest, program_id
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import Executor, Progress, SerialExecutor
from chorale.synth.identity import rational_text
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import switch_plan
from chorale.synth.methods.catalog import method_named
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.schedule.codec import to_parquet
from chorale.synth.schedule.schedule import pipeline_split
from chorale.synth.targets.lift import lift_code, read_checked
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import target_named
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

Observer = Callable[[str], AbstractContextManager[object]]
"""Called with a stage's name; returns a context manager in which the stage runs."""
_LARGEST_UNITS = 2**21
"""Memory limit of a `CachingBuilder`, in units of about 50 bytes. A transfer takes 1 unit, an instruction 4."""
_INSTRUCTION_UNITS = 4


def verified_schedule(
    request: ScheduleRequest,
    executor: Executor | None = None,
    progress: Progress | None = None,
    observe: Observer = nullcontext,
) -> VerifiedSchedule:
    """Synthesize and verify the schedule of `request`. On large symmetric networks, the result has symmetric form."""
    with observe("synthesis"):
        schedule = method_named(request.method).schedule(
            request.topology, request.collective, request.options, executor or SerialExecutor(), progress
        )
        if request.depth > 1:
            schedule = pipeline_split(schedule.expand(), request.depth)
    with observe("verification"):
        return verify(schedule)


@dataclass(frozen=True, slots=True, eq=False)
class LoweredProgram:
    """A checked program. `text` is in the target's format; `read_back` is the result of parsing `text`."""

    program: Program
    text: str
    read_back: AnyProgram


def build_program(
    verified: VerifiedSchedule, lowering: LoweringOptions, observe: Observer = nullcontext
) -> LoweredProgram:
    """Lower `verified`, write the program as text, parse the text, and check the parsed program on the topology.

    Raises InvalidInput if an option exceeds a limit, and CheckFailed if the program is wrong.
    """
    with observe("lowering"):
        program = lower(verified, lowering)
        text = target_named(lowering.target).emit(program)
    with observe("check"):
        read_back = read_checked(text.encode(), verified.schedule.topology, program.collective.custom)
    return LoweredProgram(program, text, read_back)


def unexecuted_text(verified: VerifiedSchedule, lowering: LoweringOptions) -> str:
    """Lower `verified` and return the program as text, without executing the program symbolically.

    Use this for programs with so many ranks that symbolic execution takes too long. Raises InvalidInput if an option
    exceeds a limit, and CheckFailed if parsing the text gives a different program.
    """
    program = lower(verified, lowering)
    text = target_named(lowering.target).emit(program)
    if lift_code(text.encode()) != program:
        rule = "the written program {} reads back differently"
        raise CheckFailed(rule, program.name, "please report this defect of the writer")
    return text


def build_switch_plan(verified: VerifiedSchedule, lowering: LoweringOptions) -> tuple[str, ExecutionPlan]:
    """Lower a schedule in which switches reduce or multicast data; return an MSCCL++ plan as text and as an object.

    The object was parsed from the text and checked. Raises InvalidInput if the schedule cannot be expressed as a plan,
    and CheckFailed if the plan is wrong.
    """
    text = plan_text(switch_plan(verified.schedule.expand(), lowering))
    read_back = read_checked(text.encode(), verified.schedule.topology)
    assert isinstance(read_back, ExecutionPlan)
    return text, read_back


@dataclass(slots=True)
class _Entry:
    """A cached schedule and its Parquet file. `units`: memory use; `programs`: programs by id of build request."""

    verified: VerifiedSchedule
    file: bytes
    units: int
    programs: dict[str, LoweredProgram] = field(default_factory=dict)


class CachingBuilder:
    """Builds programs from requests, one after another, and keeps the results in memory.

    Many candidates of a search share a schedule, or even a program, and each of these is built only once.
    `synthesized` counts the schedules that were built, and `lowered` the programs. If the cache exceeds
    `largest_units`, the least recently used schedules are dropped together with their programs.
    """

    def __init__(self, largest_units: int = _LARGEST_UNITS) -> None:
        self._largest_units = largest_units
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.synthesized = 0
        self.lowered = 0

    def build(self, request: BuildRequest) -> BuildResult | BuildFailure:
        """Return the cached result of `request`, or build its program. Every error becomes a BuildFailure."""
        try:
            return self._build(request)
        except Exception as error:  # one bad candidate must not end a campaign
            return BuildFailure.of(error)

    def _build(self, request: BuildRequest) -> BuildResult:
        entry = self._entries.get(request.source.id)
        if entry is None:
            self.synthesized += 1
            verified = verified_schedule(request.source)
            entry = _Entry(verified, to_parquet(verified.schedule), verified.schedule.transfer_count)
            self._entries[request.source.id] = entry
        self._entries.move_to_end(request.source.id)
        program = entry.programs.get(request.id)
        if program is None:
            self.lowered += 1
            program = entry.programs[request.id] = build_program(entry.verified, request.lowering)
            instructions = (len(block.instructions) for rank in program.program.ranks for block in rank.blocks)
            entry.units += _INSTRUCTION_UNITS * sum(instructions)
            while len(self._entries) > 1 and sum(each.units for each in self._entries.values()) > self._largest_units:
                self._entries.popitem(last=False)  # the first entry is the least recently used
        schedule, cost = entry.verified.schedule, entry.verified.cost
        return BuildResult(
            schedule_id=schedule.id,
            schedule=entry.file,
            program_id=program_id(schedule.id, request.lowering),
            program=program.program,
            program_text=program.text,
            time_per_byte=rational_text(cost.time_per_byte),
            steps=cost.steps,
            chunks_per_shard=schedule.chunks_per_shard,
        )


def build(request: BuildRequest) -> BuildResult | BuildFailure:
    """Build the schedule and the program without a cache. Never raises: every error is returned as a BuildFailure."""
    return CachingBuilder().build(request)
