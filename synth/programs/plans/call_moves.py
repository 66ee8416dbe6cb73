"""What the kernel that runs the calls of a plan does with data: reads, packets, sums and writes of an operation."""

from __future__ import annotations

import numpy as np

from chorale.synth.kernels.compiled import inlined
from chorale.synth.programs.plans.call_clocks import (
    copy_of,
    hear,
    join,
    push,
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
    OWNER,
    READ,
    ROW,
    TIME,
    CallState,
)
from chorale.synth.programs.plans.flat_plan import (
    AWAITED,
    BY_SWITCH,
    COUNT,
    FIRST_STRETCH,
    FLAGS,
    FLUSHES,
    HALF,
    PACKETS,
    PORT,
    PROXY,
    QUEUE,
    READS,
    SIGNALS,
    START,
    TAKES,
    TOLD,
    WRITES,
    FlatPlan,
)


@inlined
def lacks_packets(flat: FlatPlan, state: CallState, move: int, half: int, call: int) -> bool:
    """Return whether packets that `move` takes have not come yet."""
    first = flat.moves[move, FIRST_STRETCH] + flat.moves[move, READS]
    for each in range(first, first + flat.moves[move, TAKES]):
        start = flat.stretches[each, START] + half * flat.stretches[each, HALF]
        for slot in range(start, start + flat.stretches[each, COUNT]):
            if state.touched.slots[slot, CALL] < call:
                return True
    return False


@inlined
def move_data(flat: FlatPlan, state: CallState, block: int, first_link: int, move: int, half: int, call: int) -> bool:
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
            join(state.knowledge, block)
        doer = flat.links[first_link + port, PROXY]
        push(state.knowledge, block, port, doer)
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
        tell(state.knowledge, block, port, flat.links[link, QUEUE], flat.links[link, PROXY], False)
        if flags & FLUSHES:
            hear(state.knowledge, block, port, copy_of(state.knowledge, doer))
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
    slots, clocks = state.touched.slots, state.knowledge.clocks
    happened = clocks.shape[1] - 1
    for each in range(first, end):
        start = flat.stretches[each, START] + half * flat.stretches[each, HALF]
        for slot in range(start, start + flat.stretches[each, COUNT]):
            if slots[slot, CALL] != call:
                return False
            if not awaited and clocks[doer, happened, slots[slot, OWNER]] < slots[slot, TIME]:
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
                note_write(state, cell, doer, state.knowledge.times[doer], switch)
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
