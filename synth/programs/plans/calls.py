"""Runs calls of a plan as machine code: whether all of them end, with the right results and without a race.

What goes wrong, and where, `chorale.synth.programs.plans.run` says, which does the same on objects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.programs.plans.call_clocks import (
    append,
    forget_order,
    hear,
    join,
    meet,
    merge_clocks,
    new_row,
    take_first,
    tell,
)
from chorale.synth.programs.plans.call_memory import (
    is_written_later,
    note_write,
)
from chorale.synth.programs.plans.call_moves import lacks_packets, move_data
from chorale.synth.programs.plans.call_state import (
    HEAD,
    READ,
    READER,
    STEPS,
    THREADS,
    UNUSED,
    WHEN,
    CallState,
    clock_entries,
    latest_time,
    new_state,
    with_more_news,
)
from chorale.synth.programs.plans.call_state import NEXT as NEXT_READ
from chorale.synth.programs.plans.flat_plan import (
    AWAITED,
    BARRIER,
    BARRIER_BLOCKS,
    DOES,
    FIRST_BLOCK,
    FIRST_CELL,
    FIRST_LINK,
    FIRST_MOVE,
    FIRST_PROXY,
    FIRST_STEP,
    FLAGS,
    HEAR,
    JOIN,
    MEET,
    PROXY,
    QUEUE,
    RELAXED_HEAR,
    RELAXED_TELL,
    SCRATCH_CELL,
    TELL,
    FlatPlan,
    flat_plan,
    halves_of,
)
from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import ANYTHING

SOUND, WRONG, CROWDED, OVER = range(4)
DONE, WAITS, FAULT = range(3)
MAX_CLOCK_ENTRIES = 2**29
"""Of 16 bits each."""
LATEST_TIME = 2**15 - 1
ROOM = 2 * THREADS
"""Rows of news that one step may take."""


def verdict_on_calls(plan: ExecutionPlan, parts: int, calls: int, max_entries: int = MAX_CLOCK_ENTRIES) -> int:
    """Return whether `calls` calls of the structurally sound `plan`, with pipelines in `parts`, go as they must: SOUND
    or WRONG; CROWDED where clocks would have more than `max_entries`, or more to count than they can. O(operations *
    blocks + chunks moved)."""
    pieces = pieces_of_a_chunk(plan, parts)
    flat = flat_plan(plan, parts, pieces, calls)
    if latest_time(flat) * calls > LATEST_TIME or int(flat.ranks[-1, FIRST_PROXY]) ** 2 > max_entries:
        return CROWDED
    state, stride, halves = new_state(plan, flat, pieces), plan.chunks * len(plan.ranks), halves_of(plan)
    _begin_all(flat, state, stride)
    verdict = CROWDED
    while verdict == CROWDED and clock_entries(state) <= max_entries:
        verdict = run_calls(flat, state, calls, halves, stride)
        if verdict == CROWDED:
            state = with_more_news(state)
    return verdict


@compiled
def _begin_all(flat: FlatPlan, state: CallState, stride: int) -> None:
    for queue in range(len(flat.begins)):
        for _ in range(flat.begins[queue]):
            append(state.knowledge, queue, new_row(state.knowledge))
    for rank in range(len(state.call)):
        _begin(flat, state, rank, stride)


@compiled
def run_calls(flat: FlatPlan, state: CallState, calls: int, halves: int, stride: int) -> int:
    """Go on until all calls are over, something is wrong, or there is no room for news: return which.
    O(steps * components + chunks moved * readers of a cell)."""
    before = -1
    while state.knowledge.free[STEPS] > before:
        before = state.knowledge.free[STEPS]
        for rank in range(len(state.call)):
            did = _go_on(flat, state, rank, calls, halves)
            if did in (CROWDED, WRONG):
                return did
            if did == OVER:
                if not _ends_well(flat, state, rank, stride):
                    return WRONG
                _begin(flat, state, rank, stride)
                state.knowledge.free[STEPS] += 1
    return SOUND if _least(state.call) > calls else WRONG


@inlined
def _least(numbers: NDArray[np.int64]) -> int:
    least = numbers[0]
    for number in numbers:
        least = min(least, number)
    return int(least)


@inlined
def _go_on(flat: FlatPlan, state: CallState, rank: int, calls: int, halves: int) -> int:
    """Let every block of `rank` go as far as it can; return OVER if that is the end of its call, else SOUND."""
    if state.call[rank] > calls:
        return SOUND
    over = True
    for block in range(flat.ranks[rank, FIRST_BLOCK], flat.ranks[rank + 1, FIRST_BLOCK]):
        did = DONE
        while did == DONE and state.progress[block] < _end_of(flat, block):
            if state.knowledge.free[UNUSED] < ROOM:
                return CROWDED
            did = _step(flat, state, rank, block, halves)
            if did == FAULT:
                return WRONG
        over = over and state.progress[block] == _end_of(flat, block)
    return OVER if over else SOUND


@inlined
def _end_of(flat: FlatPlan, block: int) -> int:
    return int(flat.blocks[block + 1, FIRST_STEP])


@inlined
def _begin(flat: FlatPlan, state: CallState, rank: int, stride: int) -> None:
    """Let `rank` begin its next call: its input is there, what its output holds does not matter any more. A call ends
    when the ports of the rank have read what they were given."""
    knowledge, first, end = state.knowledge, flat.ranks[rank, FIRST_BLOCK], flat.ranks[rank + 1, FIRST_BLOCK]
    state.call[rank] += 1
    call, begun = state.call[rank], flat.ranks[len(state.call), FIRST_PROXY] + rank
    for block in range(first, end):
        join(knowledge, block)
        state.progress[block] = flat.blocks[block, FIRST_STEP]
    for block in range(first + 1, end):
        merge_clocks(knowledge, first, block)
    if first < end:
        for which in range(knowledge.clocks.shape[1]):
            knowledge.clocks[first, which, begun] = call
        for proxy in range(flat.ranks[rank, FIRST_PROXY], flat.ranks[rank + 1, FIRST_PROXY]):
            knowledge.clocks[first, knowledge.clocks.shape[1] - 1, proxy] = knowledge.times[proxy]
    for block in range(first + 1, end):
        merge_clocks(knowledge, block, first)
    kept = flat.ranks[rank + 1, FIRST_CELL] if call == 1 else flat.ranks[rank, SCRATCH_CELL]
    for cell in range(flat.ranks[rank, FIRST_CELL], kept):
        note_write(state, cell, begun, call, True)
        state.values.identity[cell] = -1
        if state.given.identity[cell] != ANYTHING:
            state.values.identity[cell] = state.given.identity[cell] + call * stride
            for word in range(state.values.members.shape[1]):
                state.values.members[cell, word] = state.given.members[cell, word]


@inlined
def _ends_well(flat: FlatPlan, state: CallState, rank: int, stride: int) -> bool:
    """End the call of `rank`; return whether it knows of all accesses to its memory, and has the right results."""
    first, end = flat.ranks[rank, FIRST_BLOCK], flat.ranks[rank + 1, FIRST_BLOCK]
    for block in range(first, end):
        join(state.knowledge, block)
    for block in range(first + 1, end):
        merge_clocks(state.knowledge, first, block)
    for cell in range(flat.ranks[rank, FIRST_CELL], flat.ranks[rank + 1, FIRST_CELL]):
        if first < end and (is_written_later(state, cell, first) or _is_read_later(flat, state, rank, cell)):
            return False
        if state.wanted.identity[cell] != ANYTHING and not _is_right(state, cell, state.call[rank] * stride):
            return False
    return True


@inlined
def _is_read_later(flat: FlatPlan, state: CallState, rank: int, cell: int) -> bool:
    """Return whether somebody may still read `cell` after the call of `rank`, but for its own ports."""
    reads, clocks, first = state.touched.reads, state.knowledge.clocks, flat.ranks[rank, FIRST_BLOCK]
    happened, entry = clocks.shape[1] - 1, state.touched.cells[cell, READ]
    while entry > 0:
        reader = reads[entry, READER]
        is_own_port = flat.ranks[rank, FIRST_PROXY] <= reader < flat.ranks[rank + 1, FIRST_PROXY]
        if not is_own_port and reads[entry, WHEN] > clocks[first, happened, reader]:
            return True
        entry = reads[entry, NEXT_READ]
    return False


@inlined
def _is_right(state: CallState, cell: int, offset: int) -> bool:
    if state.values.identity[cell] != state.wanted.identity[cell] + offset:
        return False
    for word in range(state.values.members.shape[1]):
        if state.values.members[cell, word] != state.wanted.members[cell, word]:
            return False
    return True


@inlined
def _step(flat: FlatPlan, state: CallState, rank: int, block: int, halves: int) -> int:
    """Do the next step of `block`, unless it has to wait."""
    step, half = state.progress[block], state.call[rank] % halves
    first_move, end_move = flat.steps[step, FIRST_MOVE], flat.steps[step + 1, FIRST_MOVE]
    for move in range(first_move, end_move):
        if flat.moves[move, FLAGS] & AWAITED and lacks_packets(flat, state, move, half, state.call[rank]):
            return WAITS
    if not _advances(flat, state, rank, block, step):
        return WAITS
    state.knowledge.times[block] += 1
    for move in range(first_move, end_move):
        if not move_data(flat, state, block, flat.steps[step, FIRST_LINK], move, half, state.call[rank]):
            return FAULT
    state.progress[block] += 1
    state.knowledge.free[STEPS] += 1
    return DONE


@inlined
def _advances(flat: FlatPlan, state: CallState, rank: int, block: int, step: int) -> bool:
    """Do what a step does beside moving data; return False if it has to wait."""
    knowledge, does = state.knowledge, flat.steps[step, DOES]
    first, end = flat.steps[step, FIRST_LINK], flat.steps[step + 1, FIRST_LINK]
    if does == JOIN:
        join(knowledge, block)
    elif does == MEET:
        blocks = flat.ranks[rank, FIRST_BLOCK], flat.ranks[rank + 1, FIRST_BLOCK]
        return meet(knowledge, block, blocks[0], blocks[1], flat.steps[step, BARRIER], flat.steps[step, BARRIER_BLOCKS])
    elif does in (TELL, RELAXED_TELL):
        for link in range(first, end):
            tell(knowledge, block, link - first, flat.links[link, QUEUE], flat.links[link, PROXY], does == RELAXED_TELL)
    elif does in (HEAR, RELAXED_HEAR):
        for link in range(first, end):
            if knowledge.queues[flat.links[link, QUEUE], HEAD] < 0:
                return False
        for link in range(first, end):
            row = take_first(knowledge, flat.links[link, QUEUE])
            if does == RELAXED_HEAR:
                forget_order(knowledge, row)
            hear(knowledge, block, link - first, row)
    return True
