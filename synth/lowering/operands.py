"""What the instructions of a rank touch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chorale.synth.lowering.columns import Column, expand_intervals
from chorale.synth.lowering.drafts import OPS, UnscheduledOps
from chorale.synth.lowering.memory import Layout
from chorale.synth.lowering.places import BUFFERS, SHIFT

_READS = np.array([op.reads_src for op in OPS])
_WRITES = np.array([op.writes_dst for op in OPS])
_SCRATCH = BUFFERS.index("s")


def operand_cells(drafts: UnscheduledOps, layout: Layout) -> tuple[Column, Column]:
    """Return the first cell that each instruction reads and the first that it writes, -1 for none."""
    bases = np.array([layout.base(buffer) for buffer in BUFFERS])
    src, dst = (bases[code >> SHIFT] + (code & (1 << SHIFT) - 1) for code in (drafts.src, drafts.dst))
    return np.where(_READS[drafts.op], src, -1), np.where(_WRITES[drafts.op], dst, -1)


def with_dense_scratch(drafts: UnscheduledOps) -> tuple[UnscheduledOps, int]:
    """Return the instructions of one rank with scratch chunks that are used numbered anew, and how many these are."""
    reads = _READS[drafts.op] & (drafts.src >> SHIFT == _SCRATCH)
    writes = _WRITES[drafts.op] & (drafts.dst >> SHIFT == _SCRATCH)
    first = np.concatenate([drafts.src[reads], drafts.dst[writes]])
    _, chunks = expand_intervals(first, np.concatenate([drafts.count[reads], drafts.count[writes]]))
    used = np.unique(chunks)
    src, dst = (_SCRATCH << SHIFT) + np.searchsorted(used, (drafts.src, drafts.dst))
    # Operands that an instruction ignores name its other place.
    src, dst = np.where(reads, src, drafts.src), np.where(writes, dst, drafts.dst)
    src = np.where(_READS[drafts.op], src, dst)
    return replace(drafts, src=src, dst=np.where(_WRITES[drafts.op], dst, src)), len(used)
