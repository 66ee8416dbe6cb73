"""Swing: allreduce whose peers swing from one side to the other, so that they stay close on a torus.

Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", 2024 (arXiv 2401.09356).
"""

from __future__ import annotations

import numpy as np

from chorale.synth.collective import Collective
from chorale.synth.methods.grid.lines import (
    LineReduceScatter,
    LineStep,
    Positions,
    grid_shape,
    halving_steps,
    require_line_size,
    round_robin,
)
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import ExchangeRounds, grid_collectives, require_allreduce, vector_exchanges
from chorale.synth.topology.topology import Topology


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

    On an odd size the last position stays outside: it hands about half of the remaining blocks, in every step,
    directly to their positions, which hand it theirs (section 3.2, figure 4). O(size^2).
    """
    require_line_size(size)
    even = size - size % 2
    steps = halving_steps(swing_peers(even), np.arange(even))
    return LineReduceScatter(size, tuple(_with_odd_position(steps, even) if size % 2 else steps))


def _with_odd_position(steps: list[LineStep], odd: int) -> list[LineStep]:
    result, first = [], 0
    for number, step in enumerate(steps):
        remaining = odd - first
        end = first + (remaining + 1) // 2 if number + 1 < len(steps) else odd
        group, odd_position = np.arange(first, end), np.full(end - first, odd)
        columns = ((step.src, odd_position, group), (step.dst, group, odd_position), (step.block, group, odd_position))
        result.append(LineStep(*(np.concatenate(parts) for parts in columns)))
        first = end
    return result


def swing(topology: Topology, collective: Collective, all_ports: bool = True) -> CollectivePattern:
    """Return bandwidth-optimal Swing on the grid of `topology`: reduce_scatter, allgather or both.

    Any number of dimensions of any sizes; the sum over dimensions of ceil(log2 size) steps for reduce_scatter (of
    size - 1 where a size is odd). With `all_ports` a plain and a mirrored collective begin in each dimension
    (section 4), else there is one. broadcast and reduce go along the tree of the root's shard.
    """
    lines = [swing_line(size) for size in grid_shape(topology)]
    parts = grid_collectives(lines, round_robin, all_ports, collective, "swing")
    return CollectivePattern(topology, collective, "swing", {"all_ports": all_ports}, parts)


def swing_latency(topology: Topology, collective: Collective, all_ports: bool = True) -> CollectivePattern:
    """Return latency-optimal Swing: an allreduce that exchanges whole vectors, log2 N steps for powers of two.

    Dimensions of other sizes are folded onto the largest power of two first, one step each, and unfolded at the
    end. broadcast and reduce are those of `swing`, which take as few steps. Source: section 3.1.2.
    """
    parameters = {"all_ports": all_ports}
    if collective.root is not None:
        pattern = swing(topology, collective, all_ports)
        return CollectivePattern(topology, collective, "swing-latency", parameters, pattern.subcollectives)
    require_allreduce(collective, "swing-latency")
    lines = [ExchangeRounds.of(size, swing_peers(1 << size.bit_length() - 1)) for size in grid_shape(topology)]
    parts = vector_exchanges(lines, all_ports)
    return CollectivePattern(topology, collective, "swing-latency", parameters, parts)
