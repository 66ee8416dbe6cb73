"""The all-to-all flow problem of a network: one commodity per source, one price per class of links.

Source: the linear program of the full paper, appendix A.5, with flows added up by source. A flow from source s is any
way to bring one unit from s to each of the other ranks; the load of a link is the sum over all sources.

The problem is reduced by colour refinement, which tells which rows and columns have equal values in some optimum: two
rows get one colour if they meet columns of the same colours equally often, and the other way round, until nothing
changes: one variable per class and one row per class then give the same value, without a search for symmetries. Source:
Grohe, Kersting, Mladenov, Selman, "Dimension reduction via colour refinement" (2014). Colours are 64-bit hashes; a
collision could only make the reduction wrong, and what it yields is certified without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import FIRST, SECOND, STEP
from chorale.synth.linear_program import Floats, SparseMatrix, minimum, of_entries, stacked
from chorale.synth.topology.automorphism import is_automorphism, orbits
from chorale.synth.topology.distance import distances_from
from chorale.synth.topology.topology import Topology

Colours = NDArray[np.uint64]
_MANY_CELLS = 2**24


class ColourTable:
    """Numbers colours 0, 1, 2, … in the order in which they are first seen."""

    def __init__(self, expected: int) -> None:
        """`expected`: about how many different colours will come; more are allowed."""
        self._table = native.ColourTable(expected)

    @property
    def count(self) -> int:
        return self._table.count

    def number(self, colours: Colours) -> NDArray[np.int32]:
        """Return int32 numbers of the shape of `colours`. O(colours)."""
        return self._table.number(np.ascontiguousarray(colours).reshape(-1)).reshape(colours.shape)


def count_colours(colours: Colours) -> int:
    """Return how many different colours there are. O(colours)."""
    table = ColourTable(2**10)
    table.number(colours)
    return table.count


def refine(topology: Topology, problem: Commodities) -> tuple[Colours, Colours]:
    """Return the stable colours: uint64[K, nodes] of the conservation rows, uint64[C] of the capacity rows.

    O(rounds * sources * links), as many rounds as colours keep splitting; hop counts as first colours save most.
    """
    hops = distances_from(topology, problem.sources).astype(np.uint64)
    rows = _mixed(_mixed(hops, problem.weights[:, np.newaxis]), problem.demand)
    capacities = _mixed(problem.class_size.astype(np.uint64), problem.class_capacity)
    seen = 0
    while (count := count_colours(rows) + count_colours(capacities)) > seen:
        seen = count
        if problem.cells > _MANY_CELLS and _are_all_apart(problem, rows, capacities):
            break
        next_rows, next_capacities = np.empty_like(rows), np.zeros_like(capacities)
        native.refine_colours(
            problem.src, problem.dst, problem.link_class, problem.sources, problem.weights, rows, capacities,
            next_rows, next_capacities,
        )  # fmt: skip
        rows, capacities = next_rows, next_capacities
    return rows, capacities


def _are_all_apart(problem: Commodities, rows: Colours, capacities: Colours) -> bool:
    """Whether no two sources and no two classes of links have a colour in common: further rounds merge nothing."""
    of_sources = rows[np.arange(len(problem.sources)), problem.sources]
    return count_colours(of_sources) == len(of_sources) and count_colours(capacities) == len(capacities)


def column_colours(problem: Commodities, rows: Colours, capacities: Colours, block: slice) -> Colours:
    """Return uint64[block, links]: the colour of each flow variable of the sources in `block`."""
    colours = np.empty((len(rows[block]), problem.link_count), dtype=np.uint64)
    native.column_colours(problem.src, problem.dst, problem.link_class, rows[block], capacities, colours)
    return colours


def _mixed(colours: Colours, values: NDArray[np.integer]) -> Colours:
    with np.errstate(over="ignore"):
        text = colours * FIRST + values.astype(np.uint64) * SECOND + STEP
        text = (text ^ (text >> np.uint64(30))) * FIRST
        return (text ^ (text >> np.uint64(27))) * SECOND


BLOCK_CELLS = 2**22
"""Flows are lifted in blocks of sources with about this many variables."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """`full` as it was, `small` with one source per class and links in classes.

    rows:    int32[K', nodes], the class of each conservation row of `small`
    columns: int32[K', links], the class of each flow variable of `small`
    merged:  int32[C], the link class of `small` that each link class of `full` is in
    """

    full: Commodities
    small: Commodities
    rows: NDArray[np.int32]
    row_count: int
    columns: NDArray[np.int32]
    column_count: int
    merged: NDArray[np.int32]
    _row_colours: Colours
    _capacity_colours: Colours
    _table: ColourTable

    def class_means(self, flows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64[column_count]: the mean of flows of `small` (float64[K', links]) over each class.

        Means of a feasible flow are feasible and load no link class more (the partition is equitable).
        """
        labels = self.columns.reshape(-1)
        sums = np.bincount(labels, weights=flows.reshape(-1), minlength=self.column_count)
        return sums / np.bincount(labels, minlength=self.column_count)

    def lifted(self, class_flow: NDArray[np.float64]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield (block of sources of `full`, their flows float64[block, links]) from one flow per class."""
        rows_at_once = max(1, BLOCK_CELLS // max(1, self.full.link_count))
        for start in range(0, len(self.full.sources), rows_at_once):
            block = slice(start, start + rows_at_once)
            colours = column_colours(self.full, self._row_colours, self._capacity_colours, block)
            yield block, class_flow[self._table.number(colours)]


@dataclass(frozen=True, slots=True, eq=False)
class MergedProblem:
    """`full` as it was, `small` with one source per class and links in classes; no classes of flow variables yet.

    `small` is `full` itself where nothing was merged.

    chosen: int[K'], which sources of `full` those of `small` are; `merged` as in `Reduction`
    """

    full: Commodities
    small: Commodities
    chosen: NDArray[np.integer]
    merged: NDArray[np.int32]
    _row_colours: Colours
    _capacity_colours: Colours

    def least_columns(self) -> int:
        """Return a lower bound on `Reduction.column_count`: a row of each class but the sources' has a variable."""
        return count_colours(self._row_colours[self.chosen]) - len(self.chosen)

    def reduction(self) -> Reduction:
        """Return the whole reduction. O(sources of `small` * links) time and memory."""
        rows, columns = ColourTable(2**12), ColourTable(2**12)
        row_colours = self._row_colours[self.chosen]
        row_classes = rows.number(row_colours)
        every = slice(0, len(self.small.sources))
        column_classes = columns.number(column_colours(self.full, row_colours, self._capacity_colours, every))
        return Reduction(
            self.full, self.small, row_classes, rows.count, column_classes, columns.count, self.merged,
            self._row_colours, self._capacity_colours, columns,
        )  # fmt: skip


def reduced_problem(topology: Topology, full: Commodities) -> Reduction:
    """Return the reduction of `full`, the problem of `topology`, by colour refinement."""
    return merged_problem(topology, full).reduction()


def merged_problem(topology: Topology, full: Commodities) -> MergedProblem:
    """Return `full`, the problem of `topology`, with sources and links merged by colour refinement."""
    row_colours, capacity_colours = refine(topology, full)
    capacities = ColourTable(len(capacity_colours))
    merged = capacities.number(capacity_colours)
    source_colours = row_colours[
        np.arange(len(full.sources)), full.sources
    ]  # the colour of a source's own row tells sources apart
    _, kept, source_class = np.unique(source_colours, return_index=True, return_inverse=True)
    order = np.argsort(kept)
    if len(kept) == len(full.sources) and capacities.count == len(full.class_size):
        return MergedProblem(full, full, kept[order], merged, row_colours, capacity_colours)
    small = _small(
        full,
        kept[order],
        np.bincount(source_class, weights=full.weights)[order].astype(np.int64),
        merged,
        capacities.count,
    )
    return MergedProblem(full, small, kept[order], merged, row_colours, capacity_colours)


def _small(
    full: Commodities, kept: NDArray[np.integer], weights: NDArray[np.int64], merged: NDArray[np.int32], count: int
) -> Commodities:
    size = np.zeros(count, dtype=np.int64)
    np.add.at(size, merged, full.class_size)
    capacity = np.zeros(count, dtype=np.int64)
    capacity[merged] = full.class_capacity
    return replace(
        full,
        demand=full.demand if len(full.demand) == 1 else full.demand[kept],
        sources=full.sources[kept],
        weights=weights,
        link_class=merged[full.link_class],
        class_size=size,
        class_capacity=capacity,
    )


MAX_CELLS = 2**28
"""Pairs of a source and a link."""


@dataclass(frozen=True, slots=True, eq=False)
class Commodities:
    """Sources and links up to symmetry; without symmetry, all of them.

    demand:         int64[1 or K, nodes], units that each source sends to each node, 0 to switches; one row where all
                    sources send alike, which is what they send to others: 1 to every rank
    src, dst:       int32[links] without self-loops, sorted by dst
    incoming:       int64[nodes + 1], links `incoming[v]` to `incoming[v + 1] - 1` end in v
    outgoing:       int64[nodes + 1] into `outgoing_links`, which lists the links by src
    sources:        int32[K], one rank of every class; `weights` int64[K], the sizes of the classes
    link_class:     int32[links]; `class_size` int64[C] counts the links of a class
    class_capacity: int64[C], bandwidth of a link of the class in units of 1 / `scale`
    link_ids:       int32[links], the links of the topology that these are

    The load of each link of class c is the sum over sources k and links e of c of weights[k] * flow[k, e] /
    class_size[c]: flows that are not symmetric themselves stand for their average over the symmetries.
    """

    demand: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    incoming: NDArray[np.int64]
    outgoing: NDArray[np.int64]
    outgoing_links: NDArray[np.int32]
    sources: NDArray[np.int32]
    weights: NDArray[np.int64]
    link_class: NDArray[np.int32]
    class_size: NDArray[np.int64]
    class_capacity: NDArray[np.int64]
    scale: int
    link_ids: NDArray[np.int32]

    @property
    def node_count(self) -> int:
        return int(self.demand.shape[1])

    @property
    def link_count(self) -> int:
        return len(self.src)

    def demand_of(self, block: slice) -> NDArray[np.int64]:
        """Return int64[1 or sources of the block, nodes]: what these sources send."""
        return self.demand if len(self.demand) == 1 else self.demand[block]

    @property
    def cells(self) -> int:
        """Pairs of a source and a link: the number of flow variables."""
        return len(self.sources) * self.link_count


def commodities_of(topology: Topology, symmetric: bool = True) -> Commodities:
    """Return the problem of `topology`, with sources and links merged along the symmetries that it carries.

    Each symmetry is checked exactly before it is used; with `symmetric` False none is. O(symmetries * L log L).
    Raises InvalidInput where more than 2^28 pairs of a source and a link would remain.
    """
    links = topology.links
    kept = np.flatnonzero(links.src != links.dst).astype(np.int32)  # self-loops carry nothing
    src, dst = links.src[kept], links.dst[kept]
    bandwidth, scale = links.integer_bandwidths()
    by_source = np.argsort(src, kind="stable").astype(np.int32)
    every_node = np.arange(topology.node_count + 1)
    demand = np.zeros((1, topology.node_count), dtype=np.int64)
    demand[:, : topology.compute_count] = 1
    sources, weights, link_class = _orbits(topology, kept, symmetric)
    require_cells(topology.spec, len(sources), len(kept))
    first = np.unique(link_class, return_index=True)[1]
    return Commodities(
        demand=demand,
        src=src,
        dst=dst,
        incoming=np.searchsorted(dst, every_node).astype(np.int64),
        outgoing=np.searchsorted(src[by_source], every_node).astype(np.int64),
        outgoing_links=by_source,
        sources=sources,
        weights=weights,
        link_class=link_class,
        class_size=np.bincount(link_class).astype(np.int64),
        class_capacity=bandwidth[kept][first],
        scale=scale,
        link_ids=kept,
    )


def require_cells(spec: str, sources: int, links: int) -> None:
    """Refuse a problem that would take too much time and memory."""
    if sources * links > MAX_CELLS:
        rule = f"all-to-all rates need at most {MAX_CELLS} pairs of a source and a link, after known symmetries"
        value = f"{sources} sources x {links} links in {spec}"
        raise InvalidInput(rule, value, "choose a smaller network, or one whose family knows its symmetries")


def _orbits(
    topology: Topology, kept: NDArray[np.int32], symmetric: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Return one source per orbit, the sizes of these orbits, and the orbit of each kept link."""
    generators = topology.automorphisms if symmetric else ()
    checked = [generator for generator in generators if is_automorphism(topology, generator)]
    if not checked:
        ranks = np.arange(topology.compute_count, dtype=np.int32)
        return ranks, np.ones(len(ranks), dtype=np.int64), np.arange(len(kept), dtype=np.int32)
    of_node = orbits(topology.node_count, checked)[: topology.compute_count]
    _, sources, weights = np.unique(of_node, return_index=True, return_counts=True)
    of_link = orbits(len(topology.links), [_link_permutation(topology, generator) for generator in checked])
    link_class = np.unique(of_link[kept], return_inverse=True)[1]
    return sources.astype(np.int32), weights.astype(np.int64), link_class.astype(np.int32)


def _link_permutation(topology: Topology, permutation: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return where a symmetry takes each link; parallel links of equal kind keep their order."""
    links = topology.links
    kinds = (links.latency_class, links.bandwidth_class)
    images = np.lexsort((*kinds, permutation[links.src], permutation[links.dst]))
    originals = np.lexsort((*kinds, links.src, links.dst))
    moved = np.empty(len(links), dtype=np.int64)
    moved[images] = originals
    return moved


_SLACK = 1e-9


class ApproximateSolution(NamedTuple):
    """class_flow: float64[column classes]; prices: float64[link classes of `small`], per link. Neither is trusted."""

    class_flow: NDArray[np.float64]
    prices: NDArray[np.float64]


def solve(reduction: Reduction) -> ApproximateSolution:
    """Return optimal class flows and link prices, up to the solver's tolerances.

    Minimises the largest load / capacity of a link while every source sends one unit to every rank.
    """
    small = reduction.small
    loads, net = _load_matrix(reduction), _net_matrix(reduction)
    # Per unit of the largest capacity, so that the column of the rate is of the order of the others.
    capacity = small.class_capacity / float(small.class_capacity.max())
    matrix = stacked([_beside(loads, -capacity), net.negated()])
    bound = np.concatenate([np.zeros(loads.rows), -_demands(reduction)])
    objective = np.zeros(reduction.column_count + 1)
    objective[-1] = 1.0
    flow, marginals = _solved(objective, matrix, bound)
    return ApproximateSolution(flow[:-1], np.abs(marginals[: loads.rows]) / small.class_size)


def shorten(reduction: Reduction, solution: ApproximateSolution) -> ApproximateSolution:
    """Return `solution` with flows that load no link more than its busiest, and all links together the least."""
    small = reduction.small
    loads, net = _load_matrix(reduction), _net_matrix(reduction)
    capacity = small.class_capacity / float(small.class_capacity.max())
    longest = float(np.max(loads @ solution.class_flow / capacity))
    matrix = stacked([loads, net.negated()])
    bound = np.concatenate([capacity * longest * (1 + _SLACK), -_demands(reduction)])
    return ApproximateSolution(_solved(loads.sums_of_columns(small.class_size), matrix, bound)[0], solution.prices)


def _solved(objective: Floats, matrix: SparseMatrix, bound: Floats) -> tuple[Floats, Floats]:
    return minimum(objective, matrix, bound, "choose the first-order method")


def _load_matrix(reduction: Reduction) -> SparseMatrix:
    """Row c: load of each link of class c from one unit on every variable of a class."""
    small = reduction.small
    share = small.weights[:, np.newaxis] / small.class_size[small.link_class][np.newaxis, :]
    rows = np.broadcast_to(small.link_class, reduction.columns.shape)
    used = _usable(reduction)
    entries = rows[used], reduction.columns[used], share[used]
    return of_entries(*entries, len(small.class_size), reduction.column_count)


def _beside(matrix: SparseMatrix, column: Floats) -> SparseMatrix:
    """Return `matrix` with one more column."""
    rows, last = np.arange(matrix.rows), np.full(matrix.rows, matrix.columns)
    places = np.concatenate([matrix.row, rows]), np.concatenate([matrix.column, last])
    return of_entries(*places, np.concatenate([matrix.value, column]), matrix.rows, matrix.columns + 1)


def _net_matrix(reduction: Reduction) -> SparseMatrix:
    """Row r: what arrives at a node of row class r minus what leaves it; the first such node stands for all."""
    small = reduction.small
    chosen = _representatives(reduction)
    parts = []
    for ends, sign in ((small.dst, 1.0), (small.src, -1.0)):
        rows = chosen[:, ends]
        used = (rows >= 0) & _usable(reduction)
        parts.append((rows[used], reduction.columns[used], np.full(int(used.sum()), sign)))
    rows, columns, data = (np.concatenate(column) for column in zip(*parts, strict=True))
    return of_entries(rows, columns, data, reduction.row_count, reduction.column_count)


def _demands(reduction: Reduction) -> NDArray[np.float64]:
    demands = np.zeros(reduction.row_count)
    chosen = _representatives(reduction)
    for source in range(len(chosen)):
        nodes = np.flatnonzero(chosen[source] >= 0)
        demands[chosen[source, nodes]] = reduction.small.demand[source % len(reduction.small.demand), nodes]
    return demands


def _representatives(reduction: Reduction) -> NDArray[np.int64]:
    """Return int64[K', nodes]: the row class where a row is the first of its class, else -1; never a source's own."""
    flat = np.full(reduction.rows.size, -1, dtype=np.int64)
    labels, first = np.unique(reduction.rows.reshape(-1), return_index=True)
    flat[first] = labels
    chosen = flat.reshape(reduction.rows.shape)
    chosen[np.arange(len(chosen)), reduction.small.sources] = -1
    return chosen


def _usable(reduction: Reduction) -> NDArray[np.bool_]:
    """Return bool[K', links]: False where a link would lead flow back to its source."""
    usable: NDArray[np.bool_] = reduction.small.dst[np.newaxis, :] != reduction.small.sources[:, np.newaxis]
    return usable
