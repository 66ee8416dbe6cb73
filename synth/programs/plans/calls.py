"""Runs calls of a plan as machine code: whether all of them end, with the right results and without a race.

What goes wrong, and where, `chorale.synth.programs.plans.run` says, which does the same on objects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.programs.plans.call_clocks import (
    append,
    copy_of,
    forget_order,
    hear,
    join,
    meet,
    merge_clocks,
    new_row,
    push,
    take_first,
    tell,
)
from chorale.synth.programs.plans.call_memory import (
    has_unknown_reader,
    is_written_later,
    learn_told,
    may_put,
    note_packet,
    note_read,
    note_taken,
    note_write,
    write_told,
)
from chorale.synth.programs.plans.call_state import (
    CALL,
    HEAD,
    OWNER,
    READ,
    READER,
    ROW,
    STEPS,
    THREADS,
    TIME,
    UNUSED,
    WHEN,
    CallState,
    new_state,
    with_more_news,
)
from chorale.synth.programs.plans.call_state import NEXT as NEXT_READ
from chorale.synth.programs.plans.clocks import HAPPENED, ORDERED
from chorale.synth.programs.plans.flat_plan import (
    AWAITED,
    BARRIER,
    BARRIER_BLOCKS,
    BY_SWITCH,
    COUNT,
    DOES,
    FIRST_BLOCK,
    FIRST_CELL,
    FIRST_LINK,
    FIRST_MOVE,
    FIRST_PROXY,
    FIRST_STEP,
    FIRST_STRETCH,
    FLAGS,
    FLUSHES,
    HALF,
    HEAR,
    JOIN,
    MEET,
    PACKETS,
    PORT,
    PROXY,
    QUEUE,
    READS,
    RELAXED_HEAR,
    RELAXED_TELL,
    SCRATCH_CELL,
    SIGNALS,
    START,
    TAKES,
    TELL,
    TOLD,
    WRITES,
    FlatPlan,
    flat_plan,
    halves_of,
)
from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import ANYTHING

SOUND, WRONG, CROWDED, OVER = range(4)
DONE, WAITS, FAULT = range(3)
ROOM = 2 * THREADS
"""Rows of news that one step may take."""


def calls_are_sound(plan: ExecutionPlan, parts: int, calls: int) -> bool:
    """Return whether `calls` calls of the structurally sound `plan`, with pipelines in `parts`, go as they must.
    O(operations * blocks + chunks moved)."""
    pieces = pieces_of_a_chunk(plan, parts)
    flat = flat_plan(plan, parts, pieces, calls)
    state = new_state(plan, flat, pieces)
    stride, halves = plan.chunks * len(plan.ranks), halves_of(plan)
    _begin_all(flat, state, stride)
    verdict = run_calls(flat, state, calls, halves, stride)
    while verdict == CROWDED:
        state = with_more_news(state)
        verdict = run_calls(flat, state, calls, halves, stride)
    return bool(verdict == SOUND)


@compiled
def _begin_all(flat: FlatPlan, state: CallState, stride: int) -> None:
    for queue in range(len(flat.begins)):
        for _ in range(flat.begins[queue]):
            append(state.known, queue, new_row(state.known))
    for rank in range(len(state.call)):
        _begin(flat, state, rank, stride)


@compiled
def run_calls(flat: FlatPlan, state: CallState, calls: int, halves: int, stride: int) -> int:
    """Go on until all calls are over, something is wrong, or there is no room for news: return which.
    O(steps * components + chunks moved * readers of a cell)."""
    before = -1
    while state.known.free[STEPS] > before:
        before = state.known.free[STEPS]
        for rank in range(len(state.call)):
            did = _go_on(flat, state, rank, calls, halves)
            if did in (CROWDED, WRONG):
                return did
            if did == OVER:
                if not _ends_well(flat, state, rank, stride):
                    return WRONG
                _begin(flat, state, rank, stride)
                state.known.free[STEPS] += 1
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
            if state.known.free[UNUSED] < ROOM:
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
    known, first, end = state.known, flat.ranks[rank, FIRST_BLOCK], flat.ranks[rank + 1, FIRST_BLOCK]
    state.call[rank] += 1
    call, begun = state.call[rank], flat.ranks[len(state.call), FIRST_PROXY] + rank
    for block in range(first, end):
        join(known, block)
        state.progress[block] = flat.blocks[block, FIRST_STEP]
    for block in range(first + 1, end):
        merge_clocks(known, first, block)
    if first < end:
        known.clocks[first, ORDERED, begun] = known.clocks[first, HAPPENED, begun] = call
        for proxy in range(flat.ranks[rank, FIRST_PROXY], flat.ranks[rank + 1, FIRST_PROXY]):
            known.clocks[first, HAPPENED, proxy] = known.times[proxy]
    for block in range(first + 1, end):
        merge_clocks(known, block, first)
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
        join(state.known, block)
    for block in range(first + 1, end):
        merge_clocks(state.known, first, block)
    for cell in range(flat.ranks[rank, FIRST_CELL], flat.ranks[rank + 1, FIRST_CELL]):
        if first < end and (is_written_later(state, cell, first) or _is_read_later(flat, state, rank, cell)):
            return False
        if state.wanted.identity[cell] != ANYTHING and not _is_right(state, cell, state.call[rank] * stride):
            return False
    return True


@inlined
def _is_read_later(flat: FlatPlan, state: CallState, rank: int, cell: int) -> bool:
    """Return whether somebody may still read `cell` after the call of `rank`, but for its own ports."""
    reads, clocks, first = state.touched.reads, state.known.clocks, flat.ranks[rank, FIRST_BLOCK]
    entry = state.touched.cells[cell, READ]
    while entry > 0:
        reader = reads[entry, READER]
        is_own_port = flat.ranks[rank, FIRST_PROXY] <= reader < flat.ranks[rank + 1, FIRST_PROXY]
        if not is_own_port and reads[entry, WHEN] > clocks[first, HAPPENED, reader]:
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
        if flat.moves[move, FLAGS] & AWAITED and _lacks_packets(flat, state, move, half, state.call[rank]):
            return WAITS
    if not _advances(flat, state, rank, block, step):
        return WAITS
    state.known.times[block] += 1
    for move in range(first_move, end_move):
        if not _move(flat, state, block, flat.steps[step, FIRST_LINK], move, half, state.call[rank]):
            return FAULT
    state.progress[block] += 1
    state.known.free[STEPS] += 1
    return DONE


@inlined
def _lacks_packets(flat: FlatPlan, state: CallState, move: int, half: int, call: int) -> bool:
    first = flat.moves[move, FIRST_STRETCH] + flat.moves[move, READS]
    for each in range(first, first + flat.moves[move, TAKES]):
        start = flat.stretches[each, START] + half * flat.stretches[each, HALF]
        for slot in range(start, start + flat.stretches[each, COUNT]):
            if state.touched.slots[slot, CALL] < call:
                return True
    return False


@inlined
def _advances(flat: FlatPlan, state: CallState, rank: int, block: int, step: int) -> bool:
    """Do what a step does beside moving data; return False if it has to wait."""
    known, does = state.known, flat.steps[step, DOES]
    first, end = flat.steps[step, FIRST_LINK], flat.steps[step + 1, FIRST_LINK]
    if does == JOIN:
        join(known, block)
    elif does == MEET:
        blocks = flat.ranks[rank, FIRST_BLOCK], flat.ranks[rank + 1, FIRST_BLOCK]
        return meet(known, block, blocks[0], blocks[1], flat.steps[step, BARRIER], flat.steps[step, BARRIER_BLOCKS])
    elif does in (TELL, RELAXED_TELL):
        for link in range(first, end):
            tell(known, block, link - first, flat.links[link, QUEUE], flat.links[link, PROXY], does == RELAXED_TELL)
    elif does in (HEAR, RELAXED_HEAR):
        for link in range(first, end):
            if known.queues[flat.links[link, QUEUE], HEAD] < 0:
                return False
        for link in range(first, end):
            row = take_first(known, flat.links[link, QUEUE])
            if does == RELAXED_HEAR:
                forget_order(known, row)
            hear(known, block, link - first, row)
    return True


@inlined
def _move(flat: FlatPlan, state: CallState, block: int, first_link: int, move: int, half: int, call: int) -> bool:
    """Move data; return whether that breaks no rule."""
    flags, port = flat.moves[move, FLAGS], flat.moves[move, PORT]
    reads = flat.moves[move, FIRST_STRETCH]
    takes = reads + flat.moves[move, READS]
    writes = takes + flat.moves[move, TAKES]
    packets = writes + flat.moves[move, WRITES]
    end = packets + flat.moves[move, PACKETS]
    doer = block
    if port >= 0:
        if takes < writes and flags & AWAITED:
            join(state.known, block)
        doer = flat.links[first_link + port, PROXY]
        push(state.known, block, port, doer)
    if not (
        _may_read(flat, state, reads, takes)
        and _take(flat, state, doer, takes, writes, half, call, flags & AWAITED != 0)
        and _may_put(flat, state, doer, packets, end, half, call)
        and _touch(flat, state, doer, reads, takes, writes, packets, flags & BY_SWITCH != 0)
        and _sum_up(flat, state, reads, takes, writes, half)
    ):
        return False
    _store(flat, state, writes, packets)
    if packets < end:
        _put(flat, state, doer, packets, end, half, call, flat.moves[move, TOLD] + half)
    if flags & SIGNALS:
        link = first_link + port
        tell(state.known, block, port, flat.links[link, QUEUE], flat.links[link, PROXY], False)
        if flags & FLUSHES:
            hear(state.known, block, port, copy_of(state.known, doer))
    return True


@inlined
def _may_read(flat: FlatPlan, state: CallState, first: int, end: int) -> bool:
    for each in range(first, end):
        start = flat.stretches[each, START]
        for cell in range(start, start + flat.stretches[each, COUNT]):
            if state.values.identity[cell] < 0:
                return False
    return True


@inlined
def _take(
    flat: FlatPlan, state: CallState, doer: int, first: int, end: int, half: int, call: int, awaited: bool
) -> bool:
    """Take packets; what they tell holds for all that is done after that."""
    slots, clocks = state.touched.slots, state.known.clocks
    for each in range(first, end):
        start = flat.stretches[each, START] + half * flat.stretches[each, HALF]
        for slot in range(start, start + flat.stretches[each, COUNT]):
            if slots[slot, CALL] != call:
                return False
            if not awaited and clocks[doer, HAPPENED, slots[slot, OWNER]] < slots[slot, TIME]:
                return False
        row = -1
        for slot in range(start, start + flat.stretches[each, COUNT]):
            note_taken(state, slot, doer)
            if slots[slot, ROW] != row:
                row = slots[slot, ROW]
                learn_told(state.touched, state, doer, row)
    return True


@inlined
def _may_put(flat: FlatPlan, state: CallState, doer: int, first: int, end: int, half: int, call: int) -> bool:
    for each in range(first, end):
        start = flat.stretches[each, START] + half * flat.stretches[each, HALF]
        for slot in range(start, start + flat.stretches[each, COUNT]):
            if not may_put(state, slot, doer, call):
                return False
    return True


@inlined
def _touch(
    flat: FlatPlan, state: CallState, doer: int, reads: int, takes: int, writes: int, packets: int, switch: bool
) -> bool:
    """Note all accesses to cells; return whether they come in an order with those before."""
    for each in range(reads, packets):
        start = flat.stretches[each, START]
        if each < takes or each >= writes:
            for cell in range(start, start + flat.stretches[each, COUNT]):
                if is_written_later(state, cell, doer):
                    return False
                if each >= writes and has_unknown_reader(state, state.touched.cells[cell, READ], doer):
                    return False
    for each in range(reads, packets):
        start = flat.stretches[each, START]
        for cell in range(start, start + flat.stretches[each, COUNT]):
            if each < takes:
                note_read(state, cell, doer)
            elif each >= writes:
                note_write(state, cell, doer, state.known.times[doer], switch)
    return True


@inlined
def _sum_up(flat: FlatPlan, state: CallState, reads: int, takes: int, writes: int, half: int) -> bool:
    """Add all that is read and taken into the last cells; return whether it has a sum."""
    identity, members = state.values
    words, cells = members.shape[1], len(state.touched.cells)
    total = cells + len(state.touched.slots)
    for each in range(reads, writes):
        start = flat.stretches[each, START]
        if each >= takes:
            start += cells + half * flat.stretches[each, HALF]
        for piece in range(flat.stretches[each, COUNT]):
            if each == reads:
                identity[total + piece] = identity[start + piece]
                for word in range(words):
                    members[total + piece, word] = members[start + piece, word]
            elif words == 0 or identity[total + piece] != identity[start + piece]:
                return False
            else:
                for word in range(words):
                    if members[total + piece, word] & members[start + piece, word] != np.uint64(0):
                        return False
                    members[total + piece, word] |= members[start + piece, word]
    return True


@inlined
def _store(flat: FlatPlan, state: CallState, writes: int, packets: int) -> None:
    total = len(state.touched.cells) + len(state.touched.slots)
    for each in range(writes, packets):
        for piece in range(flat.stretches[each, COUNT]):
            _copy(state, total + piece, flat.stretches[each, START] + piece)


@inlined
def _put(flat: FlatPlan, state: CallState, doer: int, packets: int, end: int, half: int, call: int, row: int) -> None:
    """Write packets of `call`."""
    cells = len(state.touched.cells)
    total = cells + len(state.touched.slots)
    write_told(state.touched, state, doer, row)
    for each in range(packets, end):
        start = flat.stretches[each, START] + half * flat.stretches[each, HALF]
        for piece in range(flat.stretches[each, COUNT]):
            note_packet(state, start + piece, doer, call, row)
            _copy(state, total + piece, cells + start + piece)


@inlined
def _copy(state: CallState, source: int, target: int) -> None:
    identity, members = state.values
    identity[target] = identity[source]
    for word in range(members.shape[1]):
        members[target, word] = members[source, word]
