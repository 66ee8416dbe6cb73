"""Hamiltonian cycles: found where a cycle cover can be patched into one cycle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from chorale.synth.topology.topology import Topology


def hamiltonian_cycle(topology: Topology) -> NDArray[np.int32] | None:
    """Return the ranks in an order in which each has a link to the next and the last to the first, or None.

    Rank order is taken where it is such a cycle. Else: a cover of all ranks by cycles (a bipartite matching of
    ranks to successors) is merged by swapping the successors of two cycles, a -> b and c -> d into a -> d and
    c -> b, until one is left. Where all links go both ways a cycle may be turned around first. Deterministic,
    about O(links * merges); it may miss a cycle that exists, as the problem is NP-complete. Only links between
    ranks count.
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


@dataclass(slots=True)
class _Cover:
    """A cover of all ranks by cycles, while it is being merged into one."""

    neighbours: list[set[int]]
    successor: list[int]
    predecessor: list[int]
    cycle_of: list[int]
    members: dict[int, list[int]]

    def merge_at(self, first: int, reversible: bool) -> bool:
        """Merge another cycle in between `first` and its successor, if a pair of links allows it."""
        for target in sorted(self.neighbours[first]):
            if self.cycle_of[target] == self.cycle_of[first]:
                continue
            following = self.successor[first]
            if reversible and following in self.neighbours[self.successor[target]]:
                self._reverse(self.cycle_of[target])
            other = self.predecessor[target]
            if following in self.neighbours[other]:
                self._splice(first, target, other, following)
                return True
        return False

    def _splice(self, first: int, target: int, other: int, following: int) -> None:
        self.successor[first], self.successor[other] = target, following
        self.predecessor[target], self.predecessor[following] = first, other
        pair = (self.cycle_of[first], self.cycle_of[target])
        small, large = sorted(pair, key=lambda label: (len(self.members[label]), label))
        for rank in self.members[small]:
            self.cycle_of[rank] = large
        self.members[large] += self.members.pop(small)

    def _reverse(self, label: int) -> None:
        for rank in self.members[label]:
            self.successor[rank], self.predecessor[rank] = self.predecessor[rank], self.successor[rank]


def _patched(neighbours: list[set[int]], successor: list[int]) -> NDArray[np.int32] | None:
    """Merge cycles while a pair of links allows it. Where all links go both ways, cycles may be turned around."""
    ranks = range(len(neighbours))
    cycle_of = _label(successor)
    members = {label: [rank for rank in ranks if cycle_of[rank] == label] for label in sorted(set(cycle_of))}
    predecessor = [0] * len(neighbours)
    for rank, following in enumerate(successor):
        predecessor[following] = rank
    cover = _Cover(neighbours, successor, predecessor, cycle_of, members)
    reversible = all(src in neighbours[dst] for src in ranks for dst in neighbours[src])
    merged = True
    while merged and len(members) > 1:
        merged = any([cover.merge_at(first, reversible) for first in ranks])
    return _walk(successor) if len(members) == 1 else None


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
