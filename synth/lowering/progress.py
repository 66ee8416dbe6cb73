"""Whether all blocks of a program come to their ends, whatever the data."""

from __future__ import annotations

import numpy as np

from synth.compiled import compiled, inlined
from synth.lowering.flat_program import (
    COUNT,
    FIRST,
    FIRST_NEIGHBOUR,
    FIRST_WAIT,
    FLAGS,
    INCOMING,
    OUTGOING,
    RECEIVES,
    SENDS,
    Code,
    Integers,
    flatten,
)
from synth.lowering.program import QUEUE_DEPTH, Program


def finishes(program: Program) -> bool:
    """Return whether no block hangs, with messages of whole steps and of one chunk. O(messages * neighbours)."""
    flat = flatten(program)
    depth = QUEUE_DEPTH[program.protocol]
    return all(_finishes(flat.code, len(flat.longest), depth, whole) for whole in (True, False))


@inlined
def _waits_are_met(code: Code, at: Integers, item: int) -> bool:
    for wait in range(code.items[item, FIRST_WAIT], code.items[item + 1, FIRST_WAIT]):
        if at[code.waits[wait, 1]] <= code.waits[wait, 0]:
            return False
    return True


@compiled
def _finishes(code: Code, connections: int, depth: int, whole: bool) -> bool:
    blocks = len(code.blocks) - 1
    at = code.blocks[:-1, FIRST].copy()
    moved = np.zeros(blocks, dtype=np.int64)
    queued = np.zeros(connections + 1, dtype=np.int64)  # the last for blocks without a connection
    ready = np.arange(blocks)
    is_ready = np.ones(blocks, dtype=np.bool_)
    size = blocks
    while size > 0:
        size -= 1
        block = ready[size]
        is_ready[block] = False
        incoming, outgoing = code.blocks[block, INCOMING], code.blocks[block, OUTGOING]
        went = False
        while at[block] < code.blocks[block + 1, FIRST]:
            item = at[block]
            receives, sends = code.items[item, FLAGS] & RECEIVES, code.items[item, FLAGS] & SENDS
            starved = (receives and queued[incoming] == 0) or (sends and queued[outgoing] >= depth)
            if starved or not _waits_are_met(code, at, item):
                break
            queued[incoming] -= receives // RECEIVES
            queued[outgoing] += sends // SENDS
            went = True
            moved[block] += 1
            if whole or moved[block] == code.items[item, COUNT]:
                at[block], moved[block] = item + 1, 0
        if went:
            for entry in range(code.blocks[block, FIRST_NEIGHBOUR], code.blocks[block + 1, FIRST_NEIGHBOUR]):
                other = code.neighbours[entry]
                if not is_ready[other]:
                    is_ready[other] = True
                    ready[size] = other
                    size += 1
    return bool((at == code.blocks[1:, FIRST]).all())
