"""From the instructions of a rank to its thread blocks."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from chorale.synth.lowering.fusion import Joins, fuse_ops
from chorale.synth.lowering.placement import Placement
from chorale.synth.lowering.rank_columns import columns_of_blocks
from chorale.synth.lowering.thread_blocks import assign_blocks
from chorale.synth.lowering.unscheduled_ops import UnscheduledOps, operand_cells, with_dense_scratch
from chorale.synth.programs.program import ColumnBlocks, RankProgram, ThreadBlock


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
