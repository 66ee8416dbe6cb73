"""Executes a program on any kind of value, in plain Python, for questions that sets of contributions cannot answer."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Done(Generic[Value]):
    """An instruction that has been done.

    block, step: of all blocks, and in it
    sender:      block and step that the message came from, None where none was received
    arrived:     what that message held
    values:      the result, of each chunk: what is written, sent, or both
    target:      first cell of the memory that is written, None where none is
    """

    block: int
    step: int
    sender: tuple[int, int] | None
    arrived: list[Value | None] | None
    values: list[Value | None]
    target: int | None


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
        self._messages: list[deque[tuple[tuple[int, int], list[Value | None]]]] = [deque() for _ in flat.longest]
        self.memory: list[Value | None] = [None] * flat.first_cell[-1]

    @abstractmethod
    def sum_of(self, value: Value, other: Value) -> Value:
        """Return the sum of two values."""

    def note(self, done: Done[Value]) -> None:
        """Called for every operation before its result is written."""

    def position(self, block: int, step: int) -> tuple[int, int, int]:
        """Return rank, block of that rank and step of instruction `step` of `block`, of all blocks."""
        rank = bisect_right(self.first_block, block) - 1
        return rank, block - self.first_block[rank], step

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
        flags, step = item[FLAGS], number - self._blocks[block][FIRST]
        sender, arrived = None, None
        if flags & RECEIVES:
            sender, arrived = self._messages[self._blocks[block][INCOMING]].popleft()
        values = self._result(item, arrived)
        target = item[DST] if flags & WRITES_DST else None
        self.note(Done(block, step, sender, arrived, values, target))
        if target is not None:
            self.memory[target : target + len(values)] = values
        if flags & SENDS:
            self._messages[self._blocks[block][OUTGOING]].append(((block, step), values))
        self._next[block] += 1

    def _result(self, item: Sequence[int], arrived: list[Value | None] | None) -> list[Value | None]:
        """Return what an instruction makes of what `arrived` and of the memory that it reads."""
        values, count = arrived, item[COUNT]
        if item[FLAGS] & READS_SRC:
            values = self._plus(values, self.memory[item[SRC] : item[SRC] + count])
        if item[FLAGS] & READS_DST:
            values = self._plus(values, self.memory[item[DST] : item[DST] + count])
        assert values is not None
        return values

    def _plus(self, values: list[Value | None] | None, others: list[Value | None]) -> list[Value | None]:
        if values is None:
            return others
        pairs = zip(values, others, strict=True)
        return [None if a is None or b is None else self.sum_of(a, b) for a, b in pairs]


class LogicalTimes(PlainExecution[int]):
    """A run that counts: an instruction comes after the last of its block, its waits, and the sender of its message.

    times: by block of all blocks, of each instruction that could be done in turn, from 0
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.times: list[list[int]] = [[] for _ in range(self.first_block[-1])]

    def sum_of(self, value: int, other: int) -> int:
        """Return anything; only the order counts."""
        return value + other

    def note(self, done: Done[int]) -> None:
        """Note when an instruction could be done."""
        before = [self.times[done.block][-1]] if self.times[done.block] else []
        if done.sender is not None:
            before.append(self.times[done.sender[0]][done.sender[1]])
        rank, index, _ = self.position(done.block, done.step)
        waits = self.program.ranks[rank].blocks[index].instructions[done.step].waits
        before += [self.times[self.first_block[rank] + wait.block][wait.step] for wait in waits]
        self.times[done.block].append(1 + max(before, default=-1))


def logical_times(program: Program) -> dict[tuple[int, int], list[int]]:
    """Return, by rank and block, when each instruction that can be done is done. O(chunks moved)."""
    run = LogicalTimes(program)
    run.run()
    positions = (run.position(block, 0) for block in range(len(run.times)))
    return {(rank, index): times for (rank, index, _), times in zip(positions, run.times, strict=True)}
