"""Recursive doubling, and recursive halving and doubling (Rabenseifner), in an order of dimensions that suits tori.

Peers are at distance 1, 2, 4, …, and each step of the halving moves half as many blocks as the step before.
Sources: Thakur, Rabenseifner, Gropp, 2005; Sack and Gropp, "Collective algorithms for multiported torus networks",
2015; Swing paper, sections 2.3.2, 2.3.3 and 4.1 (mirrored).
"""

from __future__ import annotations

import numpy as np

from chorale.synth.collective import Collective, CollectiveName
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
    active = 1 << size.bit_length() - 1
    block = np.arange(size)
    steps = halving_steps(doubling_peers(active), np.where(block < active, block, block - active))
    if active < size:
        folded = np.arange(active, size)
        steps = [_fold(size, folded, keep_home_block=returns), *steps]
        steps += [LineStep(folded - active, folded, folded)] if returns else []
    return LineReduceScatter(size, tuple(steps))


def _fold(size: int, folded: Positions, keep_home_block: bool) -> LineStep:
    src, block = (part.ravel() for part in np.meshgrid(folded, np.arange(size), indexing="ij"))
    sent = (block != src) | (not keep_home_block)
    return LineStep(src[sent], src[sent] - folded[0], block[sent])


def rabenseifner(topology: Topology, collective: Collective, all_ports: bool = False) -> CollectivePattern:
    """Return recursive halving (reduce_scatter), doubling (allgather) or both (allreduce) on the grid of `topology`.

    A peer at distance 1, 2, 4, … in one dimension after the other; log2 N steps each way for powers of two, one
    more for each other size (two for reduce_scatter and allgather alone). One port, as in the literature, or with
    `all_ports` mirrored: plain and mirrored collectives from every dimension. broadcast and reduce go along the
    tree of the root's shard.
    """
    returns = collective.name != CollectiveName.ALLREDUCE
    lines = [halving_line(size, returns) for size in grid_shape(topology)]
    parts = grid_collectives(lines, round_robin, all_ports, collective, "rabenseifner")
    return CollectivePattern(topology, collective, "rabenseifner", {"all_ports": all_ports}, parts)


def recursive_doubling(topology: Topology, collective: Collective, all_ports: bool = False) -> CollectivePattern:
    """Return the allreduce that exchanges whole vectors with the peers of `rabenseifner`: log2 N steps.

    Dimensions that are no powers of two are folded onto the largest power of two first, one step each, and unfolded
    at the end. broadcast and reduce are those of `rabenseifner`. `all_ports`: mirrored, as there.
    """
    parameters = {"all_ports": all_ports}
    if collective.root is not None:
        pattern = rabenseifner(topology, collective, all_ports)
        return CollectivePattern(topology, collective, "recursive-doubling", parameters, pattern.subcollectives)
    require_allreduce(collective, "recursive-doubling")
    lines = [ExchangeRounds.of(size, doubling_peers(1 << size.bit_length() - 1)) for size in grid_shape(topology)]
    parts = vector_exchanges(lines, all_ports)
    return CollectivePattern(topology, collective, "recursive-doubling", parameters, parts)
