"""A ring around one line: every position passes partial sums on to the next."""

from __future__ import annotations

import numpy as np

from chorale.synth.grid.line import LineReduceScatter, LineStep, require_line_size


def ring_line(size: int) -> LineReduceScatter:
    """Return the reduce_scatter around a line of `size` >= 2 positions in size - 1 steps.

    In step t position a hands the sum of block a - 1 - t on to a + 1, modulo size. O(size^2).
    """
    require_line_size(size)
    position = np.arange(size)
    following = (position + 1) % size
    return LineReduceScatter(
        size, tuple(LineStep(position, following, (position - 1 - step) % size) for step in range(size - 1))
    )
