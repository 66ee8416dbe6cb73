"""Instructions that receive and send at once, where a rank hands on just what arrived."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled
from chorale.synth.lowering.columns import Column
from chorale.synth.lowering.dependences import dependences
from chorale.synth.lowering.drafts import OPS, Role, UnscheduledOps
from chorale.synth.lowering.program import Op

Joins = dict[tuple[int, int], int]
"""Channel and rank received from, to the rank sent to by the same block."""

_RECV, _RRC, _SEND = (OPS.index(op) for op in (Op.RECV, Op.RECV_REDUCE_COPY, Op.SEND))
_RCS, _RRCS, _RRS = (OPS.index(op) for op in (Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY_SEND, Op.RECV_REDUCE_SEND))


def fuse_ops(
    drafts: UnscheduledOps,
    src: Column,
    dst: Column,
    needed_cells: NDArray[np.bool_],
    apart: Collection[tuple[int, int]] = (),
) -> tuple[UnscheduledOps, Joins]:
    """Return the instructions of one rank with receives and sends fused, and which directions then share a block.

    src, dst: the first cell that each instruction reads and writes, -1 for none; kept: bool[cells], what is needed
    after the last instruction; apart: channel and sending rank of receives that stay alone. A send is fused with the
    receive that wrote all it sends, but only between two directions where that leaves few instructions over, because
    in one block these take turns. The order of messages on each connection stays as it is. Sums that nobody reads here
    afterwards are sent without being stored.
    O(cells touched + instructions * log(instructions)).
    """
    receives, sends = _candidates(drafts, src, dst, len(needed_cells))
    keys, key = np.unique(np.stack([drafts.channel, drafts.role, drafts.peer], axis=1), axis=0, return_inverse=True)
    key = key.reshape(-1)
    op = drafts.op.copy()
    gone = np.zeros(len(op), dtype=np.bool_)
    joins: Joins = {}
    for into, out in _pairs(key[receives], key[sends]):
        channel, _, source = keys[into].tolist()
        if (channel, source) in apart:
            continue
        chosen = (key[receives] == into) & (key[sends] == out)
        connection = np.flatnonzero(key == out).tolist()
        pairs = _in_order(connection, receives[chosen].tolist(), sends[chosen].tolist())
        alone = len(connection) + int((key == into).sum()) - 2 * len(pairs)
        # The first send and the last receive of a chain are always alone, and do not get in the way.
        if len(pairs) < 2 or 2 * (alone - 2) > len(pairs):
            continue
        for receive, send in pairs:
            op[receive] = _RCS if op[receive] == _RECV else _RRCS
            gone[send] = True
        joins[channel, source] = int(keys[out, 2])
    src, dst = np.where(op == _RCS, -1, src)[~gone], dst[~gone]
    left = UnscheduledOps(*(getattr(replace(drafts, op=op), item.name)[~gone] for item in fields(UnscheduledOps)))
    needless = ~is_needed(src, dst, left.count, needed_cells) & (left.op == _RRCS)
    left = replace(left, op=np.where(needless, _RRS, left.op), dst=np.where(needless, left.src, left.dst))
    return left, joins


def _candidates(drafts: UnscheduledOps, src: Column, dst: Column, cells: int) -> tuple[Column, Column]:
    """Return the receives and sends that could be one instruction each, by the order of the receives."""
    offsets, earlier = dependences(src, dst, drafts.count, cells)
    sends = np.flatnonzero((drafts.op == _SEND) & (np.diff(offsets) == 1))
    receives = earlier[offsets[sends]]
    fits = (drafts.role[receives] == Role.RECEIVE) & (drafts.channel[receives] == drafts.channel[sends])
    fits &= (dst[receives] == src[sends]) & (drafts.count[receives] == drafts.count[sends])
    order = np.argsort(receives[fits], kind="stable")
    return receives[fits][order], sends[fits][order]


def _pairs(into: Column, out: Column) -> list[tuple[int, int]]:
    """Return disjoint pairs of directions, those with the most candidates first."""
    pairs, counts = np.unique(np.stack([into, out], axis=1), axis=0, return_counts=True)
    taken: set[int] = set()
    found = []
    for index in np.argsort(-counts, kind="stable").tolist():
        first, second = pairs[index].tolist()
        if taken.isdisjoint((first, second)):
            taken.update((first, second))
            found.append((first, second))
    return found


def _in_order(connection: list[int], receives: list[int], sends: list[int]) -> list[tuple[int, int]]:
    """Return the pairs that can be fused without a send overtaking another of its `connection`."""
    place = {send: number for number, send in enumerate(connection)}
    found: list[tuple[int, int]] = []
    last = -1
    for receive, send in zip(receives, sends, strict=True):
        number = place[send]
        before = connection[number - 1] if number else -1
        if number > last and (number == last + 1 or before < receive):
            found.append((receive, send))
            last = number
    return found


@compiled
def is_needed(src: Column, dst: Column, count: Column, needed_cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether anything that each instruction writes is read later or kept."""
    needed = needed_cells.copy()
    result = np.zeros(len(src), dtype=np.bool_)
    for index in range(len(src) - 1, -1, -1):
        if dst[index] >= 0:
            cells = needed[dst[index] : dst[index] + count[index]]
            result[index] = cells.any()
            cells[:] = False
        if src[index] >= 0:
            needed[src[index] : src[index] + count[index]] = True
    return result
