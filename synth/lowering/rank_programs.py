"""From the instructions of a rank to its thread blocks."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from chorale.synth.kernels import native
from chorale.synth.lowering.fusion import Joins, fuse_ops
from chorale.synth.lowering.placement import Placement
from chorale.synth.lowering.thread_blocks import BlockAssignment, assign_blocks
from chorale.synth.lowering.unscheduled_ops import UnscheduledOps, operand_cells, with_dense_scratch
from chorale.synth.lowering.vector_layout import Column
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import BUFFERS, ColumnBlocks, RankColumns, RankProgram, ThreadBlock


class MemoryBases(NamedTuple):
    """Where each buffer begins in the row of cells of a rank, and how many cells it has."""

    base: Column
    cells: int


def columns_of_blocks(ops: UnscheduledOps, blocks: BlockAssignment, layout: Layout) -> RankColumns:
    """Return the instructions of each of the `blocks` of a rank with all waits they need and none that follow from
    others. `ops` are in a valid sequential order."""
    memory = MemoryBases(np.array([layout.base(buffer) for buffer in BUFFERS]), layout.cells)
    first, rows, *waits = native.columns_of_ops(ops, blocks.of_op, len(blocks.channel), memory)
    columns = [blocks.send_peer, blocks.recv_peer, blocks.channel, first, *rows, *waits]
    return RankColumns(*columns)


class Grouping(NamedTuple):
    """How the instructions of a rank become blocks; stores_sums: whether sums are stored that only others need."""

    max_blocks: int
    fuse: bool
    unfused: Collection[tuple[int, int]]
    stores_sums: bool


def rank_program(placement: Placement, ops: UnscheduledOps, rank: int, grouping: Grouping) -> RankProgram:
    """Return the program of `rank` with the instructions `ops`, fused and in blocks as `grouping` says."""
    scratch = placement.scratch_chunks[rank]
    joins: Joins = {}
    if grouping.fuse:
        layout = placement.shape.layout(rank, scratch)
        result = placement.result_cells(rank, layout)
        operands = operand_cells(ops, layout)
        ops, joins = fuse_ops(ops, *operands, result, grouping.unfused, stores_sums=grouping.stores_sums)
        ops, scratch = with_dense_scratch(ops)
    blocks = assign_blocks(ops, grouping.max_blocks, joins)
    if not len(blocks.channel):
        # Runtimes cannot launch a rank without a block.
        return RankProgram(*placement.used_chunks, scratch, (ThreadBlock(None, None, 0, ()),))
    columns = columns_of_blocks(ops, blocks, placement.shape.layout(rank, scratch))
    return RankProgram(*placement.used_chunks, scratch, ColumnBlocks(columns))
