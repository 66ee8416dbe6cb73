"""Small plans, and ways to change them."""

from collections.abc import Iterator
from dataclasses import replace

from chorale.synth.programs.plans.plan import ExecutionPlan, Operation
from chorale.synth.targets.mscclpp_text import MscclppJson, parse_plan
from tests.unit.synth.lowering.programs import lowered, with_block

Spot = tuple[int, int, int, Operation]
"""Rank, block, number of an operation, and the operation."""


def made(spec: str, collective: str, method: str = "bfb", **options: object) -> str:
    return MscclppJson().emit(lowered(spec, collective, "mscclpp-json", method, **options))


SMALL = [parse_plan(made(spec, name, in_place=place).encode()) for spec, name, place in [
    ("ring:3", "allgather", False), ("ring:4", "allreduce", True), ("hypercube:2", "reduce_scatter", False),
    ("hypercube:2", "allreduce", False), ("complete:3", "reduce_scatter", True)
]]  # fmt: skip


def operations(plan: ExecutionPlan) -> Iterator[Spot]:
    for rank, body in enumerate(plan.ranks):
        for index, block in enumerate(body.blocks):
            for step, operation in enumerate(block.operations):
                yield rank, index, step, operation


def edited(plan: ExecutionPlan, place: Spot, *items: Operation) -> ExecutionPlan:
    rank, index, step, _ = place
    block = plan.ranks[rank].blocks[index]
    changed = (*block.operations[:step], *items, *block.operations[step + 1 :])
    return with_block(plan, rank, index, replace(block, operations=changed))
