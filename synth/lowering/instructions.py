"""Instructions of one rank with their waits, block by block."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from chorale.synth.lowering.columns import Column
from chorale.synth.lowering.dependences import dependences, necessary_waits
from chorale.synth.lowering.drafts import OPS, UnscheduledOps
from chorale.synth.lowering.memory import Layout
from chorale.synth.lowering.operands import operand_cells
from chorale.synth.lowering.places import buffer_ref_of
from chorale.synth.lowering.program import Instruction, Wait

_place = lru_cache(maxsize=2**16)(buffer_ref_of)
_wait = lru_cache(maxsize=2**16)(Wait)


def instructions_of_blocks(
    drafts: UnscheduledOps, block: Column, blocks: int, layout: Layout
) -> list[tuple[Instruction, ...]]:
    """Return the instructions of each of the `blocks` of a rank with all waits they need and none that follow from
    others. `block` says which block each of `drafts`, in a right sequential order, belongs to."""
    cells = operand_cells(drafts, layout)
    offsets, waits = necessary_waits(block, blocks, *dependences(*cells, drafts.count, layout.cells))
    step = _steps(block, blocks)
    pairs = zip(block[waits].tolist(), step[waits].tolist(), strict=True)
    met = [_wait(*pair) for pair in pairs]
    result: list[list[Instruction]] = [[] for _ in range(blocks)]
    columns = (block, drafts.op, drafts.src, drafts.dst, drafts.count, offsets[:-1], offsets[1:])
    for own, op, source, target, count, low, high in zip(*(column.tolist() for column in columns), strict=True):
        needed = tuple(sorted(met[low:high], key=_by_place)) if high > low + 1 else tuple(met[low:high])
        result[own].append(Instruction(OPS[op], _place(source), _place(target), count, needed))
    return [tuple(items) for items in result]


def _by_place(wait: Wait) -> tuple[int, int]:
    return wait.block, wait.step


def _steps(block: Column, blocks: int) -> Column:
    """Return the number of each instruction within its block."""
    order = np.argsort(block, kind="stable")
    sizes = np.bincount(block, minlength=blocks)
    step = np.empty(len(block), dtype=np.int64)
    step[order] = np.arange(len(block)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return step
