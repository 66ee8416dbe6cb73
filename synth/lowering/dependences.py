"""Which instruction of a rank must wait for which other: exactly those that share a chunk, and no wait twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from synth.lowering.drafts import BlockKey, Draft
from synth.lowering.memory import Layout
from synth.lowering.program import Instruction, Wait


def instructions_of_blocks(
    drafts: Sequence[Draft], keys: Sequence[BlockKey], layout: Layout
) -> list[tuple[Instruction, ...]]:
    """Return the instructions of each block of `keys` with all waits they need and none that follow from others.

    `drafts` in order is a right sequential execution. An instruction depends on an earlier one where it reads
    what that wrote, writes what that read, or writes what that wrote, cell by cell; order within a block needs
    no wait. Clocks over the blocks leave out what other waits imply. O(chunks touched + drafts * blocks).
    """
    index_of = {key: index for index, key in enumerate(keys)}
    blocks: list[list[Instruction]] = [[] for _ in keys]
    clocks = _Clocks(len(keys))
    for draft, earlier in zip(drafts, _dependences(drafts, layout), strict=True):
        block = index_of[draft.block]
        waits = clocks.advance(block, sorted(earlier, reverse=True))
        blocks[block].append(Instruction(draft.op, draft.src, draft.dst, draft.count, waits))
    return [tuple(instructions) for instructions in blocks]


def _dependences(drafts: Iterable[Draft], layout: Layout) -> Iterator[set[int]]:
    """Yield, for each draft, the numbers of the earlier drafts that it depends on."""
    writer = [-1] * layout.cells
    readers: list[list[int]] = [[] for _ in range(layout.cells)]
    for number, draft in enumerate(drafts):
        earlier: set[int] = set()
        if draft.op.reads_src:
            for cell in _cells(layout.cell(draft.src), draft.count):
                earlier.add(writer[cell])
                readers[cell].append(number)
        if draft.op.writes_dst:
            for cell in _cells(layout.cell(draft.dst), draft.count):
                earlier.add(writer[cell])
                earlier.update(readers[cell])
                writer[cell], readers[cell] = number, []
        yield earlier - {-1, number}


def _cells(first: int, count: int) -> range:
    return range(first, first + count)


class _Clocks:
    """What each block knows to be finished: clock[b] instructions of block b."""

    def __init__(self, blocks: int) -> None:
        self._now: list[NDArray[np.int64]] = [np.zeros(blocks, dtype=np.int64) for _ in range(blocks)]
        self._done: list[tuple[int, int, NDArray[np.int64]]] = []

    def advance(self, block: int, earlier: Sequence[int]) -> tuple[Wait, ...]:
        """Add the next instruction, of `block`, which depends on `earlier` ones, latest first; return its waits.

        A later instruction may imply an earlier one, never the other way round, so going from the latest back
        keeps no wait that another implies.
        """
        clock = self._now[block].copy()
        waits = []
        for number in earlier:
            other, step, known = self._done[number]
            if clock[other] <= step and other != block:
                waits.append(Wait(other, step))
                np.maximum(clock, known, out=clock)
        step = int(self._now[block][block])
        clock[block] = step + 1
        self._now[block] = clock
        self._done.append((block, step, clock))
        return tuple(sorted(waits, key=lambda wait: (wait.block, wait.step)))
