"""Cheapest trees and distances in whole numbers, for checkers of certificates; searches have code of their own."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from chorale.synth.topology.topology import Topology

Costs = list[list[int]]
"""From each node, to each node."""


def least_tree(cost: Costs, root: int) -> int:
    """Return the cost of a cheapest tree from `root` to all: cheapest ways in, less on cycles, which are contracted.

    O(nodes ^ 3).
    """
    total, nodes = 0, len(cost)
    while nodes > 1:
        parent = [-1] * nodes
        for node in range(nodes):
            if node != root:
                parent[node] = min((one for one in range(nodes) if one != node), key=lambda one: cost[one][node])
                total += cost[parent[node]][node]
        label, count = _labels(parent, root)
        if count == nodes:
            return total
        smaller: Costs = [[2**200] * count for _ in range(count)]
        for one in range(nodes):
            for node in range(nodes):
                if label[one] != label[node] and node != root:
                    reduced = cost[one][node] - cost[parent[node]][node]
                    smaller[label[one]][label[node]] = min(smaller[label[one]][label[node]], reduced)
        cost, root, nodes = smaller, label[root], count
    return total


def _labels(parent: Sequence[int], root: int) -> tuple[list[int], int]:
    """Return which node of the contracted graph each is in, and how many these are: one for each cycle."""
    label, visited = [-1] * len(parent), [-1] * len(parent)
    count = 0
    for start in range(len(parent)):
        node = start
        while node != -1 and visited[node] == -1:
            visited[node] = start
            node = parent[node]
        if node != -1 and visited[node] == start and label[node] == -1:
            label[node] = count
            member = parent[node]
            while member != node:
                label[member] = count
                member = parent[member]
            count += 1
    for node in range(len(parent)):
        if label[node] == -1:
            label[node] = count
            count += 1
    return label, count


def shortest_distances(topology: Topology, prices: Sequence[int], source: int) -> list[int]:
    """Return per node the least sum of prices of links from `source`. O(links * log links)."""
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
    for src, dst, price in zip(topology.links.src.tolist(), topology.links.dst.tolist(), prices, strict=True):
        leaving[src].append((dst, price))
    done: dict[int, int] = {}
    heap = [(0, source)]
    while heap:
        distance, node = heapq.heappop(heap)
        if node in done:
            continue
        done[node] = distance
        for dst, price in leaving[node]:
            if dst not in done:
                heapq.heappush(heap, (distance + price, dst))
    return [done[node] for node in range(topology.node_count)]
