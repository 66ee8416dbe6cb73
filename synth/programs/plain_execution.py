"""Executes a program on any kind of value, in plain Python, for questions that sets of contributions cannot answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from chorale.synth.programs.flat_program import (
    COUNT,
    DST,
    FIRST,
    FIRST_NEIGHBOUR,
    FIRST_WAIT,
    FLAGS,
    INCOMING,
    OUTGOING,
    READS_DST,
    READS_SRC,
    RECEIVES,
    SENDS,
    SRC,
    WRITES_DST,
    flatten,
)
from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import Program

Value = TypeVar("Value")


class PlainExecution(ABC, Generic[Value]):
    """A run of a structurally sound program, whole steps as messages, on connections that hold any number of them.

    Chunks that were never written are None, and so is every sum with one of them. `memory` is that of all ranks.
    """

    def __init__(self, program: Program) -> None:
        flat = flatten(program)
        self.program = program
        self.first_block, self.first_cell = flat.first_block, flat.first_cell
        self.layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
        self._items, self._blocks = flat.code.items.tolist(), flat.code.blocks.tolist()
        self._waits, self._neighbours = flat.code.waits.tolist(), flat.code.neighbours.tolist()
        self._next = [block[FIRST] for block in self._blocks]
        self._messages: list[deque[list[Value | None]]] = [deque() for _ in flat.longest]
        self.memory: list[Value | None] = [None] * flat.first_cell[-1]

    @abstractmethod
    def sum_of(self, value: Value, other: Value) -> Value:
        """Return the sum of two values."""

    def note_write(self, block: int, step: int, cells: range) -> None:
        """Be told that `cells` of the memory have been written by instruction `step` of `block`, of all blocks."""

    def output(self, rank: int, chunks: int) -> Sequence[Value | None]:
        """Return what the first `chunks` of the output of `rank` hold."""
        first = self.first_cell[rank] + self.layouts[rank].output_base
        return self.memory[first : first + chunks]

    def run(self) -> bool:
        """Do all instructions; return whether all could be done."""
        blocks = len(self._blocks) - 1
        ready = deque(range(blocks))
        waiting = [True] * blocks
        while ready:
            block = ready.popleft()
            waiting[block] = False
            before = self._next[block]
            while self._can_go_on(block):
                self._step(block)
            if self._next[block] == before:
                continue
            first, end = self._blocks[block][FIRST_NEIGHBOUR], self._blocks[block + 1][FIRST_NEIGHBOUR]
            for woken in self._neighbours[first:end]:
                if not waiting[woken]:
                    waiting[woken] = True
                    ready.append(woken)
        return all(self._next[block] == self._blocks[block + 1][FIRST] for block in range(blocks))

    def _can_go_on(self, block: int) -> bool:
        number = self._next[block]
        if number == self._blocks[block + 1][FIRST]:
            return False
        first, end = self._items[number][FIRST_WAIT], self._items[number + 1][FIRST_WAIT]
        if any(self._next[other] <= item for item, other in self._waits[first:end]):
            return False
        receives = self._items[number][FLAGS] & RECEIVES
        return not receives or bool(self._messages[self._blocks[block][INCOMING]])

    def _step(self, block: int) -> None:
        number = self._next[block]
        item = self._items[number]
        flags, count = item[FLAGS], item[COUNT]
        values: list[Value | None] | None = None
        if flags & RECEIVES:
            values = self._messages[self._blocks[block][INCOMING]].popleft()
        if flags & READS_SRC:
            values = self._plus(values, self.memory[item[SRC] : item[SRC] + count])
        if flags & READS_DST:
            values = self._plus(values, self.memory[item[DST] : item[DST] + count])
        assert values is not None
        if flags & WRITES_DST:
            self.memory[item[DST] : item[DST] + count] = values
            self.note_write(block, number - self._blocks[block][FIRST], range(item[DST], item[DST] + count))
        if flags & SENDS:
            self._messages[self._blocks[block][OUTGOING]].append(values)
        self._next[block] += 1

    def _plus(self, values: list[Value | None] | None, others: list[Value | None]) -> list[Value | None]:
        if values is None:
            return others
        pairs = zip(values, others, strict=True)
        return [None if a is None or b is None else self.sum_of(a, b) for a, b in pairs]
