"""Symmetries of a network that comes without any, such as one from a file: enough to take rank 0 to every rank.

It is enough to find a symmetry from rank 0 to each node that it has a link to: by products of them, along links,
rank 0 gets everywhere. Each is searched by setting nodes apart one after the other and refining cells, as McKay's nauty
does, in two copies of the network side by side; in the first, one node of each cell will do.
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
    search = _SymmetrySearch.of(topology)
    if search is None:
        return ()
    symmetries: list[NDArray[np.int32]] = []
    links = topology.links
    for neighbour in distinct(links.dst[links.src == 0]):
        orbit = orbits(topology.node_count, symmetries)
        if orbit[neighbour] == orbit[0]:
            continue
        symmetry = search.to(int(neighbour))
        if symmetry is None:
            return ()
        symmetries.append(symmetry)
    return tuple(symmetries)


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A node set apart: its cell before that, and the digests of the refinement after it."""

    cell: int
    trace: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class _SymmetrySearch:
    """turns: how rank 0 and others were set apart in the first copy, until `order` has every node by itself."""

    topology: Topology
    links: MarkedLinks
    start: OrderedCells
    turns: tuple[_Turn, ...]
    order: NDArray[np.int32]

    @staticmethod
    def of(topology: Topology) -> _SymmetrySearch | None:
        """Return the search with the first copy refined; None where ranks differ or too many must be set apart."""
        links, start = _marked_links(topology), _one_cell(topology.node_count)
        _refined(links, start, -1)
        if smallest_shared_cell(start) != 0 or start.size[0] != topology.node_count:
            return None
        cells, node = _copy(start), 0
        turns: list[_Turn] = []
        while len(turns) * topology.node_count < _MAX_CELLS_STORED:
            cell = set_apart(cells, node)
            turns.append(_Turn(cell, _refined(links, cells, cell)))
            shared = smallest_shared_cell(cells)
            if shared < 0:
                return _SymmetrySearch(topology, links, start, tuple(turns), cells.order)
            node = int(cells.order[shared : shared + cells.size[shared]].min())
        return None

    def to(self, rank: int) -> NDArray[np.int32] | None:
        """Return a symmetry that takes rank 0 to `rank`, None if none was found."""
        tries = MAX_TRIES + len(self.turns)
        branches = [self._choices(self.start, np.array([rank], dtype=np.int32))]
        while branches and tries > 0:
            choice = next(branches[-1], None)
            if choice is None:
                branches.pop()
                continue
            tries -= 1
            cells = self._follow(*choice, self.turns[len(branches) - 1].trace)
            if cells is None:
                continue
            if len(branches) < len(self.turns):
                cell = self.turns[len(branches)].cell
                branches.append(self._choices(cells, cells.order[cell : cell + cells.size[cell]]))
                continue
            image = np.empty(len(self.order), dtype=np.int32)
            image[self.order] = cells.order
            if is_automorphism(self.topology, image):
                return image
        return None

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
