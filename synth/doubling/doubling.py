"""Recursive doubling, and recursive halving and doubling (Rabenseifner), in an order of dimensions that suits tori.

Sources: Thakur, Rabenseifner, Gropp, 2005; Sack and Gropp, "Collective algorithms for multiported torus networks",
2015; Swing paper, sections 2.3.2, 2.3.3 and 4.1 (mirrored).
"""

from __future__ import annotations

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.doubling.line import doubling_peers, halving_line
from chorale.synth.grid.exchange import ExchangeRounds
from chorale.synth.grid.order import round_robin
from chorale.synth.grid.pattern import CollectivePattern
from chorale.synth.grid.ports import reduce_scatters, require_allreduce, subcollective_for, vector_exchanges
from chorale.synth.topology.grid import grid_shape
from chorale.synth.topology.topology import Topology


def rabenseifner(topology: Topology, collective: Collective, all_ports: bool = False) -> CollectivePattern:
    """Return recursive halving (reduce_scatter), doubling (allgather) or both (allreduce) on the grid of `topology`.

    A peer at distance 1, 2, 4, … in one dimension after the other; log2 N steps each way for powers of two, one
    more for each other size (two for reduce_scatter and allgather alone). One port, as in the literature, or with
    `all_ports` mirrored: plain and mirrored collectives from every dimension. broadcast and reduce go along the
    tree of the root's shard.
    """
    returns = collective.name != CollectiveName.ALLREDUCE
    lines = [halving_line(size, returns) for size in grid_shape(topology)]
    ports = [
        subcollective_for(port, collective, "rabenseifner") for port in reduce_scatters(lines, round_robin, all_ports)
    ]
    return CollectivePattern(topology, collective, "rabenseifner", {"all_ports": all_ports}, tuple(ports))


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
    ports = vector_exchanges(lines, all_ports)
    return CollectivePattern(topology, collective, "recursive-doubling", parameters, tuple(ports))
