"""Rings along all edge-disjoint Hamiltonian cycles, both ways: every port of a torus is busy all the time."""

from __future__ import annotations

from chorale.synth.collective import Collective
from chorale.synth.grid.pattern import CollectivePattern
from chorale.synth.grid.port import SubCollective
from chorale.synth.rings.disjoint import disjoint_cycles
from chorale.synth.rings.port import meeting_subcollective, ring_subcollective
from chorale.synth.topology.topology import Topology


def hamiltonian_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around every cycle of `disjoint_cycles`, in both directions.

    N - 1 steps each way; every direction of every cycle carries an equal part of the data, so it is bandwidth-optimal.
    On shiftedring:m this is the baseline ShiftedRing of Zhao et al., section 8.2. Source: Swing paper, section 2.3.1.
    """
    ports = [
        ring_subcollective(way, collective, "hamiltonian-ring")
        for order in disjoint_cycles(topology)
        for way in (order, order[::-1])
    ]
    return CollectivePattern(topology, collective, "hamiltonian-ring", {}, tuple(ports))


def bfb_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return BFB by itself on every cycle of `disjoint_cycles`: floor(N / 2) steps each way, bandwidth-optimal.

    On shiftedring:m this is the baseline ShiftedBFBRing. An even cycle has one rank opposite each: half of the data
    comes to it one way, half the other. Source: Zhao et al., appendix F.1.
    """
    half = topology.compute_count // 2
    reaches = [(half, half)] if topology.compute_count % 2 else [(half, half - 1), (half - 1, half)]
    ports: list[SubCollective] = [
        meeting_subcollective(order, ahead, back, collective, "bfb-ring")
        for order in disjoint_cycles(topology)
        for ahead, back in reaches
    ]
    return CollectivePattern(topology, collective, "bfb-ring", {}, tuple(ports))
