"""A kernel that cancels cycles of flows, which load links and deliver nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined

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
