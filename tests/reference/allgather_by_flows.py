"""The optimum of allgather by plain maximum flows of NetworkX: slow, obvious, for networks of some dozens of ranks."""

import math
from fractions import Fraction
from typing import NamedTuple

import networkx as nx

from chorale.synth.topology.topology import Topology

_SOURCE = "source"


class Optimum(NamedTuple):
    """`algbw` is M / T in the topology's unit; `k` the smallest number of trees per root that reaches it."""

    algbw: Fraction
    k: int


def allgather_by_flows(topology: Topology) -> Optimum:
    """Search the least time per shard at which every rank can receive all shards (ForestColl, section 4).

    Each rank sends one shard; at time t per shard a link carries t times its bandwidth. A rank that can not be fed
    has a cut that proves a larger time, which is tried next, until every rank is fed.
    """
    bandwidth: dict[tuple[int, int], Fraction] = {}
    for link in topology.links:
        if link.src != link.dst:
            ends = (link.src, link.dst)
            bandwidth[ends] = bandwidth.get(ends, Fraction(0)) + link.bandwidth
    time = Fraction(0)
    while (larger := _proved_time(topology, bandwidth, time)) is not None:
        time = larger
    return Optimum(algbw=topology.compute_count / time, k=_trees_per_root(topology, time))


def _proved_time(topology: Topology, bandwidth: dict[tuple[int, int], Fraction], time: Fraction) -> Fraction | None:
    """Return the time that the cut of some rank proves if it is larger than `time`, else None."""
    scale = math.lcm(time.denominator, *((time * value).denominator for value in bandwidth.values()))
    ranks = topology.compute_count
    graph = nx.DiGraph()
    for (src, dst), value in bandwidth.items():
        graph.add_edge(src, dst, capacity=int(time * value * scale))
    for rank in range(ranks):
        graph.add_edge(_SOURCE, rank, capacity=scale)
    for rank in range(ranks):
        value, (outside, inside) = nx.minimum_cut(graph, _SOURCE, rank)
        if value < ranks * scale:
            crossing = sum(rate for (src, dst), rate in bandwidth.items() if src in outside and dst in inside)
            return Fraction(sum(node in outside for node in range(ranks))) / crossing
    return None


def _trees_per_root(topology: Topology, time: Fraction) -> int:
    """Return the least k for which every link carries a whole number of trees of k / time each (proposition 3)."""
    rates = topology.links.bandwidths
    scale = math.lcm(*(rate.denominator for rate in rates))
    in_units = time / scale
    return in_units.denominator // math.gcd(in_units.denominator, *(int(rate * scale) for rate in rates))
