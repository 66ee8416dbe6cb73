"""Which blocks of a program never come to their ends, whatever the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled, inlined
from chorale.synth.lowering.flat_program import (
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
from chorale.synth.lowering.program import QUEUE_DEPTH, Program


def hanging_blocks(program: Program) -> list[tuple[int, int]]:
    """Return rank and number of the blocks that never end, with messages of whole steps or else of one chunk.
    O(messages * neighbours)."""
    flat = flatten(program)
    depth = QUEUE_DEPTH[program.protocol]
    for whole in (True, False):
        hanging = np.flatnonzero(_unfinished(flat.code, len(flat.longest), depth, whole))
        if len(hanging):
            rank = np.searchsorted(flat.first_block, hanging, side="right") - 1
            numbers = hanging - np.array(flat.first_block)[rank]
            return list(zip(rank.tolist(), numbers.tolist(), strict=True))
    return []


def one_block_per_cycle(program: Program, hanging: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return rank, channel and sending rank of one block of each circle of `hanging` blocks that hand on to one
    another; where no circle closes, of the first such block of each channel."""
    blocks = [(rank, program.ranks[rank].blocks[number]) for rank, number in hanging]
    target = {
        (rank, block.channel, block.recv_peer): block.send_peer
        for rank, block in blocks
        if block.send_peer is not None and block.recv_peer is not None
    }
    seen: set[tuple[int, int, int]] = set()
    found = []
    for start in sorted(target):
        path: dict[tuple[int, int, int], None] = {}
        at = start
        while at in target and at not in seen and at not in path:
            path[at] = None
            at = (target[at], at[1], at[0])
        if at in path:
            found.append(at)
        seen.update(path)
    firsts: dict[int, tuple[int, int, int]] = {}
    for each in sorted(target):
        firsts.setdefault(each[1], each)
    return found or list(firsts.values())


@inlined
def _waits_are_met(code: Code, at: Integers, item: int) -> bool:
    for wait in range(code.items[item, FIRST_WAIT], code.items[item + 1, FIRST_WAIT]):
        if at[code.waits[wait, 1]] <= code.waits[wait, 0]:
            return False
    return True


@compiled
def _unfinished(code: Code, connections: int, depth: int, whole: bool) -> NDArray[np.bool_]:
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
    unfinished: NDArray[np.bool_] = at < code.blocks[1:, FIRST]
    return unfinished
