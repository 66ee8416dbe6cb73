"""A transport problem of many rows and few places, kept small: what each row needs goes to places that it may use."""

from __future__ import annotations

import numpy as np

from chorale.synth.bounds.cut_oracle import Flags
from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.kernels.compiled import inlined
from chorale.synth.kernels.types import Matrix


@inlined
def transport(allowed: Matrix[np.bool_], needs: Integers, capacity: Integers, amounts: Matrix[np.int64]) -> bool:
    """Place as much as possible of what rows need; return whether that is everything.

    allowed:  bool[rows, places]
    needs, capacity: int64 per row and per place; both are lowered by what is placed
    amounts:  int64[rows, places], may hold what was placed before under fewer permissions; updated

    Rows with the fewest places come first, each where most is left; where nothing is left, other rows move over.
    O(rows * places) per move; few are needed.
    """
    choices = np.zeros(len(needs), dtype=np.int64)
    for row in range(len(needs)):
        choices[row] = allowed[row].sum()
    holds = np.zeros((len(capacity), len(needs)), dtype=np.bool_)
    for row in range(len(needs)):
        for place in range(len(capacity)):
            holds[place, row] = amounts[row, place] > 0
    closed = np.zeros(len(capacity), dtype=np.bool_)
    placed = True
    for row in np.argsort(choices, kind="mergesort"):
        while needs[row] > 0:
            amount = _place(row, allowed, needs, capacity, amounts, holds)
            if amount == 0:
                amount = _make_room(row, needs[row], allowed, capacity, amounts, holds, closed)
            needs[row] -= amount
            if amount == 0:
                placed = False
                break
    return placed


@inlined
def _place(
    row: int,
    allowed: Matrix[np.bool_],
    needs: Integers,
    capacity: Integers,
    amounts: Matrix[np.int64],
    holds: Matrix[np.bool_],
) -> int:
    """Use the place with most left; return how much of it."""
    place = -1
    for other in range(len(capacity)):
        if allowed[row, other] and (place < 0 or capacity[other] > capacity[place]):
            place = other
    if place < 0:
        return 0
    amount = int(min(needs[row], capacity[place]))
    capacity[place] -= amount
    amounts[row, place] += amount
    holds[place, row] = amounts[row, place] > 0
    return amount


@inlined
def _make_room(
    row: int,
    need: int,
    allowed: Matrix[np.bool_],
    capacity: Integers,
    amounts: Matrix[np.int64],
    holds: Matrix[np.bool_],
    closed: Flags,
) -> int:
    """Place up to `need` units of `row` by moving others along a shortest chain; return how many, 0 if none.

    holds:  bool[places, rows]: where `amounts` are above 0
    closed: places from which no chain leads to any that has something left; those found now are added
    """
    places = len(capacity)
    before, mover = np.full(places, -1, dtype=np.int64), np.full(places, -1, dtype=np.int64)
    queue, open_places = np.empty(places, dtype=np.int64), np.empty(places, dtype=np.int64)
    head, tail, left = 0, 0, 0
    for place in range(places):
        if not closed[place]:
            open_places[left] = place
            left += 1
    unmoved = np.ones(len(allowed), dtype=np.bool_)
    # A chain ends at the first place with something left that is reached, so the search need not go beyond.
    tail, left = _reach(row, -1, allowed, open_places, left, before, mover, queue, tail)
    end = _first_with_room(queue, 0, tail, capacity)
    while head < tail and end < 0:
        full = queue[head]
        head += 1
        for other in range(len(unmoved)):
            if holds[full, other] and unmoved[other]:
                unmoved[other] = False
                known = tail
                tail, left = _reach(other, full, allowed, open_places, left, before, mover, queue, tail)
                end = _first_with_room(queue, known, tail, capacity)
                if end >= 0:
                    break
    if end < 0:
        for column in queue[:tail]:
            closed[column] = True
        return 0
    return _move(end, need, before, mover, capacity, amounts, holds)


@inlined
def _reach(
    row: int,
    full: int,
    allowed: Matrix[np.bool_],
    open_places: Integers,
    left: int,
    before: Integers,
    mover: Integers,
    queue: Integers,
    tail: int,
) -> tuple[int, int]:
    """Queue the places, among the first `left` of `open_places`, to which `row` may move from `full`; the others stay.

    Returns the new length of the queue and how many places stay.
    """
    kept = 0
    for index in range(left):
        place = open_places[index]
        if allowed[row, place]:
            before[place], mover[place] = full, row
            queue[tail] = place
            tail += 1
        else:
            open_places[kept] = place
            kept += 1
    return tail, kept


@inlined
def _first_with_room(queue: Integers, begin: int, end: int, capacity: Integers) -> int:
    for index in range(begin, end):
        if capacity[queue[index]] > 0:
            return int(queue[index])
    return -1


@inlined
def _move(
    last: int,
    need: int,
    before: Integers,
    mover: Integers,
    capacity: Integers,
    amounts: Matrix[np.int64],
    holds: Matrix[np.bool_],
) -> int:
    """Move up to `need` units along the chain that ends at `last`; return how many."""
    amount, place = int(min(need, capacity[last])), last
    while before[place] >= 0:
        amount = min(amount, int(amounts[mover[place], before[place]]))
        place = before[place]
    capacity[last] -= amount
    place = last
    while place >= 0:
        amounts[mover[place], place] += amount
        holds[place, mover[place]] = True
        if before[place] >= 0:
            amounts[mover[place], before[place]] -= amount
            holds[before[place], mover[place]] = amounts[mover[place], before[place]] > 0
        place = before[place]
    return amount
