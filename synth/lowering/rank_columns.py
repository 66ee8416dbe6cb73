"""The columns of what one rank executes: its instructions block by block, with their waits."""

from __future__ import annotations

import numpy as np

from chorale.synth.lowering.dependences import dependences, necessary_waits
from chorale.synth.lowering.placement import OFFSET_MASK, SHIFT
from chorale.synth.lowering.thread_blocks import BlockAssignment, BlockKey
from chorale.synth.lowering.unscheduled_ops import UnscheduledOps, operand_cells
from chorale.synth.programs.columns import NO_PEER, RankColumns, ends_of
from chorale.synth.programs.memory import Layout


def columns_of_blocks(ops: UnscheduledOps, blocks: BlockAssignment, layout: Layout) -> RankColumns:
    """Return the instructions of each of the `blocks` of a rank with all waits they need and none that follow from
    others. `ops` are in a valid sequential order."""
    block, count = blocks.of_op, len(blocks.keys)
    cells = operand_cells(ops, layout)
    offsets, waits = necessary_waits(block, count, *dependences(*cells, ops.count, layout.cells))
    order = np.argsort(block, kind="stable")
    first = ends_of(np.bincount(block, minlength=count))
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    met_block, met_step = block[waits], position[waits] - first[block[waits]]
    waits_of = np.diff(offsets)
    by_place = np.lexsort((met_step, met_block, np.repeat(position, waits_of)))
    src, dst = ops.src[order], ops.dst[order]
    send, recv, channel = (np.array(side, dtype=np.int64) for side in zip(*map(_end_numbers, blocks.keys), strict=True))
    return RankColumns(
        send_peer=send,
        recv_peer=recv,
        channel=channel,
        first=first,
        op=ops.op[order],
        src_buffer=src >> SHIFT,
        src_offset=src & OFFSET_MASK,
        dst_buffer=dst >> SHIFT,
        dst_offset=dst & OFFSET_MASK,
        count=ops.count[order],
        first_wait=ends_of(waits_of[order]),
        wait_block=met_block[by_place],
        wait_step=met_step[by_place],
    )


def _end_numbers(key: BlockKey) -> tuple[int, int, int]:
    send, recv, channel = key
    return NO_PEER if send is None else send, NO_PEER if recv is None else recv, channel
