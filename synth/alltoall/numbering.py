"""Dense numbers for 64-bit colours, by an open-addressing table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled

Colours = NDArray[np.uint64]
EMPTY = np.int64(-1)


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
            if room <= 0:
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
