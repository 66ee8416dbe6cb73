"""From fragments to the operations of each rank, in an order in which executing one after another is correct.

Operations know the cells of memory that they read and write, but not yet their thread block or their waits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np

from chorale.synth.distinct import distinct
from chorale.synth.kernels import native
from chorale.synth.lowering.fragment_kernels import SHIFT
from chorale.synth.lowering.fragments import Fragments, contiguous_runs
from chorale.synth.lowering.placement import Placement
from chorale.synth.lowering.rank_kernels import (
    COPY,
    LOCAL_ROLE,
    NO_PEER,
    RECEIVE_ROLE,
    SEND_ROLE,
    FragmentColumns,
    OpColumns,
)
from chorale.synth.lowering.vector_layout import Column, expand_intervals
from chorale.synth.ordering import sorted_order
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import BUFFERS, OPS


class Role(IntEnum):
    """What a block is for. Separate blocks for each direction of a connection can wait on each other freely."""

    RECEIVE = RECEIVE_ROLE
    SEND = SEND_ROLE
    LOCAL = LOCAL_ROLE


@dataclass(frozen=True, slots=True, eq=False)
class UnscheduledOps:
    """Columns of equal length: the instructions of a rank without waits, in a right sequential order.

    channel, role, peer: name the block; their order is that of the blocks. `peer` is -1 for local work
    op: index into OPS; src, dst: places as codes, of the first of `count` chunks
    """

    channel: Column
    role: Column
    peer: Column
    op: Column
    src: Column
    dst: Column
    count: Column


class OpGenerator:
    """Makes, rank by rank, the instructions that move `fragments`, and the copies into results of chunks that never
    moved there.

    Instructions are in the order of fragments, the send of a fragment just before its receive; where ranks receive into
    what they send, the sends of a turn come before its receives. With `sends_first`, those of a step come before its
    receives everywhere. `longest` is the most chunks of a copy. O(fragments * log(fragments)) for all ranks together.
    """

    def __init__(self, fragments: Fragments, placement: Placement, longest: int, sends_first: bool = False) -> None:
        self._columns = FragmentColumns(*(getattr(fragments, item.name) for item in fields(Fragments)))
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
        columns = OpColumns(*native.ordered_ops(self._columns, sent, received, self._sends_first, len(first)))
        if len(first):
            # The copies of what is not in its place at the end.
            places = source[first], target[first], count
            copies = *(np.int64(each) for each in (0, Role.LOCAL, NO_PEER, COPY)), *places
            for column, copy in zip(columns, copies, strict=True):
                column[len(sent) + len(received) :] = copy
        return UnscheduledOps(*columns)


_READS = np.array([op.reads_src for op in OPS])
_WRITES = np.array([op.writes_dst for op in OPS])
_SCRATCH = BUFFERS.index("s")


def operand_cells(ops: UnscheduledOps, layout: Layout) -> tuple[Column, Column]:
    """Return the first cell that each instruction reads and the first that it writes, -1 for none."""
    bases = np.array([layout.base(buffer) for buffer in BUFFERS])
    src, dst = (bases[code >> SHIFT] + (code & (1 << SHIFT) - 1) for code in (ops.src, ops.dst))
    return np.where(_READS[ops.op], src, -1), np.where(_WRITES[ops.op], dst, -1)


def with_dense_scratch(ops: UnscheduledOps) -> tuple[UnscheduledOps, int]:
    """Return the instructions of one rank with scratch chunks that are used numbered anew, and how many these are."""
    reads = _READS[ops.op] & (ops.src >> SHIFT == _SCRATCH)
    writes = _WRITES[ops.op] & (ops.dst >> SHIFT == _SCRATCH)
    first = np.concatenate([ops.src[reads], ops.dst[writes]])
    _, chunks = expand_intervals(first, np.concatenate([ops.count[reads], ops.count[writes]]))
    used = distinct(chunks)
    src, dst = (_SCRATCH << SHIFT) + np.searchsorted(used, (ops.src, ops.dst))
    # Operands that an instruction ignores name its other place.
    src, dst = np.where(reads, src, ops.src), np.where(writes, dst, ops.dst)
    src = np.where(_READS[ops.op], src, dst)
    return replace(ops, src=src, dst=np.where(_WRITES[ops.op], dst, src)), len(used)
