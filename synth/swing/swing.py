"""Swing: allreduce whose peers swing from one side to the other, so that they stay close on a torus.

Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", 2024 (arXiv 2401.09356).
"""

from __future__ import annotations

from chorale.synth.collective import Collective
from chorale.synth.grid.exchange import ExchangeRounds
from chorale.synth.grid.order import round_robin
from chorale.synth.grid.pattern import CollectivePattern
from chorale.synth.grid.ports import reduce_scatters, require_allreduce, subcollective_for, vector_exchanges
from chorale.synth.swing.line import swing_line, swing_peers
from chorale.synth.topology.grid import grid_shape
from chorale.synth.topology.topology import Topology


def swing(topology: Topology, collective: Collective, all_ports: bool = True) -> CollectivePattern:
    """Return bandwidth-optimal Swing on the grid of `topology`: reduce_scatter, allgather or both.

    Any number of dimensions of any sizes; the sum over dimensions of ceil(log2 size) steps for reduce_scatter (of
    size - 1 where a size is odd). With `all_ports` a plain and a mirrored collective begin in each dimension
    (section 4), else there is one. broadcast and reduce go along the tree of the root's shard.
    """
    lines = [swing_line(size) for size in grid_shape(topology)]
    ports = [subcollective_for(port, collective, "swing") for port in reduce_scatters(lines, round_robin, all_ports)]
    return CollectivePattern(topology, collective, "swing", {"all_ports": all_ports}, tuple(ports))


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
    ports = vector_exchanges(lines, all_ports)
    return CollectivePattern(topology, collective, "swing-latency", parameters, tuple(ports))
