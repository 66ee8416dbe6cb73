"""Executes a program on sets of contributions, as machine code.

Blocks are strictly sequential. A message is the part of an instruction that travels at once; a connection holds
at most `depth` messages that have been sent and not yet received. A step starts when all its waits are met; a
receiving step needs an arrived message, a sending step a free slot, a fused step both.

A single loop iteration is enough. Real runtimes loop over parts of long chunks, every block for itself. Blocks have
no choices, so what a program can do does not depend on the order in which blocks go on: all of one iteration can be
done before the next begins, and then every queue is empty again. Iterations touch disjoint elements.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.flat_program import (
    BASE,
    COUNT,
    DST,
    FIRST,
    FIRST_NEIGHBOUR,
    FIRST_WAIT,
    FLAGS,
    INCOMING,
    OUTGOING,
    READS_DST,
    READS_SRC,
    RECEIVES,
    SAVED,
    SENDS,
    SRC,
    WRITES_DST,
    Code,
    Integers,
)
from chorale.synth.programs.postconditions import NOTHING, ChunkValues
from chorale.synth.programs.race_clocks import Accesses, copy_clock, merge_clock, note_read, note_write

FORWARD, REVERSE, RANDOM = 0, 1, 2
RANDOM_REACH = 64
"""In random order, the next block is one of so many."""

OTHER_CHUNK, TWICE, RACE = 1, 2, 3
FIRST_MARK = -2
"""What a chunk is that comes from one that was never written: this, less the number of the instruction that read it."""
PC, MOVED = 0, 1
QUEUE, SPAN, SENT, RECEIVED = 0, 1, 2, 3
SPARE_CELLS = 2


class RunConditions(NamedTuple):
    """How a run goes: messages a connection holds, chunks of a message, order of the blocks.

    FORWARD: every block as far as it gets, the one that could go on first before others; REVERSE: the one that
    could go on last before others; RANDOM: one message at a time, in an order drawn from `seed`.
    first_saved, first_message: where in the clocks the rows begin that belong to what is waited on, and to messages
    """

    depth: int
    message_chunks: int
    order: int
    seed: int
    first_saved: int
    first_message: int


class ExecutionState(NamedTuple):
    """Where an execution stands.

    values:   memory of all ranks, then what is on its way and what it was added to, then the slots of all queues
    progress: int64[blocks, 2]: the next instruction, and how many of its chunks are done
    queues:   int64[connections, 4]: first cell, cells of a slot, messages sent and received so far
    clocks:   of all blocks, then of what is waited on, then of messages, unless only order in a rank counts;
              without rows, races are not looked for
    accesses: of all cells of memory
    fault:    int64[3]: kind of the first fault (0: none), its block, and for a race the other block
    """

    values: ChunkValues
    progress: Matrix[np.int64]
    queues: Matrix[np.int64]
    clocks: Matrix[np.int32]
    accesses: Accesses
    fault: Integers


@compiled
def execute(code: Code, state: ExecutionState, conditions: RunConditions, value: int) -> None:
    """Go on to the end: all is done, nothing can go on, or there is a fault. `value`: first cell after the memory.

    A block gets a turn at the start and whenever a block went on that it may be waiting for.
    O(messages * blocks that depend on one another).
    """
    blocks = len(state.progress)
    ready = np.arange(blocks)
    waiting = np.ones(blocks, dtype=np.bool_)
    head, size, random = 0, blocks, np.uint64(conditions.seed)
    while size > 0 and state.fault[0] == 0:
        if conditions.order == RANDOM:
            random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            other = (head + int(random >> np.uint64(33)) % min(size, RANDOM_REACH)) % blocks
            ready[head], ready[other] = ready[other], ready[head]
        if conditions.order == REVERSE:
            block = ready[(head + size - 1) % blocks]
        else:
            block = ready[head]
            head = (head + 1) % blocks
        size -= 1
        waiting[block] = False
        went = False
        while _can_go_on(code, state.progress, state.queues, conditions.depth, block) and state.fault[0] == 0:
            _advance(code, state, conditions, value, block)
            went = True
            if conditions.order == RANDOM:
                break
        last = code.blocks[block + 1, FIRST_NEIGHBOUR] if went else -1
        for position in range(code.blocks[block, FIRST_NEIGHBOUR], last + 1):
            woken = block if position == last else code.neighbours[position]
            if not waiting[woken] and state.progress[woken, PC] < code.blocks[woken + 1, FIRST]:
                waiting[woken] = True
                ready[(head + size) % blocks] = woken
                size += 1


@inlined
def _can_go_on(code: Code, progress: Matrix[np.int64], queues: Matrix[np.int64], depth: int, block: int) -> bool:
    items, waits, blocks, _ = code
    item = progress[block, PC]
    if item == blocks[block + 1, FIRST]:
        return False
    if progress[block, MOVED] == 0:
        for wait in range(items[item, FIRST_WAIT], items[item + 1, FIRST_WAIT]):
            if progress[waits[wait, 1], PC] <= waits[wait, 0]:
                return False
    source, target = blocks[block, INCOMING], blocks[block, OUTGOING]
    if items[item, FLAGS] & RECEIVES and queues[source, SENT] == queues[source, RECEIVED]:
        return False
    return not (items[item, FLAGS] & SENDS and queues[target, SENT] - queues[target, RECEIVED] >= depth)


@inlined
def _advance(code: Code, state: ExecutionState, conditions: RunConditions, value: int, block: int) -> None:
    """Do the next message of `block`, or all of an instruction that sends and receives nothing at once."""
    items, progress, clocks = code.items, state.progress, state.clocks
    item, moved = progress[block, PC], progress[block, MOVED]
    if len(clocks) > 0:
        clocks[block, block - code.blocks[block, BASE]] += 1
        if moved == 0:
            for wait in range(items[item, FIRST_WAIT], items[item + 1, FIRST_WAIT]):
                merge_clock(clocks, block, conditions.first_saved + items[code.waits[wait, 0], SAVED])
    span = items[item, COUNT] - moved
    if items[item, FLAGS] & (RECEIVES | SENDS):
        span = min(span, conditions.message_chunks)
    _move(code, state, conditions, value, block, span)
    progress[block, MOVED] += span
    if state.fault[0] == 0 and progress[block, MOVED] == items[item, COUNT]:
        if len(clocks) > 0 and items[item, SAVED] >= 0:
            copy_clock(clocks, block, conditions.first_saved + items[item, SAVED])
        progress[block, PC] += 1
        progress[block, MOVED] = 0


@inlined
def _move(code: Code, state: ExecutionState, conditions: RunConditions, value: int, block: int, span: int) -> None:
    """Move `span` chunks of the next instruction of `block`."""
    item, moved = state.progress[block, PC], state.progress[block, MOVED]
    flags = code.items[item, FLAGS]
    arrived = left = -1
    if flags & RECEIVES:
        source = code.blocks[block, INCOMING]
        arrived = _next_slot(state.queues, source, RECEIVED, conditions.depth)
        if conditions.first_message < len(state.clocks):
            merge_clock(state.clocks, block, _clock_row(state.queues, source, RECEIVED, conditions))
    if flags & SENDS:
        target = code.blocks[block, OUTGOING]
        left = _next_slot(state.queues, target, SENT, conditions.depth)
        if conditions.first_message < len(state.clocks):
            copy_clock(state.clocks, block, _clock_row(state.queues, target, SENT, conditions))
    src, dst = code.items[item, SRC] + moved, code.items[item, DST] + moved
    base = code.blocks[block, BASE]
    for chunk in range(span):
        if len(state.clocks) > 0 and _races(state, flags, block, base, src + chunk, dst + chunk):
            return
        fault = _work(state.values, flags, item, value, src + chunk, dst + chunk, arrived + chunk, left + chunk)
        if fault != 0:
            state.fault[0], state.fault[1] = fault, block
            return
    if flags & RECEIVES:
        state.queues[code.blocks[block, INCOMING], RECEIVED] += 1
    if flags & SENDS:
        state.queues[code.blocks[block, OUTGOING], SENT] += 1


@inlined
def _next_slot(queues: Matrix[np.int64], connection: int, counter: int, depth: int) -> int:
    return int(queues[connection, QUEUE] + queues[connection, counter] % depth * queues[connection, SPAN])


@inlined
def _clock_row(queues: Matrix[np.int64], connection: int, counter: int, conditions: RunConditions) -> int:
    depth = conditions.depth
    return int(conditions.first_message + connection * depth + queues[connection, counter] % depth)


@inlined
def _races(state: ExecutionState, flags: int, block: int, base: int, src: int, dst: int) -> bool:
    """Note the accesses to one chunk; return whether one of them races."""
    found = state.fault
    other = -1
    if flags & READS_SRC:
        other = note_read(state.clocks, state.accesses, block, base, src)
    if other < 0 and flags & READS_DST:
        other = note_read(state.clocks, state.accesses, block, base, dst)
    if other < 0 and flags & WRITES_DST:
        other = note_write(state.clocks, state.accesses, block, base, dst)
    if other >= 0:
        found[0], found[1], found[2] = RACE, block, other
    return other >= 0


@inlined
def _work(values: ChunkValues, flags: int, item: int, value: int, src: int, dst: int, arrived: int, left: int) -> int:
    """Do one chunk of instruction `item` in cell `value`; return which fault there is, 0 for none."""
    fault = 0
    if flags & RECEIVES:
        _copy(values, arrived, value)
    if flags & READS_SRC:
        if flags & RECEIVES:
            fault = _add(values, src, value, item)
        else:
            _copy(values, src, value)
            if values.identity[value] == NOTHING:
                values.identity[value] = FIRST_MARK - item
    if flags & READS_DST and fault == 0:
        fault = _add(values, dst, value, item)
    if flags & WRITES_DST and fault == 0:
        _copy(values, value, dst)
    if flags & SENDS and fault == 0:
        _copy(values, value, left)
    return fault


@inlined
def _copy(values: ChunkValues, source: int, target: int) -> None:
    identity, members = values
    identity[target] = identity[source]
    for word in range(members.shape[1]):
        members[target, word] = members[source, word]


@inlined
def _add(values: ChunkValues, cell: int, value: int, item: int) -> int:
    """Add `cell` to `value`; where that has no meaning, copy it to the cell after `value` and return why.

    Whatever is added to a chunk that comes from one that was never written makes another such chunk.
    """
    identity, members = values
    if identity[value] < 0:
        return 0
    if identity[cell] < 0:
        identity[value] = identity[cell] if identity[cell] != NOTHING else FIRST_MARK - item
        return 0
    words = members.shape[1]
    shared = np.uint64(1 if words == 0 else 0)
    for word in range(words):
        shared |= members[cell, word] & members[value, word]
    if identity[cell] != identity[value] or shared != 0:
        _copy(values, cell, value + 1)
        return TWICE if identity[cell] == identity[value] else OTHER_CHUNK
    for word in range(words):
        members[value, word] |= members[cell, word]
    return 0
