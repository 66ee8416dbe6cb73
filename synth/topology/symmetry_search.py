"""Searches for isomorphisms between networks, and for symmetries of networks without known symmetries.

Uses the method of McKay's program nauty. A partition of the nodes into cells is refined until links do not distinguish
any two nodes of a cell. Then one node of a cell with several nodes is individualized (gets its own cell), and the cells
are refined again. Two networks are searched in parallel (for symmetries, two copies of the same network): in the first,
one node per cell is tried; in the second, all nodes of the corresponding cell. Cells and their order do not depend on
node numbers.

Symmetries that map rank 0 to each of its neighbours generate a group that maps it to every rank. To find all
symmetries, the search first finds those that fix all individualized nodes but the last, then those that fix all but the
last two, and so on (Sims, "Computational methods in the study of permutation groups", 1970). Sources: McKay, "Practical
graph isomorphism" (1981); Hopcroft, "An n log n algorithm for minimizing states in a finite automaton" (1971): the
largest part of a split cell need not be used to split other cells.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.identity import content_id
from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.topology.topology import (
    Topology,
    automorphisms_are_transitive,
    carries,
    have_equal_tables,
    link_kinds,
    orbits,
)

MIN_SEARCHED_RANKS = 1024
"""Minimum number of ranks for a search for symmetries. Smaller networks are handled fast enough without symmetries."""
MAX_TRIES = 64
"""Maximum number of refinements in the search for one symmetry, in addition to one per individualized node."""
TRIES_PER_NODE = 8
"""Maximum number of refinements per node in the search for an isomorphism."""
_TRIES, _TRIES_PER_NODE = 4096, 4
"""Maximum number of refinements in the search for all symmetries: a constant, plus a number per node."""
_DECIDING_TRIES = 2**16
"""Maximum total number of refinements when deciding whether a network is vertex-transitive."""
_MAX_LEVELS = 64
_MAX_CELLS_STORED = 2**27
"""Maximum product of the number of stored partitions and the number of nodes."""

Renaming = NDArray[np.int32]


class MarkedLinks(NamedTuple):
    """Links grouped by node: the links of node v lead to `heads[heads_offsets[v]:heads_offsets[v + 1]]`.

    tails: the sources of each node's incoming links, stored in the same way with `tails_offsets`
    heads_marks, tails_marks: uint64 per link that identifies its kind (bandwidth and latency) and direction
    """

    heads_offsets: NDArray[np.int64]
    heads: NDArray[np.int32]
    heads_marks: NDArray[np.uint64]
    tails_offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    tails_marks: NDArray[np.uint64]


class OrderedCells(NamedTuple):
    """A partition of the nodes, stored cell after cell in `order`. A cell's number is the position of its first node.

    order, position: int32: the node at each position, and each node's position
    cell:            int32: the cell of each node
    size:            int32: the number of nodes in each cell
    """

    order: NDArray[np.int32]
    position: NDArray[np.int32]
    cell: NDArray[np.int32]
    size: NDArray[np.int32]

    def set_apart(self, node: int) -> int:
        """Move `node` to a new cell just before its old cell, which must contain other nodes. Return the new cell."""
        cell = int(self.cell[node])
        size = int(self.size[cell])
        place, other = self.position[node], self.order[cell]
        self.order[[cell, place]] = node, other
        self.position[[node, other]] = cell, place
        self.cell[self.order[cell + 1 : cell + size]] = cell + 1
        self.size[[cell, cell + 1]] = 1, size - 1
        return cell

    def members(self, cell: int) -> NDArray[np.int32]:
        return self.order[cell : cell + self.size[cell]]


def isomorphism(source: Topology, target: Topology) -> Renaming | None:
    """Return a renaming (int32 per node of `source`: its node in `target`), or None if none was found.

    The renaming preserves node kinds and switch abilities, and maps links one to one onto links of the same bandwidth
    and latency, which is checked exactly. The search gives up after `TRIES_PER_NODE` refinements per node, so None does
    not prove that the networks differ. The result is deterministic.
    """
    if not have_equal_tables(source, target):
        return None
    first, second = _Colouring.of(source), _Colouring.of(target)
    search = _Search.of(source, target, first)
    if search is None or first.kinds != second.kinds or not np.array_equal(first.trace, second.trace):
        return None
    if not search.turns:
        return search.renaming(second.cells)
    nodes = second.cells.members(search.turns[0].cell)
    return search.to(nodes, 0, second.cells, TRIES_PER_NODE * source.node_count)[0]


def is_vertex_transitive(topology: Topology, tries: int = _DECIDING_TRIES) -> bool | None:
    """Return whether symmetries map every compute node to every other one, or None if the search gave up.

    Symmetries must preserve parallel links, bandwidths, latencies and switches. True is proved by symmetries that are
    checked one by one; False means that a complete search found none.
    """
    if automorphisms_are_transitive(topology):
        return True
    symmetries, is_decided = transitive_symmetries(topology, tries // topology.node_count)
    return bool(symmetries) if is_decided else None


def transitive_symmetries(topology: Topology, tries: int = MAX_TRIES) -> tuple[tuple[Renaming, ...], bool]:
    """Return (symmetries whose products map rank 0 to every rank, whether an empty result proves that there are none).

    Each symmetry is checked exactly. The search gives up after `tries` wrong choices. The result is deterministic.
    O(degree * links * log N) without wrong choices, as on tori and hypercubes.
    """
    colouring = _Colouring.of(topology)
    if colouring.cells.size[0] != topology.compute_count:  # the ranks are not all in one cell
        return (), True
    search = _Search.of(topology, topology, colouring, first=0)
    if search is None:
        return (), False
    symmetries: list[Renaming] = []
    links = topology.links
    direct = topology.switch_count == 0
    for rank in np.unique(links.dst[links.src == 0]) if direct else np.arange(topology.compute_count):
        orbit = orbits(topology.node_count, symmetries)
        if orbit[rank] == orbit[0]:
            continue
        most = tries + len(search.turns)
        symmetry, used = search.to(np.array([rank], dtype=np.int32), 0, colouring.cells, most)
        if symmetry is None:
            return (), used < most
        symmetries.append(symmetry)
    return tuple(symmetries), True


def symmetries_of(topology: Topology) -> tuple[Renaming, ...]:
    """Return generators of all symmetries, each checked exactly; if a search gives up, some generators may be missing.

    The result is deterministic. O(nodes * links * log N) at worst, because each possible image of rank 0 is tried; most
    are ruled out after a few steps.
    """
    colouring = _Colouring.of(topology)
    search = _Search.of(topology, topology, colouring)
    if search is None or len(search.turns) > _MAX_LEVELS:
        return ()
    cells, before_turns = _copy(colouring.cells), []
    for turn in search.turns:
        before_turns.append(_copy(cells))
        _refined(search.links, cells, cells.set_apart(turn.node))
    symmetries: list[Renaming] = []
    tries, orbit = _TRIES + _TRIES_PER_NODE * topology.node_count, orbits(topology.node_count, ())
    for level in reversed(range(len(search.turns))):
        # Add symmetries that fix all nodes individualized earlier and move the node of this turn.
        turn, cells = search.turns[level], before_turns[level]
        others: list[int] = []  # nodes to which (and to whose orbits) no symmetry maps the node
        for node in np.sort(cells.members(turn.cell)):
            if orbit[node] == orbit[turn.node] or np.any(orbit[others] == orbit[node]):
                continue
            symmetry, used = search.to(np.array([node]), level, cells, min(tries, MAX_TRIES + len(search.turns)))
            tries -= used
            if symmetry is None:
                others.append(int(node))
            else:
                symmetries.append(symmetry)
                orbit = orbits(topology.node_count, symmetries)
    return tuple(symmetries)


@dataclass(frozen=True, slots=True, eq=False)
class _Colouring:
    """A partition into cells of nodes that links do not distinguish. `trace` has digests of the steps that refined it.

    kinds: (counts of compute nodes, of plain switches and of switches with each ability; ids of these abilities)
    """

    links: MarkedLinks
    cells: OrderedCells
    kinds: tuple[list[int], list[str]]
    trace: NDArray[np.uint64]

    @staticmethod
    def of(topology: Topology) -> _Colouring:
        """Return the refined cells of `topology`. O(links * log nodes)."""
        abilities = {node: content_id(astuple(ability)) for node, ability in topology.abilities.items()}
        names = sorted(set(abilities.values()))
        kind = np.repeat([0, 1], [topology.compute_count, topology.switch_count])
        for node, name in abilities.items():
            kind[node] = 2 + names.index(name)
        counts = np.bincount(kind)
        used = counts[counts > 0]
        starts = np.cumsum(used) - used
        order = np.argsort(kind, kind="stable").astype(np.int32)
        cell, size = np.empty(len(order), dtype=np.int32), np.zeros(len(order), dtype=np.int32)
        cell[order], size[starts] = np.repeat(starts, used), used
        links = _marked_links(topology)
        cells = OrderedCells(order, np.argsort(order).astype(np.int32), cell, size)
        return _Colouring(links, cells, (counts.tolist(), names), _refined(links, cells, -1))


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A step of a search: a node that is individualized, its previous cell, and digests of the refinement after it."""

    node: int
    cell: int
    trace: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A search for renamings that turn `source` into `target`.

    links, target_links: links of `source` and of `target`
    turns: steps in which nodes of `source` are individualized, until every cell has one node
    order: all nodes, cell by cell
    """

    source: Topology
    target: Topology
    links: MarkedLinks
    target_links: MarkedLinks
    turns: tuple[_Turn, ...]
    order: Renaming

    @staticmethod
    def of(source: Topology, target: Topology, start: _Colouring, first: int | None = None) -> _Search | None:
        """Prepare a search that refines the cells in `start`; None if too many nodes would have to be individualized.

        first: node to individualize first, unless it is already alone in its cell
        """
        links, cells = start.links, _copy(start.cells)
        target_links = links if target is source else _marked_links(target)
        turns: list[_Turn] = []
        while len(turns) * source.node_count < _MAX_CELLS_STORED:
            starts = np.flatnonzero(cells.cell[cells.order] == np.arange(source.node_count))
            shared = starts[cells.size[starts] > 1]
            if not len(shared):
                return _Search(source, target, links, target_links, tuple(turns), cells.order)
            chosen = int(shared[np.argmin(cells.size[shared])])  # the first of the smallest cells
            if first is not None and not turns and cells.size[cells.cell[first]] > 1:
                chosen = int(cells.cell[first])
            node = int(cells.members(chosen).min())
            cell = cells.set_apart(node)
            turns.append(_Turn(node, cell, _refined(links, cells, cell)))
        return None

    def to(
        self, nodes: NDArray[np.integer], level: int, before: OrderedCells, most: int
    ) -> tuple[Renaming | None, int]:
        """Search for a renaming; return (renaming or None, number of refinements made, at most `most`).

        The renaming maps the node that is individualized in turn `level` to one of `nodes`. `before` contains the cells
        of the target before that turn, in which the images of all nodes of earlier turns are already individualized.
        """
        tries = most
        branches = [(before, iter(np.sort(nodes).tolist()))]  # cells, and the nodes that may be individualized next
        while branches and tries > 0:
            node = next(branches[-1][1], None)
            if node is None:
                branches.pop()
                continue
            tries -= 1
            after = level + len(branches)
            cells, trace = _copy(branches[-1][0]), self.turns[after - 1].trace
            if native.refine_cells(self.target_links, cells, cells.set_apart(node), trace, True) != len(trace):
                continue  # the refinement of `source` had other steps
            if after < len(self.turns):
                branches.append((cells, iter(np.sort(cells.members(self.turns[after].cell)).tolist())))
                continue
            renaming = self.renaming(cells)
            if renaming is not None:
                return renaming, most - tries
        return None, most - tries

    def renaming(self, cells: OrderedCells) -> Renaming | None:
        """Return the renaming that cells with one node each define, or None if it does not map links onto links."""
        image = np.empty(len(self.order), dtype=np.int32)
        image[self.order] = cells.order
        return image if carries(self.source, self.target, image) else None


def _marked_links(topology: Topology) -> MarkedLinks:
    """Return the links of every node, with marks that identify bandwidth, latency and direction."""
    links, nodes, kinds = topology.links, topology.node_count, link_kinds(topology.links)
    by_source = np.argsort(links.src, kind="stable")
    outgoing = np.searchsorted(links.src[by_source], np.arange(nodes + 1))
    return MarkedLinks(
        outgoing.astype(np.int64), links.dst[by_source].astype(np.int32), splitmix(2 * kinds[by_source] + 1),
        links.incoming_offsets(nodes), links.src.astype(np.int32), splitmix(2 * kinds + 2),
    )  # fmt: skip


def _copy(cells: OrderedCells) -> OrderedCells:
    return OrderedCells(*(column.copy() for column in cells))


def _refined(links: MarkedLinks, cells: OrderedCells, first: int) -> NDArray[np.uint64]:
    """Refine `cells` in place, starting with cell `first`, and return the digests of the steps."""
    trace = np.empty(len(cells.order) + 1, dtype=np.uint64)
    return trace[: native.refine_cells(links, cells, first, trace, False)].copy()
