"""What is drawn of programs of both kinds: a lane for each thread block, a box for each of its instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from chorale.synth.programs.plain_execution import logical_times
from chorale.synth.programs.plans.explanation import OperationTurn, PlanHistory, pieces_moved
from chorale.synth.programs.plans.plan import ExecutionPlan, Operation
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Op, Program, chunks_moved

Lane = tuple[int, int]
"""Rank and block."""
Kind = Literal["sends", "receives", "receives and sends", "works on memory", "tells or waits"]

MAX_MOVES = 2**22
"""Chunks moved by all instructions, beyond which their turns are not worked out: some ten seconds."""


class InstructionBox(NamedTuple):
    """An instruction: its number in the block, what it does, and its earliest turn, None where it never comes to it."""

    step: int
    kind: Kind
    turn: int | None


def timeline(program: AnyProgram, lanes: Sequence[Lane]) -> Mapping[Lane, list[InstructionBox]]:
    """Return the instructions of `lanes` in their order. Of programs that move very many chunks each stands at its
    place in its block. O(chunks moved)."""
    if isinstance(program, ExecutionPlan):
        return _of_plan(program, lanes)
    assert isinstance(program, Program)
    times = logical_times(program) if chunks_moved(program) <= MAX_MOVES else {}
    found = {}
    for rank, block in lanes:
        items = program.ranks[rank].blocks[block].instructions
        done = times.get((rank, block), range(len(items)) if not times else ())
        found[rank, block] = [
            InstructionBox(k, _kind(each.op), done[k] if k < len(done) else None) for k, each in enumerate(items)
        ]
    return found


def _of_plan(plan: ExecutionPlan, lanes: Sequence[Lane]) -> Mapping[Lane, list[InstructionBox]]:
    if pieces_moved(plan) <= MAX_MOVES:
        history = PlanHistory(plan)
        history.run()
        turns = history.turns()
    else:
        turns = {lane: list(_in_order(plan, lane)) for lane in lanes}
    return {
        (rank, block): [InstructionBox(each.step, _kind_of(each.operation), each.at) for each in turns[rank, block]]
        for rank, block in lanes
    }


def _in_order(plan: ExecutionPlan, lane: Lane) -> Iterator[OperationTurn]:
    operations = plan.ranks[lane[0]].blocks[lane[1]].operations
    every = ((step, each) for step, operation in enumerate(operations) for each in operation.body or (operation,))
    return (OperationTurn(step, each, at) for at, (step, each) in enumerate(every))


def _kind(op: Op) -> Kind:
    if op.sends and op.receives:
        return "receives and sends"
    return "sends" if op.sends else "receives" if op.receives else "works on memory"


def _kind_of(operation: Operation) -> Kind:
    """Return what an operation of a plan does: it sends where it writes to others, and receives where it reads of them,
    or takes packets."""
    if not operation.action.moves:
        return "tells or waits"
    sends = any(each.buffer is None for each in operation.targets)
    receives = any(each.buffer is None for each in operation.sources)
    receives |= operation.action.takes_packets
    if sends and receives:
        return "receives and sends"
    return "sends" if sends else "receives" if receives else "works on memory"
