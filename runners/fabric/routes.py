"""Where each node of a fabric hands on what is for a rank that is no neighbour."""

from __future__ import annotations

import numpy as np

from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology


def next_hops(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the neighbour that each node (first index) uses towards each rank (second index).

    Every way is one of fewest links, so that a neighbour is reached over the link to it and nothing goes in circles.
    Of several next nodes it takes the one of number node + rank modulo their count, in rising order, so that
    traffic spreads over equal ways without any randomness. A rank's entry for itself is its own number. Raises
    InvalidInput for a network that is not strongly connected. O(ranks * links).
    """
    hops = distances_to(topology, np.arange(topology.compute_count)).astype(int).tolist()
    neighbours: list[set[int]] = [set() for _ in range(topology.node_count)]
    for src, dst in zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True):
        neighbours[src].add(dst)
    return tuple(
        tuple(_next_hop(node, rank, sorted(neighbours[node]), hops[rank]) for rank in range(topology.compute_count))
        for node in range(topology.node_count)
    )


def _next_hop(node: int, rank: int, neighbours: list[int], hops: list[int]) -> int:
    if node == rank:
        return rank
    nearer = [neighbour for neighbour in neighbours if hops[neighbour] == hops[node] - 1]
    return nearer[(node + rank) % len(nearer)]
