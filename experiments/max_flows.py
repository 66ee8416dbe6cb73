"""A check of the time of an allgather by NetworkX's maximum flows: a reference for bounds, and for their speed."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import networkx as nx

from chorale.synth.topology.topology import Topology

_SOURCE = -1


def max_flows_reach(topology: Topology, time_per_byte: Fraction) -> bool:
    """Whether, in this time, flows from all ranks can bring the whole vector to each rank; all numbers are whole."""
    ranks = topology.compute_count
    carried = [Fraction(link.bandwidth) * time_per_byte for link in topology.links]
    vector = lcm(ranks, *(amount.denominator for amount in carried))
    graph: nx.DiGraph[int] = nx.DiGraph()
    for rank in range(ranks):
        graph.add_edge(_SOURCE, rank, capacity=vector // ranks)
    for link, amount in zip(topology.links, carried, strict=True):
        before = graph.get_edge_data(link.src, link.dst, {"capacity": 0})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=before + int(amount * vector))
    return all(nx.maximum_flow_value(graph, _SOURCE, rank) == vector for rank in range(ranks))
