"""A rank's part of a program, or of a library's collective: on its way to the rank, and loaded into its engine."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.engine.encoding import encode_rank
from chorale.runners.engine.library import DataType, Engine, Work
from chorale.runners.execution.rank_memory import DataLayout, RankMemory
from chorale.runners.plans.encoding import encode_plan
from chorale.runners.plans.rank_plans import PlanBuffers, RankPlans
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.custom_collective import CustomCollective
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import QUEUE_DEPTH, Program


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
