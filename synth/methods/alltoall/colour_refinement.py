"""Colour refinement of the all-to-all linear program: which rows and columns have equal values in some optimum.

Two rows get one colour if they meet columns of the same colours equally often, and the other way round, until
nothing changes: one variable per class and one row per class then give the same value, without a search for symmetries.
Source: Grohe, Kersting, Mladenov, Selman, "Dimension reduction via colour refinement" (2014). Colours are 64-bit
hashes; a collision could only make the reduction wrong, and what it yields is certified without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import FIRST, SECOND, STEP
from chorale.synth.methods.alltoall.commodities import Commodities
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
