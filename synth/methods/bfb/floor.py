"""How fast breadth-first broadcast can be at best, without making it: what nodes have to receive in each step.

In step t every node receives the shards of all nodes at distance t, over its incoming links. The step takes at least as
long as that takes the node for which it takes longest. Where nodes differ, as on meshes, these nodes differ from step
to step, so that the sum is more than what any single node needs. Source: paper on direct-connect topologies, section 4,
the loads of a step.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.distance import distances_from, distances_to
from chorale.synth.topology.sole_links import slowest, sole_links
from chorale.synth.topology.topology import Topology

MAX_NODES = 512
"""Nodes that are looked at; the bound holds whichever these are."""


def breadth_first_floor(topology: Topology, collective: CollectiveName) -> Fraction | None:
    """Return a lower bound on T_B / M of breadth-first broadcast; None where none is known without making it.

    For allgather and reduce_scatter on networks without switches; an allreduce takes as long as both.
    O(nodes looked at * links).
    """
    if topology.switch_count or topology.compute_count < 2:
        return None
    if collective in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        return _floor(topology, inward=collective == CollectiveName.ALLGATHER)
    return None


def _floor(topology: Topology, inward: bool) -> Fraction:
    """Return the sum over steps of the longest time that a node needs; `inward`: to receive, else to send."""
    bandwidth, scale = _bandwidths(topology, inward)
    nodes = _nodes(topology, bandwidth)
    find = distances_to if inward else distances_from
    hops = find(topology, nodes).astype(np.int64)
    steps = int(hops.max()) + 1
    counts = np.bincount((np.arange(len(nodes))[:, None] * steps + hops).ravel(), minlength=len(nodes) * steps)
    at_distance = counts.reshape(len(nodes), steps)[:, 1:]
    total = Fraction(0)
    kinds = [
        (int(value), at_distance[bandwidth[nodes] == value].max(axis=0)) for value in set(bandwidth[nodes].tolist())
    ]
    forced = _forced_loads(topology, steps, inward) if len(nodes) == topology.compute_count else None
    for step in range(steps - 1):
        time = max(Fraction(int(most[step]), value) for value, most in kinds) * scale
        total += time if forced is None else max(time, slowest(topology.links, forced[:, step + 1]))
    return total / topology.compute_count


def _forced_loads(topology: Topology, steps: int, inward: bool) -> NDArray[np.int64]:
    """Return int64[links, steps]: how many shards take the link in the step as there is no other shortest path.

    A node of a corner has one way to each node of its row. O(nodes * links).
    """
    links, nodes = topology.links, np.arange(topology.compute_count)
    tails, heads, find = (links.dst, links.src, distances_from) if inward else (links.src, links.dst, distances_to)
    hops = find(topology, nodes)
    link = sole_links(hops, tails, heads)
    only = link >= 0
    counts = np.bincount(link[only] * steps + hops[only], minlength=len(links) * steps)
    return counts.reshape(len(links), steps)


def _nodes(topology: Topology, bandwidth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which nodes to look at: one where all are alike, else those of least bandwidth, and some of all."""
    count = topology.compute_count
    if count > 1 and automorphisms_are_transitive(topology):
        return np.zeros(1, dtype=np.int64)
    if count <= MAX_NODES:
        return np.arange(count)
    narrow = np.argsort(bandwidth, kind="stable")[: MAX_NODES // 2]
    spread = np.linspace(0, count - 1, MAX_NODES // 2).astype(np.int64)
    return np.flatnonzero(np.isin(np.arange(count), np.concatenate([narrow, spread])))


def _bandwidths(topology: Topology, inward: bool) -> tuple[NDArray[np.int64], int]:
    """Return the bandwidth of the links into each node (or out of it), in whole numbers of 1 / `scale`."""
    links = topology.links
    scale = lcm(*(Fraction(value).denominator for value in links.bandwidths))
    whole = np.array([int(Fraction(value) * scale) for value in links.bandwidths], dtype=np.int64)
    ends = links.dst if inward else links.src
    total = np.zeros(topology.node_count, dtype=np.int64)
    np.add.at(total, ends[links.src != links.dst], whole[links.bandwidth_class][links.src != links.dst])
    return total, scale
