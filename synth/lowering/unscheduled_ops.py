"""From fragments to the operations of each rank, in an order in which executing one after another is correct.

Operations know the cells of memory that they read and write, but not yet their thread block or their waits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from chorale.synth.distinct import distinct
from chorale.synth.kernels import native
from chorale.synth.lowering.fragments import Fragments, contiguous_runs
from chorale.synth.lowering.placement import SHIFT, Placement
from chorale.synth.lowering.vector_layout import Column, expand_intervals
from chorale.synth.ordering import sorted_order
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import BUFFERS, OPS, Op

NO_PEER = -1


class Role(IntEnum):
    """What a block is for. Separate blocks for each direction of a connection can wait on each other freely."""

    RECEIVE = 0
    SEND = 1
    LOCAL = 2


class UnscheduledOps(NamedTuple):
    """Columns of equal length: the instructions of a rank without waits, in a right sequential order.

    channel, role, peer: name the block; their order is that of the blocks. `peer` is NO_PEER for local work
    op: index into OPS; src, dst: places as codes, of the first of `chunks`
    """

    channel: Column
    role: Column
    peer: Column
    op: Column
    src: Column
    dst: Column
    chunks: Column


class OpGenerator:
    """Makes, rank by rank, the instructions that move `fragments`, and the copies into results of chunks that never
    moved there.

    Instructions are in the order of fragments, the send of a fragment just before its receive; where ranks receive into
    what they send, the sends of a turn come before its receives. With `sends_first`, those of a step come before its
    receives everywhere. `longest` is the most chunks of a copy. O(fragments * log(fragments)) for all ranks together.
    """

    def __init__(self, fragments: Fragments, placement: Placement, longest: int, sends_first: bool = False) -> None:
        self._fragments = fragments
        self._placement = placement
        self._longest = longest
        self._sends_first = sends_first
        ranks = np.arange(placement.shape.ranks + 1)
        columns = (fragments.sender, fragments.receiver)
        self._orders = [sorted_order((column,)) for column in columns]
        self._bounds = [
            np.searchsorted(column[order], ranks) for column, order in zip(columns, self._orders, strict=True)
        ]

    def of_rank(self, rank: int) -> UnscheduledOps:
        """Return the instructions of `rank`. O(its fragments * log(its fragments) + chunks of its result)."""
        sent, received = (
            order[bounds[rank] : bounds[rank + 1]] for order, bounds in zip(self._orders, self._bounds, strict=True)
        )
        source, target = self._placement.misplaced(rank)
        first, count = contiguous_runs((source, target), self._longest)
        columns = UnscheduledOps(*native.ordered_ops(self._fragments, sent, received, self._sends_first, len(first)))
        if len(first):
            # The copies of what is not in its place at the end.
            places = source[first], target[first], count
            copies = *(np.int64(each) for each in (0, Role.LOCAL, NO_PEER, OPS.index(Op.COPY))), *places
            for column, copy in zip(columns, copies, strict=True):
                column[len(sent) + len(received) :] = copy
        return columns


_READS = np.array([op.reads_src for op in OPS])
_WRITES = np.array([op.writes_dst for op in OPS])
_SCRATCH = BUFFERS.index("s")


def operand_cells(ops: UnscheduledOps, layout: Layout) -> tuple[Column, Column]:
    """Return the first cell that each instruction reads and the first that it writes, -1 for none."""
    bases = np.array([layout.base(buffer) for buffer in BUFFERS])
    src, dst = (bases[code >> SHIFT] + (code & (1 << SHIFT) - 1) for code in (ops.src, ops.dst))
    return np.where(_READS[ops.op], src, -1), np.where(_WRITES[ops.op], dst, -1)


def with_dense_scratch(ops: UnscheduledOps) -> tuple[UnscheduledOps, int]:
    """Return the instructions of one rank with renumbered scratch chunks, and the number of scratch chunks used."""
    reads = _READS[ops.op] & (ops.src >> SHIFT == _SCRATCH)
    writes = _WRITES[ops.op] & (ops.dst >> SHIFT == _SCRATCH)
    first = np.concatenate([ops.src[reads], ops.dst[writes]])
    _, chunks = expand_intervals(first, np.concatenate([ops.chunks[reads], ops.chunks[writes]]))
    used = distinct(chunks)
    src, dst = (_SCRATCH << SHIFT) + np.searchsorted(used, (ops.src, ops.dst))
    # Operands that an instruction ignores name its other place.
    src, dst = np.where(reads, src, ops.src), np.where(writes, dst, ops.dst)
    src = np.where(_READS[ops.op], src, dst)
    return ops._replace(src=src, dst=np.where(_WRITES[ops.op], dst, src)), len(used)
