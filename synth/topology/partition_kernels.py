"""Ordered partitions of nodes into cells, refined until links tell no two nodes of a cell apart.

Which cells a refinement makes, and in which order, depends on the network alone and not on the numbers of its nodes:
the same choices in two copies of a network give the same cells. Source: McKay, "Practical graph isomorphism" (1981);
Hopcroft, "An n log n algorithm for minimizing states in a finite automaton" (1971): of the parts of a split cell the
largest need not split others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.splitmix import STEP, mix


class MarkedLinks(NamedTuple):
    """The links of node v: to `heads[heads_offsets[v]:heads_offsets[v + 1]]`, and from nodes of `tails` likewise.

    marks: uint64 by the kind of each link and its direction
    """

    heads_offsets: NDArray[np.int64]
    heads: NDArray[np.int32]
    heads_marks: NDArray[np.uint64]
    tails_offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    tails_marks: NDArray[np.uint64]


class OrderedCells(NamedTuple):
    """A partition: cell after cell in `order`; a cell is called by the position at which it begins.

    order, position: int32 per position and per node, inverse to each other
    cell:            int32 per node
    size:            int32 per cell
    """

    order: NDArray[np.int32]
    position: NDArray[np.int32]
    cell: NDArray[np.int32]
    size: NDArray[np.int32]


class _Splitting(NamedTuple):
    """What one refinement works with.

    sums, is_touched: per node, the marks of its links with the splitting cell, and whether there are any
    touched:          the nodes that have some;  hits: per cell, how many of them
    waiting:          cells that are yet to split others, in a circle;  is_waiting: per cell
    ends:             int64[2]: the first of `waiting`, and how many there are
    """

    sums: NDArray[np.uint64]
    is_touched: NDArray[np.bool_]
    touched: NDArray[np.int32]
    hits: NDArray[np.int32]
    waiting: NDArray[np.int32]
    is_waiting: NDArray[np.bool_]
    ends: NDArray[np.int64]


@inlined
def _wait(state: _Splitting, cell: int) -> None:
    if not state.is_waiting[cell]:
        state.is_waiting[cell] = True
        state.waiting[(state.ends[0] + state.ends[1]) % len(state.waiting)] = cell
        state.ends[1] += 1


@inlined
def _touch(
    members: NDArray[np.int32],
    offsets: NDArray[np.int64],
    ends: NDArray[np.int32],
    marks: NDArray[np.uint64],
    state: _Splitting,
) -> int:
    """Add the marks of the links of `members` to the nodes at their other ends; return how many nodes that are."""
    count = 0
    for index in range(len(members)):
        node = members[index]
        for link in range(offsets[node], offsets[node + 1]):
            other = ends[link]
            if not state.is_touched[other]:
                state.is_touched[other] = True
                state.touched[count] = other
                count += 1
            state.sums[other] += marks[link]
    return count


@inlined
def _gather(cells: OrderedCells, state: _Splitting, count: int, hit: NDArray[np.int32]) -> int:
    """Move the touched nodes to the ends of their cells; write these cells to `hit` and return how many there are."""
    cell_count = 0
    for index in range(count):
        node = state.touched[index]
        cell = cells.cell[node]
        if state.hits[cell] == 0:
            hit[cell_count] = cell
            cell_count += 1
        state.hits[cell] += 1
        place, goal = cells.position[node], cell + cells.size[cell] - state.hits[cell]
        other = cells.order[goal]
        cells.order[goal], cells.order[place] = node, other
        cells.position[node], cells.position[other] = goal, place
    return cell_count


@inlined
def _find(values: NDArray[np.uint64], value: np.uint64) -> int:
    """Return where `value` stands in ascending `values`."""
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _distinct_sums(members: NDArray[np.int32], sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the different sums of `members`, ascending."""
    values = np.empty(len(members), dtype=np.uint64)
    values[0] = sums[members[0]]
    is_even = True
    for index in range(1, len(members)):
        values[index] = sums[members[index]]
        is_even = is_even and values[index] == values[0]
    if is_even:
        return values[:1]
    values.sort()
    count = 1
    for index in range(1, len(members)):
        if values[index] != values[count - 1]:
            values[count] = values[index]
            count += 1
    return values[:count]


@inlined
def _sort_into_parts(
    cells: OrderedCells, members: NDArray[np.int32], start: int, values: NDArray[np.uint64], sums: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Write `members` to `order` from `start` on by the places of their sums in `values`, each place a new cell; return
    where these cells begin, and the end of the last."""
    starts = np.zeros(len(values) + 1, dtype=np.int64)
    for index in range(len(members)):
        starts[_find(values, sums[members[index]]) + 1] += 1
    starts[0] = start
    for part in range(len(values)):
        starts[part + 1] += starts[part]
    free = starts.copy()
    for index in range(len(members)):
        node = members[index]
        part = _find(values, sums[node])
        place = free[part]
        free[part] += 1
        cells.order[place], cells.position[node], cells.cell[node] = node, place, starts[part]
    return starts


@inlined
def _split(cells: OrderedCells, state: _Splitting, cell: int, digest: np.uint64) -> np.uint64:
    """Split `cell` by the sums of its nodes, the touched ones at its end; return `digest` with what came of it."""
    size, hits = int(cells.size[cell]), int(state.hits[cell])
    members = cells.order[cell + size - hits : cell + size].copy()
    values = _distinct_sums(members, state.sums)
    digest = mix(digest ^ (np.uint64(cell) * STEP + np.uint64(hits)))
    if len(values) == 1 and hits == size:
        return mix(digest ^ values[0])
    starts = _sort_into_parts(cells, members, cell + size - hits, values, state.sums)
    largest, most = cell, size - hits
    if hits < size:
        cells.size[cell] = size - hits
    for part in range(len(values)):
        width = starts[part + 1] - starts[part]
        cells.size[starts[part]] = width
        digest = mix(digest ^ (values[part] + np.uint64(width)))
        if width > most:
            largest, most = starts[part], width
    splits_all = state.is_waiting[cell]
    if hits < size and (splits_all or largest != cell):
        _wait(state, cell)
    for part in range(len(values)):
        if splits_all or largest != starts[part]:
            _wait(state, starts[part])
    return digest


@inlined
def _clear(state: _Splitting, count: int) -> None:
    for index in range(count):
        state.sums[state.touched[index]] = np.uint64(0)
        state.is_touched[state.touched[index]] = False


@compiled
def refine_cells(links: MarkedLinks, cells: OrderedCells, first: int, trace: NDArray[np.uint64], follows: bool) -> int:
    """Refine `cells` in place; return how many entries of `trace` that took, -1 if it went another way than `trace`.

    first:   the cell that splits others first, the only one to do so for now; -1 for all cells
    trace:   a digest of each step, written; with `follows`, read: the refinement of another copy of the network, which
             ends early where a step differs

    O(links * log nodes) over all refinements of one partition on its way to single nodes.
    """
    nodes = len(cells.order)
    state = _Splitting(
        np.zeros(nodes, dtype=np.uint64), np.zeros(nodes, dtype=np.bool_), np.empty(nodes, dtype=np.int32),
        np.zeros(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32), np.zeros(nodes, dtype=np.bool_),
        np.zeros(2, dtype=np.int64),
    )  # fmt: skip
    hit = np.empty(nodes, dtype=np.int32)
    if first >= 0:
        _wait(state, first)
    else:
        start = 0
        while start < nodes:
            _wait(state, start)
            start += int(cells.size[start])
    used = 0
    while state.ends[1] > 0:
        splitter = int(state.waiting[state.ends[0]])
        state.ends[0] = (state.ends[0] + 1) % nodes
        state.ends[1] -= 1
        state.is_waiting[splitter] = False
        members = cells.order[splitter : splitter + cells.size[splitter]].copy()
        digest = mix(np.uint64(splitter) * STEP + np.uint64(len(members)))
        for direction in range(2):
            if direction == 0:
                count = _touch(members, links.heads_offsets, links.heads, links.heads_marks, state)
            else:
                count = _touch(members, links.tails_offsets, links.tails, links.tails_marks, state)
            cell_count = _gather(cells, state, count, hit)
            hit[:cell_count].sort()
            for index in range(cell_count):
                digest = _split(cells, state, hit[index], digest)
                state.hits[hit[index]] = 0
            _clear(state, count)
        if used == len(trace) or (follows and trace[used] != digest):
            return -1
        trace[used] = digest
        used += 1
    return used


@compiled
def set_apart(cells: OrderedCells, node: int) -> int:
    """Make `node` a cell before the rest of its cell, which has other nodes; return the new cell."""
    cell = int(cells.cell[node])
    size = int(cells.size[cell])
    place, other = cells.position[node], cells.order[cell]
    cells.order[cell], cells.order[place] = node, other
    cells.position[node], cells.position[other] = cell, place
    for index in range(cell + 1, cell + size):
        cells.cell[cells.order[index]] = cell + 1
    cells.size[cell], cells.size[cell + 1] = 1, size - 1
    return cell


@compiled
def smallest_shared_cell(cells: OrderedCells) -> int:
    """Return the first of the smallest cells of several nodes, -1 where every node has its own. O(nodes)."""
    smallest, start = -1, 0
    while start < len(cells.order):
        if cells.size[start] > 1 and (smallest < 0 or cells.size[start] < cells.size[smallest]):
            smallest = start
        start += int(cells.size[start])
    return smallest
