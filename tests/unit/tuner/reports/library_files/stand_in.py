"""A stand-in for MSCCL++'s Python interface: not MSCCL++. It notes calls, and checks what the real one would check.

Signatures are those of python/mscclpp/_core/algorithm.py and ext/algorithm_collection_builder.py of MSCCL++.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StandInPlan:
    path: str
    rank: int

    def document(self) -> dict[str, Any]:
        return dict(json.loads(Path(self.path).read_text()))


@dataclass(frozen=True, slots=True)
class StandInConstraint:
    world_size: int = 0
    n_ranks_per_node: int = 0


class StandInAlgorithm:
    Constraint = StandInConstraint

    def __init__(
        self,
        id: str | None = None,
        execution_plan: StandInPlan | None = None,
        native_handle: object | None = None,
        tags: dict[str, int] | None = None,
        constraint: StandInConstraint | None = None,
    ) -> None:
        assert execution_plan is not None
        assert native_handle is None
        assert not tags
        self.name, self.plan, self.constraint = id, execution_plan, constraint
        self.collective = execution_plan.document()["collective"]


@dataclass(slots=True)
class StandInBuilder:
    algorithms: list[StandInAlgorithm] = field(default_factory=list)
    selector: Callable[[Any, Any], Any] | None = None

    def add_algorithm_builder(self, algorithm_builder: StandInAlgorithm) -> None:
        assert isinstance(algorithm_builder, StandInAlgorithm)
        self.algorithms.append(algorithm_builder)

    def set_algorithm_selector(self, selector: Callable[[Any, Any], Any]) -> None:
        self.selector = selector

    def answer(self, request: StandInRequest) -> StandInAlgorithm | None:
        """Ask the selector as the shim does: with algorithms by collective and name."""
        by_name: dict[str, dict[str, StandInAlgorithm]] = {}
        for algorithm in self.algorithms:
            by_name.setdefault(algorithm.collective, {})[str(algorithm.name)] = algorithm
        assert self.selector is not None
        chosen: StandInAlgorithm | None = self.selector(by_name, request)
        return chosen


@dataclass(frozen=True, slots=True)
class StandInRequest:
    """A request has no operation, as in MSCCL++."""

    message_size: int
    collective: str = "allreduce"
    world_size: int = 4
    input_buffer: int = 64
    output_buffer: int = 64


def stand_in_modules() -> dict[str, types.ModuleType]:
    """Return modules for sys.modules."""
    package, ext = types.ModuleType("mscclpp"), types.ModuleType("mscclpp.ext")
    package.__dict__.update(ExecutionPlan=StandInPlan, Algorithm=StandInAlgorithm, ext=ext)
    ext.__dict__.update(AlgorithmCollectionBuilder=StandInBuilder)
    return {"mscclpp": package, "mscclpp.ext": ext}
