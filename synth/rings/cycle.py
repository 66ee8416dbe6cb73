"""Hamiltonian cycles: found where a cycle cover can be patched into one cycle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from synth.topology.topology import Topology


def hamiltonian_cycle(topology: Topology) -> NDArray[np.int32] | None:
    """Return the ranks in an order in which each has a link to the next and the last to the first, or None.

    Rank order is taken where it is such a cycle. Else: a cover of all ranks by cycles (a bipartite matching of
    ranks to successors) is merged by swapping the successors of two cycles, a -> b and c -> d into a -> d and
    c -> b, until one is left. Deterministic, about O(links * merges); it may miss a cycle that exists, as the
    problem is NP-complete. Only links between ranks count.
    """
    ranks = topology.compute_count
    links = topology.links
    usable = (links.src < ranks) & (links.dst < ranks) & (links.src != links.dst)
    neighbours: list[set[int]] = [set() for _ in range(ranks)]
    for src, dst in zip(links.src[usable].tolist(), links.dst[usable].tolist(), strict=True):
        neighbours[src].add(dst)
    if all((rank + 1) % ranks in neighbours[rank] for rank in range(ranks)):
        return np.arange(ranks, dtype=np.int32)
    successor = _cycle_cover(neighbours)
    return None if successor is None else _patched(neighbours, successor)


def _cycle_cover(neighbours: list[set[int]]) -> list[int] | None:
    ranks = len(neighbours)
    rows = [src for src in range(ranks) for _ in neighbours[src]]
    columns = [dst for src in range(ranks) for dst in sorted(neighbours[src])]
    graph = csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(ranks, ranks))
    matched = maximum_bipartite_matching(graph, perm_type="column")
    return None if (matched < 0).any() else [int(dst) for dst in matched]


def _patched(neighbours: list[set[int]], successor: list[int]) -> NDArray[np.int32] | None:
    ranks = len(neighbours)
    cycle_of = _label(successor)
    members = {label: [rank for rank in range(ranks) if cycle_of[rank] == label] for label in set(cycle_of)}
    predecessor = [0] * ranks
    for rank, following in enumerate(successor):
        predecessor[following] = rank
    merged = True
    while merged and len(members) > 1:
        merged = False
        for first in range(ranks):
            for target in sorted(neighbours[first]):
                other, following = predecessor[target], successor[first]
                if cycle_of[target] == cycle_of[first] or following not in neighbours[other]:
                    continue
                successor[first], successor[other] = target, following
                predecessor[target], predecessor[following] = first, other
                _join(members, cycle_of, cycle_of[first], cycle_of[target])
                merged = True
    return _walk(successor) if len(members) == 1 else None


def _join(members: dict[int, list[int]], cycle_of: list[int], first: int, second: int) -> None:
    small, large = sorted((first, second), key=lambda label: (len(members[label]), label))
    for rank in members[small]:
        cycle_of[rank] = large
    members[large] += members.pop(small)


def _label(successor: list[int]) -> list[int]:
    label = [-1] * len(successor)
    for start in range(len(successor)):
        rank = start
        while label[rank] < 0:
            label[rank] = start
            rank = successor[rank]
    return label


def _walk(successor: list[int]) -> NDArray[np.int32]:
    order = [0]
    while successor[order[-1]] != 0:
        order.append(successor[order[-1]])
    return np.array(order, dtype=np.int32)
