"""Colour refinement of the all-to-all linear program: which rows and columns have equal values in some optimum.

Two rows get one colour if they meet columns of the same colours equally often, and the other way round, until
nothing changes: one variable per class and one row per class then give the same value, without a search for symmetries.
Source: Grohe, Kersting, Mladenov, Selman, "Dimension reduction via colour refinement" (2014). Colours are 64-bit
hashes; a collision could only make the reduction wrong, and what it yields is certified without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.splitmix import FIRST, SECOND, STEP, mix
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.topology.distance import distances_from
from chorale.synth.topology.topology import Topology

Colours = NDArray[np.uint64]
EMPTY = np.int64(-1)
_MANY_CELLS = 2**24


class ColourTable:
    """Numbers colours 0, 1, 2, … in the order in which they are first seen."""

    def __init__(self, expected: int) -> None:
        """`expected`: about how many different colours will come; more are allowed."""
        self._slots = _slots_for(expected)
        self._keys = np.zeros(self._slots, dtype=np.uint64)
        self._numbers = np.full(self._slots, EMPTY, dtype=np.int64)
        self.count = 0

    def number(self, colours: Colours) -> NDArray[np.int32]:
        """Return int32 numbers of the shape of `colours`. O(colours)."""
        flat = np.ascontiguousarray(colours).reshape(-1)
        numbers = np.empty(len(flat), dtype=np.int32)
        start = 0
        while start < len(flat):
            room = self._slots // 2 - self.count
            if room < self._slots // 8:  # a call for each few colours would take most of the time
                self._grow()
                continue
            stop = min(len(flat), start + room)
            self.count = _number(flat[start:stop], self._keys, self._numbers, self.count, numbers[start:stop])
            start = stop
        return numbers.reshape(colours.shape)

    def _grow(self) -> None:
        used = np.flatnonzero(self._numbers != EMPTY)
        ordered = self._keys[used[np.argsort(self._numbers[used])]]
        self._slots *= 4
        self._keys = np.zeros(self._slots, dtype=np.uint64)
        self._numbers = np.full(self._slots, EMPTY, dtype=np.int64)
        _number(ordered, self._keys, self._numbers, 0, np.empty(len(ordered), dtype=np.int32))


def count_colours(colours: Colours) -> int:
    """Return how many different colours there are. O(colours)."""
    table = ColourTable(2**10)
    table.number(colours)
    return table.count


def _slots_for(expected: int) -> int:
    return 1 << max(10, (4 * expected - 1).bit_length())


@compiled
def _number(colours: Colours, keys: Colours, numbers: NDArray[np.int64], count: int, result: NDArray[np.int32]) -> int:
    """Look up or insert each colour; `keys` must have room for all. Returns the new count."""
    mask = np.uint64(len(keys) - 1)
    for index in range(len(colours)):
        colour = colours[index]
        slot = colour & mask
        while numbers[slot] != EMPTY and keys[slot] != colour:
            slot = (slot + np.uint64(1)) & mask
        if numbers[slot] == EMPTY:
            keys[slot] = colour
            numbers[slot] = count
            count += 1
        result[index] = numbers[slot]
    return count


_OUT, _IN, _LOAD = np.uint64(0x1D8E4E27C47D124F), np.uint64(0xEB44ACCAB455D165), np.uint64(0x632BE59BD9B4E019)


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
        _round(
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
    _columns(problem.src, problem.dst, problem.link_class, rows[block], capacities, colours)
    return colours


def _mixed(colours: Colours, values: NDArray[np.integer]) -> Colours:
    with np.errstate(over="ignore"):
        text = colours * FIRST + values.astype(np.uint64) * SECOND + STEP
        text = (text ^ (text >> np.uint64(30))) * FIRST
        return (text ^ (text >> np.uint64(27))) * SECOND


@inlined
def _mix(value: np.uint64) -> np.uint64:
    return mix(value + STEP)


@inlined
def _column(row_src: np.uint64, row_dst: np.uint64, capacity: np.uint64) -> np.uint64:
    return _mix(row_src * _OUT + row_dst * _IN + capacity * _LOAD)


@compiled
def _columns(
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    link_class: NDArray[np.int32],
    rows: Matrix[np.uint64],
    capacities: Colours,
    colours: Matrix[np.uint64],
) -> None:
    for source in range(len(rows)):
        for link in range(len(src)):
            colours[source, link] = _column(
                rows[source, src[link]], rows[source, dst[link]], capacities[link_class[link]]
            )


@compiled
def _round(
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    link_class: NDArray[np.int32],
    sources: NDArray[np.int32],
    weights: NDArray[np.int64],
    rows: Matrix[np.uint64],
    capacities: Colours,
    next_rows: Matrix[np.uint64],
    next_capacities: Colours,
) -> None:
    """Give each row a colour made of its own and the sum over its columns; sums do not depend on the order."""
    for source in range(len(rows)):
        old_rows, fresh = rows[source], next_rows[source]
        weight = np.uint64(weights[source])
        fresh[:] = np.uint64(0)
        for link in range(len(src)):
            tail, head = src[link], dst[link]
            if head == sources[source]:
                continue  # no flow returns to its source
            column = _column(old_rows[tail], old_rows[head], capacities[link_class[link]])
            fresh[tail] += _mix(column ^ _OUT)
            fresh[head] += _mix(column ^ _IN)
            next_capacities[link_class[link]] += weight * _mix(column ^ _LOAD)
        for node in range(rows.shape[1]):
            fresh[node] = _mix(old_rows[node] * FIRST + fresh[node])
    for index in range(len(capacities)):
        next_capacities[index] = _mix(capacities[index] * FIRST + next_capacities[index])
