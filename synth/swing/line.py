"""Swing on one line: with whom a position talks in which step, and what it hands on."""

from __future__ import annotations

import numpy as np

from chorale.synth.grid.line import LineReduceScatter, LineStep, Positions, halving_steps, require_line_size


def swing_distance(step: int) -> int:
    """Return rho(step) = 1 - 2 + 4 - … = (1 - (-2)^(step + 1)) / 3; its absolute value is the distance delta.

    Source: Swing paper, section 3.1.1.
    """
    return int((1 - (-2) ** (step + 1)) // 3)


def swing_peers(size: int) -> list[Positions]:
    """Return the peer of each of `size` positions (an even number) in each of ceil(log2 size) steps.

    Even positions go rho(s) ahead, odd ones rho(s) back, modulo size (equation 2).
    """
    position = np.arange(size)
    sign = np.where(position % 2 == 0, 1, -1)
    return [(position + sign * swing_distance(step)) % size for step in range((size - 1).bit_length())]


def swing_line(size: int) -> LineReduceScatter:
    """Return Swing's reduce_scatter on a line of `size` >= 2 positions in ceil(log2 size) steps (size - 1 if odd).

    On an odd size the last position stays outside: it hands about half of the blocks that are left, in every step,
    directly to their positions, which hand it theirs (section 3.2, figure 4). O(size^2).
    """
    require_line_size(size)
    even = size - size % 2
    steps = halving_steps(swing_peers(even), np.arange(even))
    return LineReduceScatter(size, tuple(_with_odd_one(steps, even) if size % 2 else steps))


def _with_odd_one(steps: list[LineStep], odd: int) -> list[LineStep]:
    result, first = [], 0
    for number, step in enumerate(steps):
        left = odd - first
        end = first + (left + 1) // 2 if number + 1 < len(steps) else odd
        group, odd_one = np.arange(first, end), np.full(end - first, odd)
        columns = ((step.src, odd_one, group), (step.dst, group, odd_one), (step.block, group, odd_one))
        result.append(LineStep(*(np.concatenate(parts) for parts in columns)))
        first = end
    return result
