"""Kernels on flows: cancelling cycles, which load links and deliver nothing; start flows along fewest hops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.alltoall.commodities import Commodities

_UNSEEN, _ON_PATH, _DONE = 0, 1, 2


@compiled
def cancel_cycles(
    outgoing: NDArray[np.int64],
    outgoing_links: NDArray[np.int32],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    least: float,
    flow: NDArray[np.float64],
) -> None:
    """Lower `flow`, float64[links], in place until the links with more than `least` form no cycle.

    What arrives at a node minus what leaves it stays as it was. Depth-first search; each cycle found loses its
    smallest flow, so at most one search step back per link. O(links * longest path) at worst, O(links) without cycles.
    """
    node_count = len(outgoing) - 1
    state = np.zeros(node_count, dtype=np.int8)
    position = outgoing[:-1].copy()  # the next link to look at, by node
    path = np.empty(node_count, dtype=np.int32)
    for start in range(node_count):
        if state[start] != _UNSEEN:
            continue
        node, length = start, 0
        while True:
            state[node] = _ON_PATH
            while position[node] < outgoing[node + 1]:
                link = outgoing_links[position[node]]
                if flow[link] > least and state[dst[link]] != _DONE:
                    break
                position[node] += 1
            if position[node] == outgoing[node + 1]:
                state[node] = _DONE
                if length == 0:
                    break
                length -= 1
                node = src[path[length]]
                continue
            link = outgoing_links[position[node]]
            path[length] = link
            length += 1
            node = dst[link]
            if state[node] == _ON_PATH:
                length = _cancel(path, length, src, node, least, flow, state)
                node = src[path[length]]


@inlined
def _cancel(
    path: NDArray[np.int32],
    length: int,
    src: NDArray[np.int32],
    node: int,
    least: float,
    flow: NDArray[np.float64],
    state: NDArray[np.int8],
) -> int:
    """Empty the cycle at the end of `path` that closes at `node`; return how much of the path is left."""
    first = length - 1
    while src[path[first]] != node:
        first -= 1
    smallest = flow[path[first]]
    for index in range(first + 1, length):
        smallest = min(smallest, flow[path[index]])
    left = length
    for index in range(length - 1, first - 1, -1):
        flow[path[index]] -= smallest
        if flow[path[index]] <= least:
            left = index
    for index in range(left, length):
        state[src[path[index]]] = _UNSEEN
    return left


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
    hops: Matrix[np.float64],
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
            for position in range(outgoing[node], outgoing[node + 1]):
                neighbour = dst[outgoing_links[position]]
                if hops[index, neighbour] < 0:
                    hops[index, neighbour] = hops[index, node] + 1
                    queue[tail] = neighbour
                    tail += 1


@compiled
def _even_split(
    incoming: NDArray[np.int64],
    src: NDArray[np.int32],
    demand: Matrix[np.int64],
    hops: Matrix[np.float64],
    flows: Matrix[np.float64],
) -> None:
    need = np.empty(hops.shape[1])
    for index in range(len(hops)):
        distance = hops[index]
        order = np.argsort(distance, kind="stable")
        need[:] = demand[index % len(demand)]
        for position in range(len(order) - 1, 0, -1):
            node = order[position]
            nearer = 0
            for link in range(incoming[node], incoming[node + 1]):
                nearer += distance[src[link]] < distance[node]
            for link in range(incoming[node], incoming[node + 1]):
                if distance[src[link]] < distance[node]:
                    flows[index, link] = need[node] / nearer
                    need[src[link]] += need[node] / nearer
