"""List scheduling of transfers over links, as machine code: each free link takes the longest remaining path first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.heap import drop_first, push
from chorale.synth.lowering.vector_layout import Column

NO_ROW = -1


class Moves(NamedTuple):
    """What rows need of links: row i keeps each of `links[first[i] : end[i]]` busy for `chunks[i]` times its weight."""

    chunks: Column
    first: Column
    end: Column
    links: NDArray[np.int32]
    weight: Column


class Visits(NamedTuple):
    """What rows need of one another. A row visits the cells of its chunks at both its ends; the visits of row i are
    `first[i]` to `first[i + 1] - 1`. Those that a cell gets in a row, all to write or all to read, are a run; runs of a
    cell follow one another.

    run:       which run each visit belongs to
    rows:      the rows of all runs, run by run; those of run r begin at `run_first[r]`
    is_last:   1 for the last run of each cell
    """

    first: Column
    run: Column
    rows: Column
    run_first: Column
    is_last: NDArray[np.int8]


@compiled
def remaining_times(moves: Moves, visits: Visits, latest_first: Column) -> Column:
    """Return for each row how long it takes until all that waits for it is through, as if links were never shared.

    `latest_first` names the rows, whatever waits before what it waits for. O(visits).
    """
    tail = np.zeros(len(moves.chunks), dtype=np.int64)
    of_run = np.zeros(len(visits.run_first), dtype=np.int64)
    for row in latest_first:
        after = 0
        for visit in range(visits.first[row], visits.first[row + 1]):
            run = visits.run[visit]
            if not visits.is_last[run]:
                after = max(after, of_run[run + 1])
        slowest = 0
        for position in range(moves.first[row], moves.end[row]):
            slowest = max(slowest, moves.weight[moves.links[position]])
        tail[row] = after + slowest * moves.chunks[row]
        for visit in range(visits.first[row], visits.first[row + 1]):
            of_run[visits.run[visit]] = max(of_run[visits.run[visit]], tail[row])
    return tail


class SchedulingState(NamedTuple):
    """Where the scheduling stands.

    start, before: the result, see `start_times`
    ready, needs:  of each row: when the last of what it waits for was through, and how many runs it still waits for
    pending, begun, done: of each run: rows not yet started, when the last one started, when the last one is through
    free, waiting: of each link: when it is free, and the top of the heap of those that wait for it
    left, right:   of each waiting row, by rank: what is below it in its heap
    keys, nodes, size: the heap of what happens when: a row is ready (its rank), or a link free (rows + link)
    """

    start: Column
    before: Column
    ready: Column
    needs: Column
    pending: Column
    begun: Column
    done: Column
    free: Column
    waiting: Column
    left: Column
    right: Column
    keys: NDArray[np.float64]
    nodes: NDArray[np.int32]
    size: Column


@compiled
def start_times(moves: Moves, visits: Visits, row_at: Column, rank: Column) -> tuple[Column, Column]:
    """Return when each row starts, and when the last of those that it waits for started (-1: it waits for none).

    A link that is free takes of the rows that are ready the one of the lowest `rank`; `row_at` is its inverse. Further
    links of a route take rows one after the other as they come: switches have room for what waits. Times are whole
    numbers below 2^53, so that the heap's keys hold them exactly.
    O(visits + links of rows + rows * log(rows)).
    """
    rows = len(row_at)
    state = _begin(moves, visits, rows)
    for row in range(rows):
        if state.needs[row] == 0:
            _note(state, 0, rank[row])
    while state.size[0]:
        time, node = int(state.keys[0]), int(state.nodes[0])
        state.size[0] = drop_first(state.keys, state.nodes, state.size[0])
        if node < rows:
            link = moves.links[moves.first[row_at[node]]]
            state.waiting[link] = _joined(state.waiting[link], node, state.left, state.right)
            _note(state, max(time, state.free[link]), rows + link)
            continue
        link = node - rows
        if state.waiting[link] != NO_ROW and state.free[link] > time:  # a row has it meanwhile as a further link
            _note(state, state.free[link], node)
        elif state.waiting[link] != NO_ROW:
            top = state.waiting[link]
            state.waiting[link] = _joined(state.left[top], state.right[top], state.left, state.right)
            finish = _occupy(moves, row_at[top], state, time)
            _note(state, state.free[link], rows + link)
            _finish(visits, row_at[top], state, time, finish, rank)
    return state.start, state.before


@compiled
def time_stretches(start: Column, before: Column, order: Column) -> Column:
    """Return for each row, named in the `order` of their starts, the number of its stretch of time: no row of a
    stretch waits for another one of it. O(rows)."""
    stretch = np.zeros(len(start), dtype=np.int64)
    number, begin = 0, 0
    for row in order:
        if before[row] >= begin:
            number, begin = number + 1, start[row]
        stretch[row] = number
    return stretch


@inlined
def _begin(moves: Moves, visits: Visits, rows: int) -> SchedulingState:
    """Return the state in which nothing has started."""
    runs, links = len(visits.run_first) - 1, len(moves.weight)
    events = 3 * rows
    return SchedulingState(
        np.full(rows, -1, dtype=np.int64),
        np.full(rows, -1, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        _needs(visits, rows),
        visits.run_first[1:] - visits.run_first[:-1],
        np.zeros(runs, dtype=np.int64),
        np.zeros(runs, dtype=np.int64),
        np.zeros(links, dtype=np.int64),
        np.full(links, NO_ROW, dtype=np.int64),
        np.full(rows, NO_ROW, dtype=np.int64),
        np.full(rows, NO_ROW, dtype=np.int64),
        np.empty(events, dtype=np.float64),
        np.empty(events, dtype=np.int32),
        np.zeros(1, dtype=np.int64),
    )


@inlined
def _note(state: SchedulingState, time: int, node: int) -> None:
    state.size[0] = push(state.keys, state.nodes, state.size[0], float(time), node)


@inlined
def _occupy(moves: Moves, row: int, state: SchedulingState, time: int) -> int:
    """Let `row` have its first link from `time` on and each further one when it is free; return when it is through."""
    finish = time
    for position in range(moves.first[row], moves.end[row]):
        link = moves.links[position]
        state.free[link] = max(state.free[link], time) + moves.weight[link] * moves.chunks[row]
        finish = max(finish, state.free[link])
    return finish


@inlined
def _finish(visits: Visits, row: int, state: SchedulingState, time: int, finish: int, rank: Column) -> None:
    """Let rows that wait for nothing but `row`, which starts at `time`, be ready at its end."""
    state.start[row] = time
    for visit in range(visits.first[row], visits.first[row + 1]):
        run = visits.run[visit]
        state.begun[run], state.done[run] = max(state.begun[run], time), max(state.done[run], finish)
        state.pending[run] -= 1
        if state.pending[run] or visits.is_last[run]:
            continue
        for position in range(visits.run_first[run + 1], visits.run_first[run + 2]):
            other = visits.rows[position]
            state.ready[other] = max(state.ready[other], state.done[run])
            state.before[other] = max(state.before[other], state.begun[run])
            state.needs[other] -= 1
            if state.needs[other] == 0:
                _note(state, state.ready[other], rank[other])


@inlined
def _needs(visits: Visits, rows: int) -> Column:
    """Return how many of the runs that each row visits have to wait for the one before."""
    needs = np.zeros(rows, dtype=np.int64)
    for row in range(rows):
        for visit in range(visits.first[row], visits.first[row + 1]):
            run = visits.run[visit]
            needs[row] += run > 0 and not visits.is_last[run - 1]
    return needs


@inlined
def _joined(first: int, other: int, left: Column, right: Column) -> int:
    """Return the top of two heaps made one: skew heaps, the smallest on top. O(log(members)), amortised.

    Source: Sleator and Tarjan, "Self-adjusting heaps", 1986.
    """
    if min(first, other) == NO_ROW:
        return max(first, other)
    top, other = min(first, other), max(first, other)
    node = top
    while True:
        below = right[node]
        right[node] = left[node]
        if below == NO_ROW:
            left[node] = other
            return top
        left[node] = min(below, other)
        node, other = min(below, other), max(below, other)
