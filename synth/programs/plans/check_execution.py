"""Executes calls of a plan on sets of contributions, with a search for races between all that touch a chunk."""

from __future__ import annotations

from chorale.synth.kernels.compiled import has_machine_code
from chorale.synth.programs.plans.calls import (
    CROWDED,
    MAX_CLOCK_ENTRIES,
    SOUND,
    WRONG,
    run_calls,
    verdict_on_calls,
)
from chorale.synth.programs.plans.moves import MAX_PIECES, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.plan import ExecutionPlan, Operation
from chorale.synth.programs.plans.run import PlanRun
from chorale.synth.programs.program import ProgramViolation

MAX_MOVES = 2**24
MAX_PACKETS = 2**20
MAX_CELLS = 2**24
MAX_ENTRIES_OF_OBJECTS = 2**27


def plan_execution_violations(plan: ExecutionPlan, max_cells: int = MAX_CELLS) -> list[ProgramViolation]:
    """Return what goes wrong when the structurally sound `plan` runs; the first fault ends the check.

    Signals, semaphores, packets and scratch stay from call to call, so that two calls are run, or three where calls
    use the halves of scratch by turns. Pipelines are run in one part and in two. What each block does depends on no
    order of the blocks, because each direction of a channel, each semaphore and each packet has one writer (G. Kahn,
    1974): one run finds every deadlock, and, by its clocks, every race.
    O(operations * blocks + chunks moved * blocks of a rank).

    max_cells: limit of memory, in pieces of chunks on all ranks; a plan beyond it breaks the rule `size`
    """
    calls = 3 if plan.settings.double_scratch else 2
    piped = any(operation.body for body in plan.ranks for block in body.blocks for operation in block.operations)
    for parts in (1, 2) if piped else (1,):
        excess = _excess(plan, parts, max_cells)
        if excess:
            return [ProgramViolation.at("size", excess)]
        found = _run(plan, parts, calls)
        if found:
            return found
    return []


def _run(plan: ExecutionPlan, parts: int, calls: int) -> list[ProgramViolation]:
    """Run as machine code, if there is any; what goes wrong is said by a run on objects, which takes more memory."""
    is_native = has_machine_code(run_calls)
    verdict = verdict_on_calls(plan, parts, calls) if is_native else WRONG
    if verdict == SOUND:
        return []
    if verdict == CROWDED:
        message = f"clock entries: more than the {MAX_CLOCK_ENTRIES} with which order can be checked"
        return [ProgramViolation.at("size", message)]
    entries = _entries_of_objects(plan, parts)
    if entries <= MAX_ENTRIES_OF_OBJECTS:
        return PlanRun(plan, parts, calls).violations()
    what = "it goes wrong" if is_native else "there is no machine code of the kernels"
    message = f"{what}; clock entries: {entries} are more than the {MAX_ENTRIES_OF_OBJECTS} with which more can be said"
    return [ProgramViolation.at("size", message)]


def _entries_of_objects(plan: ExecutionPlan, parts: int) -> int:
    """Return how many entries the clocks of a run on objects have, with all that is told."""
    owners = sum(len(body.blocks) + len(body.port_peers) for body in plan.ranks)
    steps = (each for body in plan.ranks for block in body.blocks for _, each, _ in unrolled(block, parts))
    return owners * (sum(map(_told, steps)) + owners)


def _told(operation: Operation) -> int:
    """Return how many clocks an operation leaves for others."""
    if operation.action.packets:
        return 1
    return len(operation.channels) * operation.action.signals + len(operation.semaphores)


def _excess(plan: ExecutionPlan, parts: int, max_cells: int) -> str:
    """Return why `plan` is too large to be executed here, "" if it is not."""
    pieces = pieces_of_a_chunk(plan, parts)
    if pieces > MAX_PIECES:
        return f"parts of a chunk: {pieces} are more than the {MAX_PIECES} that can be checked"
    steps = [each for body in plan.ranks for block in body.blocks for _, each, _ in unrolled(block, parts)]
    moved = sum(operand.count for each in steps for operand in (*each.sources, *each.targets))
    packets = sum(each.count for step in steps if step.action.packets for each in (*step.sources, *step.targets))
    sizes = (
        ("chunks moved by all operations", moved * pieces, MAX_MOVES),
        ("packets moved by all operations", packets * pieces, MAX_PACKETS),
        ("chunks of memory on all ranks", _cells(plan) * pieces, max_cells),
    )
    for what, value, largest in sizes:
        if value > largest:
            return f"{what}: {value} are more than the {largest} that can be checked"
    return ""


def _cells(plan: ExecutionPlan) -> int:
    return sum(plan.layout(rank).cells for rank in range(len(plan.ranks)))
