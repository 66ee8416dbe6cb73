"""Formulates the all-to-all on a network as a linear program for flows, and merges equivalent sources and links.

Source: the linear program of Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", long
version, appendix A.5, with all flows from the same source added up. The flow from source s brings one unit from s to
each other rank, over any links. The load of a link is the sum of the flows from all sources.

Colour refinement reduces the problem. It finds rows and columns that have equal values in some optimum: two rows keep
the same colour if each colour of columns occurs equally often in both, and vice versa. This is repeated until no colour
changes. Then one variable and one row for each colour give the same optimum, without a search for symmetries. Source:
Grohe, Kersting, Mladenov, Selman, "Dimension reduction via colour refinement" (2014). Colours are 64-bit hashes. A
collision could make the reduction wrong, but not the results, because they are certified without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import FIRST, SECOND, STEP, splitmix
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import Floats, SparseMatrix, minimum, of_entries
from chorale.synth.topology.distance import distances_from
from chorale.synth.topology.topology import Topology, is_automorphism, orbits

Colours = NDArray[np.uint64]
_MANY_CELLS = 2**24
_OUT, _IN, _LOAD = np.array([0x1D8E4E27C47D124F, 0xEB44ACCAB455D165, 0x632BE59BD9B4E019], dtype=np.uint64)
BLOCK_CELLS = 2**22
"""Approximate number of flow variables in a block of sources."""
MAX_CELLS = 2**28
"""Maximum number of (source, link) pairs."""
_SLACK = 1e-9


class ColourTable:
    """Assigns an index to each colour (a uint64 hash): 0, 1, … in the order in which the colours first appear."""

    def __init__(self) -> None:
        self._table = native.ColourTable()

    @property
    def count(self) -> int:
        return self._table.count

    def number(self, colours: Colours) -> NDArray[np.int32]:
        """Return the index assigned to each colour, as an int32 array of the same shape as `colours`. O(colours)."""
        return self._table.number(np.ascontiguousarray(colours).reshape(-1)).reshape(colours.shape)


def count_colours(colours: Colours) -> int:
    table = ColourTable()
    table.number(colours)
    return table.count


def column_colours(problem: Commodities, rows: Colours, capacities: Colours, block: slice) -> Colours:
    """Return uint64[block, links]: the colour (hash) of each flow variable of the sources in `block`."""
    # Must compute the same function as `column_colour` in kernels/cpp/alltoall.cpp.
    ends = rows[block][:, problem.src] * _OUT + rows[block][:, problem.dst] * _IN
    return splitmix(ends + capacities[problem.link_class] * _LOAD + STEP)


def _mixed(colours: Colours, values: NDArray[np.integer]) -> Colours:
    with np.errstate(over="ignore"):
        text = colours * FIRST + values.astype(np.uint64) * SECOND + STEP
        text = (text ^ (text >> np.uint64(30))) * FIRST
        return (text ^ (text >> np.uint64(27))) * SECOND


@dataclass(frozen=True, eq=False)
class Reduction:
    """The problem `full`, and an equivalent problem `small` in which sources and link classes are merged.

    If nothing can be merged, `small` is `full` itself. The classes of rows and variables are computed on first use, in
    O(sources of `small` * links) time and memory.

    chosen: int[K'], index in `full` of each source in `small`
    merged: int32[C], for each link class of `full`, the link class of `small` that contains it
    """

    full: Commodities
    small: Commodities
    chosen: NDArray[np.integer]
    merged: NDArray[np.int32]
    _row_colours: Colours
    _capacity_colours: Colours

    @cached_property
    def _rows(self) -> tuple[NDArray[np.int32], int]:
        table = ColourTable()
        return table.number(self._row_colours[self.chosen]), table.count

    @cached_property
    def _columns(self) -> tuple[NDArray[np.int32], ColourTable]:
        table, rows = ColourTable(), self._row_colours[self.chosen]
        return table.number(column_colours(self.full, rows, self._capacity_colours, slice(None))), table

    @property
    def rows(self) -> NDArray[np.int32]:
        """int32[K', nodes]: for each flow conservation row of `small`, the index of its class."""
        return self._rows[0]

    @property
    def row_count(self) -> int:
        return self._rows[1]

    @property
    def columns(self) -> NDArray[np.int32]:
        """int32[K', links]: class of each flow variable of `small`. A class is one variable of the linear program."""
        return self._columns[0]

    @cached_property
    def column_count(self) -> int:
        return self._columns[1].count

    def has_columns_above(self, most: int) -> bool:
        """Return whether there are more than `most` classes of flow variables. Computes the classes only if needed."""
        # Each class of rows, except the sources' rows, has at least one variable.
        if count_colours(self._row_colours[self.chosen]) - len(self.chosen) > most:
            return True
        return self.small.cells > most and self.column_count > most

    def class_means(self, flows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64[classes]: the mean of `flows` over each class of flow variables.

        `flows` is float64[K', links], flows in `small`. The means of feasible flows are feasible, and no class has a
        larger load, because the partition is equitable.
        """
        labels = self.columns.reshape(-1)
        sums = np.bincount(labels, weights=flows.reshape(-1), minlength=self.column_count)
        return sums / np.bincount(labels, minlength=self.column_count)

    def lifted(self, class_flow: NDArray[np.float64]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Expand one flow per variable class to flows in `full`; yield (block of sources, float64[block, links])."""
        rows_at_once = max(1, BLOCK_CELLS // max(1, self.full.link_count))
        for start in range(0, len(self.full.sources), rows_at_once):
            block = slice(start, start + rows_at_once)
            colours = column_colours(self.full, self._row_colours, self._capacity_colours, block)
            yield block, class_flow[self._columns[1].number(colours)]


def reduced_problem(topology: Topology, full: Commodities) -> Reduction:
    """Reduce `full`, the flow problem of `topology`, by merging sources and links with colour refinement."""
    # Rounds continue while the number of colours grows. Starting with hop counts as colours saves most rounds.
    hops = distances_from(topology, full.sources).astype(np.uint64)
    row_colours = _mixed(_mixed(hops, full.weights[:, np.newaxis]), full.demand)
    capacity_colours = _mixed(full.class_size.astype(np.uint64), full.class_capacity)
    seen = 0
    while (count := count_colours(row_colours) + count_colours(capacity_colours)) > seen:
        seen = count
        if full.cells > _MANY_CELLS:
            own = row_colours[np.arange(len(full.sources)), full.sources]
            if count_colours(own) == len(own) and count_colours(capacity_colours) == len(capacity_colours):
                break  # all sources and all link classes already differ, so nothing can be merged
        next_rows, next_capacities = np.empty_like(row_colours), np.zeros_like(capacity_colours)
        native.refine_colours(
            full.src, full.dst, full.link_class, full.sources, full.weights, row_colours, capacity_colours,
            next_rows, next_capacities,
        )  # fmt: skip
        row_colours, capacity_colours = next_rows, next_capacities
    capacities = ColourTable()
    merged = capacities.number(capacity_colours)
    source_colours = row_colours[np.arange(len(full.sources)), full.sources]  # colour of each source's row for itself
    _, kept, source_class = np.unique(source_colours, return_index=True, return_inverse=True)
    order = np.argsort(kept)
    chosen = kept[order]
    if len(chosen) == len(full.sources) and capacities.count == len(full.class_size):
        return Reduction(full, full, chosen, merged, row_colours, capacity_colours)
    size, capacity = np.zeros((2, capacities.count), dtype=np.int64)
    np.add.at(size, merged, full.class_size)
    capacity[merged] = full.class_capacity
    small = replace(
        full,
        demand=full.demand if len(full.demand) == 1 else full.demand[chosen],
        sources=full.sources[chosen],
        weights=np.bincount(source_class, weights=full.weights)[order].astype(np.int64),
        link_class=merged[full.link_class],
        class_size=size,
        class_capacity=capacity,
    )
    return Reduction(full, small, chosen, merged, row_colours, capacity_colours)


@dataclass(frozen=True, slots=True, eq=False)
class Commodities:
    """The flow problem of an all-to-all or a traffic matrix: all links, and one source per class of symmetric ranks.

    Without symmetries, every rank is a source.

    demand:         int64[1 or K, nodes], units that each source sends to each node: 0 for switches, ignored for the
                    source itself. There is only one row if all sources send the same: 1 unit to every rank.
    src, dst:       int32[links], ends of the links, without self-loops and sorted by dst
    incoming:       int64[nodes + 1]; links `incoming[v]` to `incoming[v + 1] - 1` end in v
    outgoing:       int64[nodes + 1], offsets into `outgoing_links`, which lists the links sorted by src
    sources:        int32[K], one rank of every class; `weights`: int64[K], the sizes of these classes
    link_class:     int32[links], class of each link; `class_size`: int64[C], number of links in each class
    class_capacity: int64[C], bandwidth of each link in the class, in units of 1 / `scale`
    link_ids:       int32[links], ids of the links in the topology

    The load of each link of class c is the sum of weights[k] * flow[k, e] / class_size[c] over all sources k and all
    links e of this class. Flows that are not symmetric stand for their average over the symmetries.
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
        """Return the demand of the sources in `block`: int64[1 or sources in the block, nodes]."""
        return self.demand if len(self.demand) == 1 else self.demand[block]

    @property
    def cells(self) -> int:
        """Number of (source, link) pairs, which is the number of flow variables."""
        return len(self.sources) * self.link_count


def commodities_of(topology: Topology, symmetric: bool = True) -> Commodities:
    """Return the flow problem of `topology`. Sources and links that known symmetries map to one another form one class.

    Each symmetry is checked exactly before it is used. Without `symmetric`, none is used. O(symmetries * L log L).

    Raises:
        InvalidInput: if more than 2^28 (source, link) pairs would remain.
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
    if len(sources) * len(kept) > MAX_CELLS:
        rule = f"all-to-all rates need at most {MAX_CELLS} pairs of a source and a link, after known symmetries"
        value = f"{len(sources)} sources x {len(kept)} links in {topology.spec}"
        raise InvalidInput(rule, value, "choose a smaller network, or one whose family knows its symmetries")
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


def _orbits(
    topology: Topology, kept: NDArray[np.int32], symmetric: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Group ranks and links by symmetries; return (one rank per orbit, size of each orbit, orbit of each kept link)."""
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
    """Return int64[links]: the link to which a symmetry maps each link. Equal parallel links keep their order."""
    links = topology.links
    kinds = (links.latency_class, links.bandwidth_class)
    images = np.lexsort((*kinds, permutation[links.src], permutation[links.dst]))
    originals = np.lexsort((*kinds, links.src, links.dst))
    moved = np.empty(len(links), dtype=np.int64)
    moved[images] = originals
    return moved


class ApproximateSolution(NamedTuple):
    """Approximate flows and prices from a solver. Bounds derived from them hold even if the solver was inaccurate.

    class_flow: float64[classes of flow variables], the flow of each variable in the class
    prices:     float64[link classes of `small`], the price of each link in the class
    """

    class_flow: NDArray[np.float64]
    prices: NDArray[np.float64]


def solve(reduction: Reduction) -> ApproximateSolution:
    """Solve the reduced problem; return flows and link prices that are optimal up to the solver's tolerances.

    Minimises the largest load / capacity of any link, if every source sends one unit to every rank.
    """
    small, (net, demands) = reduction.small, _deliveries(reduction)
    classes, last = len(small.class_size), reduction.column_count
    # Divide by the largest capacity, so that the rate's column has the same order of magnitude as other columns.
    capacity = small.class_capacity / float(small.class_capacity.max())
    loads = of_entries(*_load_entries(reduction), classes, last)
    blocks: Any = [[loads, -capacity[:, np.newaxis]], [-net, None]]
    matrix = sparse.block_array(blocks, format="csr")
    objective = np.zeros(last + 1)
    objective[-1] = 1.0
    bound = np.concatenate([np.zeros(classes), -demands])
    flow, marginals = minimum(objective, matrix, bound, "choose the first-order method")
    return ApproximateSolution(flow[:-1], np.abs(marginals[:classes]) / small.class_size)


def shorten(reduction: Reduction, solution: ApproximateSolution) -> ApproximateSolution:
    """Return `solution` with the flows that have the least total load without raising the largest load / capacity."""
    small, (net, demands) = reduction.small, _deliveries(reduction)
    loads = of_entries(*_load_entries(reduction), len(small.class_size), reduction.column_count)
    capacity = small.class_capacity / float(small.class_capacity.max())
    longest = float(np.max(np.asarray(loads @ solution.class_flow) / capacity))
    bound = np.concatenate([capacity * longest * (1 + _SLACK), -demands])
    matrix = sparse.vstack([loads, -net], format="csr")
    flow, _ = minimum(loads.T @ small.class_size, matrix, bound, "choose the first-order method")
    return ApproximateSolution(flow, solution.prices)


def _load_entries(reduction: Reduction) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Return load matrix entries: (link class, variable class, load of each such link if the variable is 1)."""
    small = reduction.small
    share = small.weights[:, np.newaxis] / small.class_size[small.link_class][np.newaxis, :]
    rows, used = np.broadcast_to(small.link_class, reduction.columns.shape), _usable(small)
    return rows[used], reduction.columns[used], share[used]


def _deliveries(reduction: Reduction) -> tuple[SparseMatrix, Floats]:
    """Return the matrix and the right-hand side of the constraints that every target receives its demand.

    Each class of equivalent (source, node) pairs has one row, for its first pair: the flow into the node minus the flow
    out of it. A source has no row for itself.
    """
    small = reduction.small
    flat = np.full(reduction.rows.size, -1, dtype=np.int64)
    labels, first = np.unique(reduction.rows.reshape(-1), return_index=True)
    flat[first] = labels
    chosen = flat.reshape(reduction.rows.shape)
    chosen[np.arange(len(chosen)), small.sources] = -1
    usable, parts = _usable(small), []
    for ends, sign in ((small.dst, 1.0), (small.src, -1.0)):
        rows = chosen[:, ends]
        used = (rows >= 0) & usable
        parts.append((rows[used], reduction.columns[used], np.full(int(used.sum()), sign)))
    net, columns, signs = (np.concatenate(column) for column in zip(*parts, strict=True))
    demands = np.zeros(reduction.row_count)
    source, node = np.nonzero(chosen >= 0)
    demands[chosen[source, node]] = small.demand[source % len(small.demand), node]
    return of_entries(net, columns, signs, reduction.row_count, reduction.column_count), demands


def _usable(small: Commodities) -> NDArray[np.bool_]:
    """Return bool[K', links]: whether a source's flow may use a link. False for links that lead back to the source."""
    usable: NDArray[np.bool_] = small.dst[np.newaxis, :] != small.sources[:, np.newaxis]
    return usable
