"""The all-to-all problem reduced to the classes of colour refinement, and solutions mapped back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.alltoall.colour_refinement import (
    Colours,
    ColourTable,
    column_colours,
    count_colours,
    refine,
)
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.topology.topology import Topology

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
