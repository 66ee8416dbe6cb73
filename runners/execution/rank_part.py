"""A rank's part of a program, or of a library's collective: on its way to the rank, and loaded into its engine."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from chorale.runners.api.base import RankTrace, StepSpan
from chorale.runners.api.elements import (
    ELEMENT_TYPES,
    UNTOUCHED,
    DataPattern,
    Vector,
    expected_output,
    input_data,
    required_pieces,
)
from chorale.runners.engine.library import DataType, Engine, Execution, Work, encode_rank
from chorale.runners.plans.encoding import encode_plan
from chorale.runners.plans.rank_plans import PlanBuffers, RankPlans
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.custom_collective import CustomCollective
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import QUEUE_DEPTH, Buffer, Program


@dataclass(frozen=True, slots=True)
class DataLayout:
    """How a vector is laid out on ranks: `chunks` of the whole vector, and whether input and output share memory."""

    collective: Collective
    ranks: int
    chunks: int
    in_place: bool


class RankMemory:
    """Holds the data of one run; `elements` is the length of the whole vector, a multiple of the chunks.

    given: where input and output lie, at least as long as they are and overlapping in place; else they are made
    """

    def __init__(
        self,
        layout: DataLayout,
        rank: int,
        elements: int,
        dtype: str,
        pattern: DataPattern,
        given: tuple[Vector, Vector] | None = None,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._elements = elements
        self._pattern = pattern
        self._buffers = self._allocate(dtype) if given is None else self._views(*given)
        self._buffers["i"][:] = input_data(layout.collective, pattern, rank, elements)

    @property
    def input(self) -> Vector:
        """The input, as a view."""
        return self._buffers["i"]

    @property
    def output(self) -> Vector:
        """The output, as a view."""
        return self._buffers["o"]

    def mismatch(self) -> str | None:
        """Return in one line what is wrong with the result, None if every element is right."""
        expected = self._expected()
        found = None if expected is None else _difference("output", self._buffers["o"], expected)
        if found is None and not self._layout.in_place:
            before = input_data(self._layout.collective, self._pattern, self._rank, self._elements)
            found = _difference("input, which must stay as it was,", self._buffers["i"], before)
        return found

    def _expected(self) -> Vector | None:
        custom = self._layout.collective.custom
        if custom is None:
            return expected_output(self._layout.collective, self._pattern, self._rank, self._elements)
        expected = self._buffers["o"].copy()  # what is not required may be anything
        for first, values in required_pieces(custom, self._pattern, self._rank, self._elements):
            expected[first : first + len(values)] = values
        return expected

    @property
    def _lengths(self) -> Mapping[Buffer, int]:
        name, shard = self._layout.collective.name, self._elements // self._layout.ranks
        return {
            "i": shard if name is CollectiveName.ALLGATHER else self._elements,
            "o": shard if name is CollectiveName.REDUCE_SCATTER else self._elements,
        }

    def _views(self, given_input: Vector, given_output: Vector) -> dict[Buffer, Vector]:
        buffers: dict[Buffer, Vector] = {
            "i": given_input[: self._lengths["i"]],
            "o": given_output[: self._lengths["o"]],
        }
        buffers["o"][:] = UNTOUCHED
        return buffers

    def _allocate(self, dtype: str) -> dict[Buffer, Vector]:
        name, shard = self._layout.collective.name, self._elements // self._layout.ranks
        lengths = self._lengths
        buffers = {buffer: np.full(length, UNTOUCHED, dtype) for buffer, length in lengths.items()}
        if self._layout.in_place:
            whole: Buffer = "o" if name is CollectiveName.ALLGATHER else "i"
            other: Buffer = "i" if whole == "o" else "o"
            start = self._rank * shard if lengths["i"] != lengths["o"] else 0
            buffers[other] = buffers[whole][start : start + lengths[other]]
        return buffers


def _difference(what: str, found: Vector, expected: Vector) -> str | None:
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(expected)} elements of the {what} are wrong, "
        f"the first is element {first}: {found[first]:.15g} instead of {expected[first]}"
    )


@dataclass(frozen=True, slots=True)
class RankPart:
    """What a rank has to know of a program.

    layout: of the data
    words:  for the engine or the executor of plans; none for a library's collective
    plan:   of a plan, what its executor has to know besides
    """

    layout: DataLayout
    words: bytes = b""
    plan: PlanBuffers | None = None

    @staticmethod
    def of(program: AnyProgram, rank: int) -> RankPart:
        """Return the part of `rank` of a program or a plan."""
        if isinstance(program, ExecutionPlan):
            layout = DataLayout(program.collective, len(program.ranks), program.chunks, program.in_place)
            return RankPart(layout, encode_plan(program, rank).tobytes(), PlanBuffers.of(program, rank))
        assert isinstance(program, Program)
        return RankPart.of_program(program, rank)

    @staticmethod
    def of_program(program: Program, rank: int) -> RankPart:
        """Return the part of `rank`."""
        shape = len(program.ranks), program.chunks, program.in_place
        words = encode_rank(program.collective, *shape, QUEUE_DEPTH[program.protocol], program.ranks[rank])
        return RankPart(DataLayout(program.collective, *shape), words.tobytes())

    @staticmethod
    def of_library(collective: Collective, ranks: int) -> RankPart:
        """Return what every rank has to know of a library's collective, which works out of place."""
        return RankPart(DataLayout(collective, ranks, ranks, False))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        layout = self.layout
        collective = [layout.collective.name.value, layout.collective.root]
        words = base64.b64encode(self.words).decode()
        document: dict[str, Any] = {
            "layout": [*collective, layout.ranks, layout.chunks, layout.in_place],
            "words": words,
        }
        if layout.collective.custom is not None:
            document["custom"] = layout.collective.custom.to_json()
        return document if self.plan is None else document | {"plan": self.plan.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RankPart:
        """Return what `to_json` wrote."""
        name, root, *shape = value["layout"]
        plan = PlanBuffers.from_json(value["plan"]) if "plan" in value else None
        custom = CustomCollective.from_json(value["custom"]) if "custom" in value else None
        layout = DataLayout(Collective(CollectiveName(name), root, custom), *shape)
        return RankPart(layout, base64.b64decode(value["words"]), plan)


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """number: of the program in the engine, or of the plan among plans; None for a library's collective."""

    part: RankPart
    number: int | None

    @property
    def is_plan(self) -> bool:
        return self.part.plan is not None

    @property
    def collective(self) -> Collective:
        return self.part.layout.collective

    def memory(self, rank: int, task: Mapping[str, Any], plans: RankPlans | None = None) -> RankMemory:
        """Return fresh data for a task of `prepare_task`; that of a plan lies where `plans` has it."""
        limit = ELEMENT_TYPES[task["dtype"]].exact_limit
        pattern = DataPattern(self.part.layout.ranks, task["run"], task["seed"], limit)
        given = None
        if self.is_plan:
            assert plans is not None
            assert self.number is not None
            given = plans.buffers(self.number, task["elements"], task["dtype"])
        return RankMemory(self.part.layout, rank, task["elements"], task["dtype"], pattern, given)

    def work(self, memory: RankMemory, task: Mapping[str, Any]) -> Work:
        """Return what the engine does with `memory`, which must live as long; only for programs."""
        assert self.number is not None
        addresses = memory.input.ctypes.data, memory.output.ctypes.data
        room = len(self.part.words) if task["trace"] else 0  # more than there are steps
        return Work(self.number, *addresses, task["elements"], DataType[task["dtype"].upper()], step_room=room)


def load_parts(
    engine: Engine, former: Iterable[LoadedPart], documents: Iterable[Mapping[str, Any]]
) -> list[LoadedPart]:
    """Replace the programs of `former` in `engine` by those of `documents`, and return these."""
    for loaded in former:
        if loaded.number is not None and not loaded.is_plan:
            engine.unload(loaded.number)
    parts, plans = map(RankPart.from_json, documents), count()
    return [LoadedPart(part, _number(engine, part, plans)) for part in parts]


def _number(engine: Engine, part: RankPart, plans: Iterator[int]) -> int | None:
    if part.plan is not None:
        return next(plans)
    return engine.load(array("q", part.words)) if part.words else None


def rank_trace(execution: Execution, started_ns: int) -> RankTrace:
    """Return the trace of a rank; `started_ns`: the common start of all ranks on this rank's clock."""
    spans = tuple(
        StepSpan(
            step.block,
            step.step,
            step.part,
            step.piece,
            (step.ready_ns - started_ns) / 1e9,
            (step.start_ns - started_ns) / 1e9 if step.start_ns else 0.0,
            (step.end_ns - started_ns) / 1e9,
        )
        for step in execution.steps
    )
    start_s, end_s = (execution.start_ns - started_ns) / 1e9, (execution.end_ns - started_ns) / 1e9
    return RankTrace(start_s, end_s, execution.cpu_ns / 1e9, spans)
