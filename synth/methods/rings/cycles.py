"""Hamiltonian cycles by patching cycle covers, and sets of them that share no link and together use every port."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import is_among
from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.topology.families.rings import shifted_stride
from chorale.synth.topology.grammar import FamilyCall, parse_spec
from chorale.synth.topology.topology import Topology


def hamiltonian_cycle(topology: Topology) -> NDArray[np.int32] | None:
    """Return the ranks in an order in which each has a link to the next and the last to the first, or None.

    Rank order is taken where it is such a cycle. Else: a cover of all ranks by cycles (a bipartite matching of
    ranks to successors) is merged by swapping the successors of two cycles, a -> b and c -> d into a -> d and
    c -> b, until one is left. Where all links go both ways a cycle may be reversed first. Deterministic,
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
    ends = [(rank, target) for rank, following in enumerate(neighbours) for target in sorted(following)]
    rank, target = np.array(ends, dtype=np.int32).reshape(-1, 2).T
    count = len(neighbours)
    graph = sparse.csr_array((np.ones(len(rank), dtype=np.int8), (rank, target)), shape=(count, count))
    matched = csgraph.maximum_bipartite_matching(graph, perm_type="column")
    return None if np.any(matched < 0) else [int(target) for target in matched]


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
    """Merge cycles while a pair of links allows it. Where all links go both ways, cycles may be reversed."""
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


Order = NDArray[np.int64]


def disjoint_cycles(topology: Topology) -> list[Order]:
    """Return orders of ranks, each a Hamiltonian cycle; no link (either direction) is in two of them.

    Two on a torus of r x c nodes (r, c >= 3) where r = c k for a whole k and gcd(r, c - 1) = 1, or the same with r
    and c exchanged: the condition of the Swing paper, section 2.3.1; also on grids with more links, such as HyperX,
    or whose rows and columns close over switches, as in HammingMesh. Two on shiftedring:m, one on networks of
    degree 2 such as rings. Raises InvalidInput for others. O(links).
    """
    shape = grid_shape(topology)
    if len(shape) == 2 and min(shape) >= 3:
        cycles = _of_torus(topology, shape[0], shape[1])
        return cycles if topology.switch_count or _are_linked(topology, cycles) else _refuse(topology)
    if (tree := _family(topology)) is not None and tree.name == "shiftedring":
        ranks = topology.compute_count
        return [np.arange(ranks), np.arange(ranks) * shifted_stride(ranks) % ranks]
    cycle = hamiltonian_cycle(topology) if topology.degree in (1, 2) and not topology.switch_count else None
    return _refuse(topology) if cycle is None else [cycle.astype(np.int64)]


def torus_has_disjoint_cycles(rows: int, columns: int) -> bool:
    """Whether the construction for a torus of rows x columns works: rows = columns k, gcd(rows, columns - 1) = 1."""
    return rows % columns == 0 and gcd(rows, columns - 1) == 1


def _family(topology: Topology) -> FamilyCall | None:
    try:
        tree = parse_spec(topology.spec)
    except InvalidInput:
        return None
    return tree if isinstance(tree, FamilyCall) else None


def _of_torus(topology: Topology, rows: int, columns: int) -> list[Order]:
    if torus_has_disjoint_cycles(rows, columns):
        return [along * columns + across for along, across in _pair(rows, columns)]
    if torus_has_disjoint_cycles(columns, rows):
        return [across * columns + along for along, across in _pair(columns, rows)]
    return _refuse(topology)


def _are_linked(topology: Topology, cycles: list[Order]) -> bool:
    """Whether all hops of `cycles` are links."""
    ranks = topology.compute_count
    hops = np.concatenate([cycle * ranks + np.roll(cycle, -1) for cycle in cycles])
    return bool(is_among(hops, topology.links.src.astype(np.int64) * ranks + topology.links.dst).all())


def _pair(rows: int, columns: int) -> list[tuple[Order, Order]]:
    """Return two cycles as (row, column) of each node in turn.

    The first runs through a row but for its last hop, goes down a row and on. The second goes down a column as far
    as it is free, columns - 1 hops, and takes the hop of the row that the first left out: it moves columns - 1 rows
    down and one column on, so it meets every row before it returns if gcd(rows, columns - 1) = 1.
    """
    turn, position = np.divmod(np.arange(rows * columns), columns)
    return [(turn, (position - turn) % columns), ((turn * (columns - 1) + position) % rows, turn % columns)]


def _refuse(topology: Topology) -> list[Order]:
    rule = "edge-disjoint Hamiltonian rings need a torus of r x c nodes (r, c >= 3) with r = c k and gcd(r, c - 1) = 1"
    raise InvalidInput(rule, topology.spec, "use biring or bucket")
