"""Symmetries of a network that comes without any, such as one from a file: all, or enough to take rank 0 to every rank.

Each is searched by setting nodes apart one after the other and refining cells, as McKay's nauty does, in two copies of
the network side by side; in the first, one node of each cell will do. To get everywhere, it is enough to find one from
rank 0 to each node that it has a link to, by products of them along links. To have all, those are found first that keep
all nodes set apart but the last, then all but the last two, and so on (Sims, "Computational methods in the study of
permutation groups", 1970).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import distinct
from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.topology.automorphism import is_automorphism, orbits
from chorale.synth.topology.partition_kernels import (
    MarkedLinks,
    OrderedCells,
    refine_cells,
    set_apart,
    smallest_shared_cell,
)
from chorale.synth.topology.topology import Topology

MIN_SEARCHED_RANKS = 1024
"""On smaller networks methods take little time without symmetries."""
MAX_TRIES = 64
"""Refinements beyond one for each node set apart, after which the search for one symmetry gives up."""
_TRIES, _TRIES_PER_NODE = 4096, 4
"""Refinements of a search for all symmetries: so many, and so many for each node."""
_MAX_LEVELS = 64
_MAX_CELLS_STORED = 2**27
"""Copies of partitions on the way: their number times the number of nodes."""


def with_symmetries_found(topology: Topology) -> Topology:
    """Return `topology` with symmetries that take rank 0 to every rank, if it is large, has none and some are found."""
    if topology.automorphisms or topology.switch_count or topology.compute_count < MIN_SEARCHED_RANKS:
        return topology
    return replace(topology, automorphisms=transitive_symmetries(topology))


def transitive_symmetries(topology: Topology) -> tuple[NDArray[np.int32], ...]:
    """Return symmetries, each checked exactly, whose products take rank 0 to every rank; () where none are found.

    For networks without switches. An empty result is no proof: a search gives up after `MAX_TRIES` wrong turns. The
    same network gives the same symmetries. O(degree * links * log N) where no turn is wrong, as on tori and hypercubes.
    """
    marked, start = _marked_links(topology), _one_cell(topology.node_count)
    _refined(marked, start, -1)
    if start.size[0] != topology.node_count:  # ranks differ
        return ()
    search = _SymmetrySearch.of(topology, marked, start)
    if search is None:
        return ()
    symmetries: list[NDArray[np.int32]] = []
    links = topology.links
    for neighbour in distinct(links.dst[links.src == 0]):
        orbit = orbits(topology.node_count, symmetries)
        if orbit[neighbour] == orbit[0]:
            continue
        symmetry, _ = search.to(int(neighbour), 0, start, MAX_TRIES + len(search.turns))
        if symmetry is None:
            return ()
        symmetries.append(symmetry)
    return tuple(symmetries)


def symmetries_of(topology: Topology) -> tuple[NDArray[np.int32], ...]:
    """Return symmetries, each checked exactly, of which all others are products; fewer where a search gives up.

    For networks without switches. The same network gives the same symmetries. O(nodes * links * log N) at worst, since
    each node that rank 0 could be taken to is tried; most are told apart after a few steps.
    """
    links, start = _marked_links(topology), _one_cell(topology.node_count)
    _refined(links, start, -1)
    search = _SymmetrySearch.of(topology, links, start)
    if search is None or len(search.turns) > _MAX_LEVELS:
        return ()
    symmetries: list[NDArray[np.int32]] = []
    tries = _TRIES + _TRIES_PER_NODE * topology.node_count
    for level, cells in reversed(list(enumerate(search.levels()))):
        tries = search.add_images(level, cells, symmetries, tries)
    return tuple(symmetries)


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A node set apart: its cell before that, and the digests of the refinement after it."""

    node: int
    cell: int
    trace: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class _SymmetrySearch:
    """turns: how nodes were set apart in the first copy, from `start` until `order` has every node by itself."""

    topology: Topology
    links: MarkedLinks
    start: OrderedCells
    turns: tuple[_Turn, ...]
    order: NDArray[np.int32]

    @staticmethod
    def of(topology: Topology, links: MarkedLinks, start: OrderedCells) -> _SymmetrySearch | None:
        """Return the search with the first copy refined from `start`; None where too many nodes must be set apart."""
        cells = _copy(start)
        turns: list[_Turn] = []
        while len(turns) * topology.node_count < _MAX_CELLS_STORED:
            shared = smallest_shared_cell(cells)
            if shared < 0:
                return _SymmetrySearch(topology, links, start, tuple(turns), cells.order) if turns else None
            node = int(cells.order[shared : shared + cells.size[shared]].min())
            cell = set_apart(cells, node)
            turns.append(_Turn(node, cell, _refined(links, cells, cell)))
        return None

    def levels(self) -> Iterator[OrderedCells]:
        """Yield the cells of the first copy before each turn."""
        cells = _copy(self.start)
        for turn in self.turns:
            yield _copy(cells)
            _refined(self.links, cells, set_apart(cells, turn.node))

    def add_images(self, level: int, cells: OrderedCells, symmetries: list[NDArray[np.int32]], tries: int) -> int:
        """Add symmetries that keep the nodes set apart before turn `level` and take its node wherever any do.

        `symmetries` has those that keep its node, too. Return how many of `tries`, refinements, are left.
        """
        turn, nodes = self.turns[level], self.topology.node_count
        orbit = orbits(nodes, symmetries)
        others: list[int] = []  # nodes that its node is not taken to, nor to any that symmetries take them to
        for node in np.sort(cells.order[turn.cell : turn.cell + cells.size[turn.cell]]).tolist():
            if orbit[node] == orbit[turn.node] or np.any(orbit[others] == orbit[node]):
                continue
            symmetry, used = self.to(node, level, cells, min(tries, MAX_TRIES + len(self.turns)))
            tries -= used
            if symmetry is None:
                others.append(node)
                continue
            symmetries.append(symmetry)
            orbit = orbits(nodes, symmetries)
        return tries

    def to(self, node: int, level: int, before: OrderedCells, most: int) -> tuple[NDArray[np.int32] | None, int]:
        """Return a symmetry that takes the node of turn `level` to `node` and keeps those set apart before, or None.

        before: the cells of the first copy before that turn. Returns also the refinements that took, at most `most`.
        """
        tries = most
        branches = [self._choices(before, np.array([node], dtype=np.int32))]
        while branches and tries > 0:
            choice = next(branches[-1], None)
            if choice is None:
                branches.pop()
                continue
            tries -= 1
            after = level + len(branches)
            cells = self._follow(*choice, self.turns[after - 1].trace)
            if cells is None:
                continue
            if after < len(self.turns):
                cell = self.turns[after].cell
                branches.append(self._choices(cells, cells.order[cell : cell + cells.size[cell]]))
                continue
            image = np.empty(len(self.order), dtype=np.int32)
            image[self.order] = cells.order
            if is_automorphism(self.topology, image):
                return image, most - tries
        return None, most - tries

    def _choices(self, cells: OrderedCells, nodes: NDArray[np.int32]) -> Iterator[tuple[OrderedCells, int]]:
        """Yield `cells` with each of `nodes`, which may be set apart."""
        return ((cells, int(node)) for node in np.sort(nodes))

    def _follow(self, cells: OrderedCells, node: int, trace: NDArray[np.uint64]) -> OrderedCells | None:
        """Return the cells after `node` was set apart, None where they are refined otherwise than in the first copy."""
        copy = _copy(cells)
        used = refine_cells(self.links, copy, set_apart(copy, node), trace, True)
        return copy if used == len(trace) else None


def _marked_links(topology: Topology) -> MarkedLinks:
    """Return the links of every node, with marks by bandwidth and latency."""
    links, nodes = topology.links, topology.node_count
    kinds = links.bandwidth_class.astype(np.int64) * len(links.latencies_s) + links.latency_class
    by_source = np.argsort(links.src, kind="stable")
    outgoing = np.searchsorted(links.src[by_source], np.arange(nodes + 1))
    return MarkedLinks(
        outgoing.astype(np.int64), links.dst[by_source].astype(np.int32), splitmix(2 * kinds[by_source] + 1),
        links.incoming_offsets(nodes), links.src.astype(np.int32), splitmix(2 * kinds + 2),
    )  # fmt: skip


def _one_cell(nodes: int) -> OrderedCells:
    numbers = np.arange(nodes, dtype=np.int32)
    size = np.zeros(nodes, dtype=np.int32)
    size[0] = nodes
    return OrderedCells(numbers, numbers.copy(), np.zeros(nodes, dtype=np.int32), size)


def _copy(cells: OrderedCells) -> OrderedCells:
    return OrderedCells(*(column.copy() for column in cells))


def _refined(links: MarkedLinks, cells: OrderedCells, first: int) -> NDArray[np.uint64]:
    """Refine `cells` in place and return the digests of the steps."""
    trace = np.empty(len(cells.order) + 1, dtype=np.uint64)
    return trace[: refine_cells(links, cells, first, trace, False)].copy()
