"""What prices of links prove about several collectives at once; it shares no code with the search for plans.

Between members of a group data travel along paths, which cost at least the price distance. For every part of the data

- an all-to-all sends it from its source to its target;
- an allgather spreads it to all members along a tree from its root, at least (of messages that bring it somewhere for
  the first time), a reduce-scatter collects it along one; a cheapest tree costs no more;
- an allreduce needs 2 (p - 1) messages between any p groups of members: at least the messages that are longer than t
  join the p(t) groups that shorter ones leave, so that all together cost 2 times a cheapest spanning tree, with the
  shorter one of both directions as the distance of two members.

In time T links earn at most T * price * bandwidth, so T >= all that is paid / sum of price * bandwidth. Whole numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.methods.groups.group import Group
from chorale.synth.topology.topology import Topology

Costs = list[list[int]]


def proven_time(topology: Topology, groups: Sequence[Group], prices: Sequence[int]) -> Fraction:
    """Return the time that `prices`, a whole number >= 0 for each link, prove; CheckFailed for other prices.

    O(ranks * links * log links + ranks^4 of a group).
    """
    links = topology.links
    if len(prices) != len(links) or any(type(price) is not int or price < 0 for price in prices):
        rule = "a certificate of groups must have a whole number >= 0 for each link"
        raise CheckFailed(rule, "other prices", "plan them again")
    earned = sum((price * link.bandwidth for price, link in zip(prices, links, strict=True)), Fraction(0))
    if earned == 0:
        return Fraction(0)
    distances: dict[int, list[int]] = {}
    for rank in sorted({rank for group in groups for rank in group.ranks}):
        distances[rank] = _distances(topology, prices, rank)
    paid = sum((_paid(group, distances) for group in groups), Fraction(0))
    return paid / earned


def _paid(group: Group, distances: dict[int, list[int]]) -> Fraction:
    cost = [[distances[one][other] for other in group.ranks] for one in group.ranks]
    ranks, name = len(cost), group.collective.name
    turned = [list(column) for column in zip(*cost, strict=True)]
    if name == CollectiveName.ALLREDUCE:
        nearer = [
            [min(pair) for pair in zip(row, column, strict=True)] for row, column in zip(cost, turned, strict=True)
        ]
        return Fraction(2 * group.amount * _least_tree(nearer, 0))
    if name == CollectiveName.ALLTOALL:
        return Fraction(group.amount * sum(map(sum, cost)), ranks)
    directed = cost if name == CollectiveName.ALLGATHER else turned
    return Fraction(group.amount * sum(_least_tree(directed, root) for root in range(ranks)), ranks)


def _least_tree(cost: Costs, root: int) -> int:
    """Return the cost of a cheapest tree from `root` to all: cheapest ways in, less on cycles, which are contracted."""
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


def _distances(topology: Topology, prices: Sequence[int], source: int) -> list[int]:
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
