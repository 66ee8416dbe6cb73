"""When the memory of a rank is free, and what it holds is there: what puts the steps of a program into rounds."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from chorale.synth.programs.memory import Layout


class LocalStep(NamedTuple):
    """`chunks` cells from `target` on become those from `left` on, combined with those from `right` on if there are."""

    target: int
    left: int
    right: int | None
    chunks: int


class RankTimes:
    """When cells of a rank are touched: at time 2 k by local steps before round k, at 2 k + 1 by messages of round k.

    Cells from that of `spare` on are spare memory, each piece of it used once; `packed` lets pieces share memory.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._written = [0] * layout.cells
        self._read = [0] * layout.cells
        self._spare: list[tuple[int, int, int]] = []  # time of the first use, cell, count
        self.steps: list[tuple[int, LocalStep]] = []

    def send(self, first: int, count: int) -> int:
        """Return the time at which cells can be sent."""
        cells = slice(first, first + count)
        time = (max(self._written[cells]) + 1) | 1
        self._note_read(cells, time)
        return time

    def spare(self, count: int, time: int) -> int:
        """Return the first of new cells that receive a message at `time`."""
        first = len(self._written)
        self._written += [time] * count
        self._read += [0] * count
        self._spare.append((time, first, count))
        return first

    def receive(self, first: int, count: int, time: int) -> int:
        """Receive a message at `time` that is to lie in cells from `first` on; return the cells to receive it into."""
        cells = slice(first, first + count)
        if max(*self._written[cells], *self._read[cells]) < time:
            self._written[cells] = [time] * count
            return first
        spare = self.spare(count, time)
        self.local(LocalStep(first, spare, None, count))
        return spare

    def local(self, step: LocalStep) -> None:
        """Do a local step as early as possible."""
        operands = [slice(at, at + step.chunks) for at in (step.left, step.right) if at is not None]
        target = slice(step.target, step.target + step.chunks)
        latest = max(*self._read[target], *self._written[target], *(max(self._written[cells]) for cells in operands))
        time = latest + latest % 2
        for cells in operands:
            self._note_read(cells, time)
        self._written[target] = [time] * step.chunks
        self.steps.append((time, step))

    def packed(self) -> tuple[dict[int, int], int]:
        """Return where pieces of spare memory lie by their first cells, and how many spare cells there are."""
        moved, end = {}, self.layout.cells
        free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by count: time of the last use, cell
        for time, first, count in sorted(self._spare):
            cells = slice(first, first + count)
            last = max(*self._written[cells], *self._read[cells])
            reusable = min(free[count], default=(time, 0))
            if reusable[0] < time:
                free[count].remove(reusable)
                moved[first] = reusable[1]
            else:
                moved[first], end = end, end + count
            free[count].append((last, moved[first]))
        return moved, end - self.layout.cells

    def _note_read(self, cells: slice, time: int) -> None:
        self._read[cells] = [max(time, before) for before in self._read[cells]]
