"""Where the first-order method starts: flows along fewest hops, split evenly at every node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.alltoall.commodities import Commodities
from chorale.synth.compiled import compiled

Floats = NDArray[np.float64]


def hop_counts(problem: Commodities) -> Floats:
    """Return float64[K, nodes]: links from each source to each node."""
    hops = np.empty((len(problem.sources), problem.node_count))
    _hops(problem.outgoing, problem.outgoing_links, problem.dst, problem.sources, hops)
    return hops


def shortest_flows(problem: Commodities, hops: Floats) -> Floats:
    """Return float64[K, links]: every node takes what it needs in equal parts from all links one hop nearer."""
    flows = np.zeros((len(problem.sources), problem.link_count))
    _even_split(problem.incoming, problem.src, problem.demand, hops, flows)
    return flows


@compiled
def _hops(
    outgoing: NDArray[np.int64],
    outgoing_links: NDArray[np.int32],
    dst: NDArray[np.int32],
    sources: NDArray[np.int32],
    hops: Floats,
) -> None:
    queue = np.empty(hops.shape[1], dtype=np.int32)
    for index in range(len(sources)):
        hops[index] = -1.0
        hops[index, sources[index]] = 0.0
        queue[0] = sources[index]
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            for place in range(outgoing[node], outgoing[node + 1]):
                neighbour = dst[outgoing_links[place]]
                if hops[index, neighbour] < 0:
                    hops[index, neighbour] = hops[index, node] + 1
                    queue[tail] = neighbour
                    tail += 1


@compiled
def _even_split(
    incoming: NDArray[np.int64], src: NDArray[np.int32], demand: NDArray[np.int64], hops: Floats, flows: Floats
) -> None:
    need = np.empty(hops.shape[1])
    for index in range(len(hops)):
        own = hops[index]
        order = np.argsort(own)
        need[:] = demand
        for place in range(len(order) - 1, 0, -1):
            node = order[place]
            nearer = 0
            for link in range(incoming[node], incoming[node + 1]):
                nearer += own[src[link]] < own[node]
            for link in range(incoming[node], incoming[node + 1]):
                if own[src[link]] < own[node]:
                    flows[index, link] = need[node] / nearer
                    need[src[link]] += need[node] / nearer
