"""The columns of what one rank executes: its instructions block by block, with their waits."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from chorale.synth.lowering.rank_kernels import MemoryBases, OpColumns, columns_of_ops
from chorale.synth.lowering.thread_blocks import BlockAssignment
from chorale.synth.lowering.unscheduled_ops import UnscheduledOps
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import BUFFERS, RankColumns


def columns_of_blocks(ops: UnscheduledOps, blocks: BlockAssignment, layout: Layout) -> RankColumns:
    """Return the instructions of each of the `blocks` of a rank with all waits they need and none that follow from
    others. `ops` are in a valid sequential order."""
    memory = MemoryBases(np.array([layout.base(buffer) for buffer in BUFFERS]), layout.cells)
    record = OpColumns(*(getattr(ops, item.name) for item in fields(UnscheduledOps)))
    first, rows, *waits = columns_of_ops(record, blocks.of_op, len(blocks.channel), memory)
    columns = [blocks.send_peer, blocks.recv_peer, blocks.channel, first, *rows, *waits]
    return RankColumns(*columns)
