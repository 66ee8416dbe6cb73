"""One transport problem after the other: rows that need amounts, places that have them, and who may go where."""

from __future__ import annotations

import numpy as np

from chorale.synth.compiled import compiled, inlined
from chorale.synth.flow.graph import Integers
from chorale.synth.flow.oracle import Flags


@compiled
def transport(allowed: Flags, needs: Integers, capacity: Integers, amounts: Integers) -> bool:
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
    closed = np.zeros(len(capacity), dtype=np.bool_)
    placed = True
    for row in np.argsort(choices, kind="mergesort"):
        while needs[row] > 0:
            amount = _place(row, allowed, needs, capacity, amounts)
            if amount == 0:
                amount = _make_room(row, needs[row], allowed, capacity, amounts, closed)
            needs[row] -= amount
            if amount == 0:
                placed = False
                break
    return placed


@inlined
def _place(row: int, allowed: Flags, needs: Integers, capacity: Integers, amounts: Integers) -> int:
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
    return amount


@inlined
def _make_room(row: int, need: int, allowed: Flags, capacity: Integers, amounts: Integers, closed: Flags) -> int:
    """Place up to `need` units of `row` by moving others along a shortest chain; return how many, 0 if none.

    closed: places from which no chain leads to any that has something left; those found now are added
    """
    places = len(capacity)
    before, mover = np.full(places, -1, dtype=np.int64), np.full(places, -1, dtype=np.int64)
    queue, tail = np.empty(places, dtype=np.int64), 0
    for place in range(places):
        if allowed[row, place] and not closed[place]:
            mover[place] = row
            queue[tail] = place
            tail += 1
    head = 0
    while head < tail and capacity[queue[head]] == 0:
        full = queue[head]
        head += 1
        for other in range(len(allowed)):
            if amounts[other, full] > 0:
                for place in range(places):
                    if allowed[other, place] and mover[place] < 0 and not closed[place]:
                        before[place], mover[place] = full, other
                        queue[tail] = place
                        tail += 1
    if head == tail:
        closed[queue[:tail]] = True
        return 0
    return _move(queue[head], need, before, mover, capacity, amounts)


@inlined
def _move(last: int, need: int, before: Integers, mover: Integers, capacity: Integers, amounts: Integers) -> int:
    """Move up to `need` units along the chain that ends at `last`; return how many."""
    amount, place = int(min(need, capacity[last])), last
    while before[place] >= 0:
        amount = min(amount, int(amounts[mover[place], before[place]]))
        place = before[place]
    capacity[last] -= amount
    place = last
    while place >= 0:
        amounts[mover[place], place] += amount
        if before[place] >= 0:
            amounts[mover[place], before[place]] -= amount
        place = before[place]
    return amount
