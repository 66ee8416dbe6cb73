"""From pieces to instructions of each rank, in an order in which executing one after another is right."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from synth.lowering.columns import Column
from synth.lowering.pieces import Pieces, stretches
from synth.lowering.places import Codes, Places
from synth.lowering.program import Op

OPS = tuple(Op)
_SEND, _RECV, _REDUCE, _COPY = (OPS.index(op) for op in (Op.SEND, Op.RECV, Op.RECV_REDUCE_COPY, Op.COPY))


class Role(IntEnum):
    """What a block is for. Separate blocks for each direction of a connection can wait on each other freely."""

    RECEIVE = 0
    SEND = 1
    LOCAL = 2


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Columns of equal length: instructions without waits, sorted by rank, each rank in a right sequential order.

    channel, role, peer: name the block; their order is that of the blocks. `peer` is -1 for local work
    op: index into OPS; src, dst: places as codes, of the first of `count` chunks
    """

    rank: Column
    channel: Column
    role: Column
    peer: Column
    op: Column
    src: Codes
    dst: Codes
    count: Column

    def of_rank(self, rank: int) -> Drafts:
        """Return the instructions of `rank`."""
        low, high = np.searchsorted(self.rank, [rank, rank + 1])
        return Drafts(*(getattr(self, item.name)[low:high] for item in fields(self)))


def drafts_of(pieces: Pieces, places: Places, longest: int, sends_first: bool = False) -> Drafts:
    """Return the instructions that move `pieces`, and the copies of what belongs into a result and never moved there.

    Instructions are in the order of pieces, the send of a piece just before its receive; where ranks receive into
    what they send, the sends of a turn come before its receives. With `sends_first`, those of a step come before its
    receives everywhere. O(pieces * log(pieces)).
    """
    count = len(pieces)
    number = np.tile(np.arange(count), 2)
    role = np.repeat([Role.SEND, Role.RECEIVE], count)
    late = (sends_first | pieces.exchanged[number]) * (role == Role.RECEIVE)
    rank = np.concatenate([pieces.sender, pieces.receiver])
    receive = np.where(pieces.reduces == 1, _REDUCE, _RECV)
    columns = [
        rank,
        pieces.channel[number],
        role,
        np.concatenate([pieces.receiver, pieces.sender]),
        np.concatenate([np.full(count, _SEND), receive]),
        np.concatenate([pieces.source, pieces.operand]),
        np.concatenate([pieces.source, pieces.target]),
        pieces.count[number],
    ]
    order = np.lexsort((-role, number, late, pieces.turn[number], pieces.step[number], rank))
    copies = _copies(places, longest)
    merged = [np.concatenate([column[order], copy]) for column, copy in zip(columns, copies, strict=True)]
    by_rank = np.argsort(merged[0], kind="stable")
    return Drafts(*(column[by_rank] for column in merged))


def _copies(places: Places, longest: int) -> list[Column]:
    """Return the columns of the copies of what is not in its place at the end."""
    parts = []
    for rank in range(len(places.home)):
        source, target = places.misplaced(rank)
        first, count = stretches((source, target), longest)
        same = np.ones(len(first), dtype=np.int64)
        block = [rank * same, 0 * same, Role.LOCAL * same, -same]
        parts.append([*block, _COPY * same, source[first], target[first], count])
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]
