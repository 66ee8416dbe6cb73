"""Finds pairs of accesses to one cell that nothing orders, by vector clocks over the blocks.

A program has no branches, so which accesses are ordered does not depend on how an execution happened to go: one
execution finds a race if there is one. Order comes from the sequence within a block, from waits, and from messages
(what a rank did before it sent is before what the receiver does after it received). Free slots of a queue are no
order to rely on.

The clock per block and the last accesses per cell follow C. Flanagan, S. Freund, "FastTrack" (PLDI 2009), with
full sets of readers.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.program import Program

Clock = NDArray[np.int32]


class HappensBefore:
    """Clocks of all blocks and the last accesses of all cells of one execution.

    Blocks are numbered through all ranks, rank by rank. Without `across_ranks`, order through messages is not
    counted: clocks are then as short as the blocks of a rank, and what is ordered so is ordered in any case.
    """

    def __init__(self, program: Program, across_ranks: bool) -> None:
        counts = [len(rank.blocks) for rank in program.ranks]
        self._across = across_ranks
        self._rank = [rank for rank, count in enumerate(counts) for _ in range(count)]
        within = [index for count in counts for index in range(count)]
        self._component = list(range(len(within))) if across_ranks else within
        length = len(within) if across_ranks else max(counts, default=0)
        self._clocks = [np.zeros(length, dtype=np.int32) for _ in within]
        self._waited = set(_waited_steps(program))
        self._finished: dict[tuple[int, int], Clock] = {}
        self._writes: list[dict[int, tuple[int, int]]] = [{} for _ in counts]
        self._reads: list[dict[int, dict[int, int]]] = [{} for _ in counts]

    def tick(self, block: int) -> None:
        """Begin the next message of `block`."""
        self._clocks[block][self._component[block]] += 1

    def wait(self, block: int, other: int, step: int) -> None:
        """Order everything up to the end of `step` of block `other` before what `block` does from now on."""
        clock = self._clocks[block]
        np.maximum(clock, self._finished[other, step], out=clock)

    def finish(self, block: int, step: int) -> None:
        """Note the end of `step` of `block`."""
        if (block, step) in self._waited:
            self._finished[block, step] = self._clocks[block].copy()

    def send(self, block: int) -> Clock | None:
        """Return what a message of `block` carries."""
        return self._clocks[block].copy() if self._across else None

    def receive(self, block: int, clock: Clock | None) -> None:
        """Order what the sender of a message did before what `block` does from now on."""
        if clock is not None:
            np.maximum(self._clocks[block], clock, out=self._clocks[block])

    def read(self, block: int, cell: int) -> int | None:
        """Note that `block` reads `cell` of its rank; return a block whose write it races with, if any."""
        rank = self._rank[block]
        self._reads[rank].setdefault(cell, {})[block] = self._now(block)
        return self._unordered_write(block, cell)

    def write(self, block: int, cell: int) -> int | None:
        """Note that `block` writes `cell` of its rank; return a block whose access it races with, if any."""
        rank = self._rank[block]
        other = self._unordered_write(block, cell)
        for reader, when in self._reads[rank].pop(cell, {}).items():
            if not self._ordered(block, reader, when):
                other = reader
        self._writes[rank][cell] = (block, self._now(block))
        return other

    def _unordered_write(self, block: int, cell: int) -> int | None:
        write = self._writes[self._rank[block]].get(cell)
        return None if write is None or self._ordered(block, *write) else write[0]

    def _ordered(self, block: int, other: int, when: int) -> bool:
        return block == other or bool(self._clocks[block][self._component[other]] >= when)

    def _now(self, block: int) -> int:
        return int(self._clocks[block][self._component[block]])


def _waited_steps(program: Program) -> Iterable[tuple[int, int]]:
    first = 0
    for rank in program.ranks:
        for block in rank.blocks:
            for instruction in block.instructions:
                for wait in instruction.waits:
                    yield first + wait.block, wait.step
        first += len(rank.blocks)
