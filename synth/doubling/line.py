"""Recursive halving on one line: peers at distance 1, 2, 4, … and half as many blocks each time."""

from __future__ import annotations

import numpy as np

from chorale.synth.grid.line import LineReduceScatter, LineStep, Positions, halving_steps, require_line_size


def doubling_peers(size: int) -> list[Positions]:
    """Return the peer of each of `size` positions (a power of two) in each of log2 size steps: a XOR 2^s."""
    return [np.arange(size) ^ (1 << step) for step in range(size.bit_length() - 1)]


def halving_line(size: int, returns: bool) -> LineReduceScatter:
    """Return the reduce_scatter by recursive halving on a line of `size` >= 2 positions.

    Where size is no power of two, positions from the largest one p' on hand everything to the position p' before
    them in a first step, which then acts for both. With `returns` it hands them their own block in a last step;
    without, it keeps it, which an allreduce need not mind. O(size^2).

    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005; Swing
    paper, section 2.3.3.
    """
    require_line_size(size)
    kept = 1 << size.bit_length() - 1
    block = np.arange(size)
    steps = halving_steps(doubling_peers(kept), np.where(block < kept, block, block - kept))
    if kept < size:
        folded = np.arange(kept, size)
        steps = [_fold(size, folded, keep_own=returns), *steps]
        steps += [LineStep(folded - kept, folded, folded)] if returns else []
    return LineReduceScatter(size, tuple(steps))


def _fold(size: int, folded: Positions, keep_own: bool) -> LineStep:
    src, block = (part.ravel() for part in np.meshgrid(folded, np.arange(size), indexing="ij"))
    sent = (block != src) | (not keep_own)
    return LineStep(src[sent], src[sent] - folded[0], block[sent])
