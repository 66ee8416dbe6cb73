"""In which order a program adds what ranks contribute, found by executing it on expressions instead of numbers.

An expression is a rank's contribution or the sum of two expressions. A sum of floating-point numbers does not depend on
which of its two operands comes first, so sums are pairs without an order; how they are nested does matter.

One execution says it for all: a program without races (see `check_execution`) orders all accesses to a chunk by its
blocks, waits and messages, blocks have no choices, and so each chunk goes through the same values whichever block goes
on first. A runtime may cut chunks into pieces and let a reduction follow another piece by piece; for each element the
sequence stays. What the size changes is only which elements are in which chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.columns import chunks_moved
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
from chorale.synth.programs.memory import BufferShape, layout_of
from chorale.synth.programs.program import Program

MAX_MOVES = 2**22
"""Chunks moved by all instructions, beyond which `order_of_additions` says nothing: some seconds of work."""

NOTHING = -1


@dataclass(frozen=True, slots=True)
class OrderOfAdditions:
    """How a program adds. The order is fixed: the same in every run, over every transport, with every timing.

    ranks:    how many; numbers of expressions below are those of contributions
    sums:     operands of expression `ranks + k`, the smaller number first; operands come before what they are part of
    results:  for each rank with a result, the expression of each chunk of its output
    chunk_of: for the same ranks, which chunk of the vector each of those is
    """

    ranks: int
    sums: tuple[tuple[int, int], ...]
    results: dict[int, tuple[int, ...]]
    chunk_of: dict[int, tuple[int, ...]]

    @property
    def orders(self) -> int:
        """How many different orders the chunks have."""
        return len({expression for result in self.results.values() for expression in result})

    @property
    def same_on_all_ranks(self) -> bool:
        """Whether ranks that have the same chunk have the same bits in it."""
        seen: dict[int, int] = {}
        pairs = (
            pair for rank, result in self.results.items() for pair in zip(self.chunk_of[rank], result, strict=True)
        )
        return all(seen.setdefault(chunk, expression) == expression for chunk, expression in pairs)

    @property
    def independent_of_position(self) -> bool:
        """Whether all elements are added in one order: then neither the size nor the chunks change a result."""
        return self.orders == 1

    def text(self, expression: int) -> str:
        """Return an expression in words, such as ((0+1)+(2+3)), of the numbers of ranks."""
        texts = [str(rank) for rank in range(self.ranks)]
        for left, right in self.sums[: max(0, expression - self.ranks + 1)]:
            texts.append(f"({texts[left]}+{texts[right]})")
        return texts[expression]

    def depth(self) -> int:
        """Return the most additions that a contribution goes through, on which bounds of rounding errors depend."""
        depths = [0] * self.ranks
        for left, right in self.sums:
            depths.append(1 + max(depths[left], depths[right]))
        return max(depths[expression] for result in self.results.values() for expression in result)

    def digest(self) -> str:
        """Return what two programs have in common if and only if they add all chunks in the same orders."""
        hashes = [sha256(f"{rank}".encode()).digest() for rank in range(self.ranks)]
        for left, right in self.sums:
            hashes.append(sha256(b"+" + b"".join(sorted((hashes[left], hashes[right])))).digest())
        together = sha256(f"{self.ranks}".encode())
        for rank, result in sorted(self.results.items()):
            together.update(f"{rank} {len(result)}".encode() + b"".join(hashes[expression] for expression in result))
        return together.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the facts, as certificates and tables of programs have them."""
        return {
            "fixed": True,
            "same_on_all_ranks": self.same_on_all_ranks,
            "independent_of_position": self.independent_of_position,
            "orders": self.orders,
            "depth": self.depth(),
            "digest": self.digest(),
        }


def order_of_additions(program: Program, most_moves: int = MAX_MOVES) -> OrderOfAdditions | None:
    """Return how `program`, in which `check_execution` finds nothing wrong, adds.

    None for collectives that add nothing, and for programs that move more than `most_moves` chunks. InvalidInput for a
    program that hangs or reads what was never written. O(chunks moved).
    """
    if not program.collective.reduces or chunks_moved(program) > most_moves:
        return None
    execution = _Execution(program)
    execution.run()
    shape = BufferShape(
        program.collective.name, program.chunks, len(program.ranks), program.in_place, program.collective.root
    )
    chunk_of = {rank: tuple(shape.result_chunks(rank).tolist()) for rank in range(len(program.ranks))}
    chunk_of = {rank: chunks for rank, chunks in chunk_of.items() if chunks}
    results = {rank: execution.output(rank, len(chunks)) for rank, chunks in chunk_of.items()}
    return OrderOfAdditions(len(program.ranks), tuple(execution.sums), results, chunk_of)


class _Execution:
    """A run of a program on expressions, whole steps as messages, with connections that hold any number of them."""

    def __init__(self, program: Program) -> None:
        flat = flatten(program)
        self._program, self._first_cell = program, flat.first_cell
        code = flat.code
        self._items, self._blocks = code.items.tolist(), code.blocks.tolist()
        self._waits, self._neighbours = code.waits.tolist(), code.neighbours.tolist()
        self._next = [block[FIRST] for block in self._blocks]
        self._messages: list[deque[list[int]]] = [deque() for _ in flat.longest]
        self._memory = [NOTHING] * flat.first_cell[-1]
        self._numbers: dict[tuple[int, int], int] = {}
        self.sums: list[tuple[int, int]] = []
        for rank in range(len(program.ranks)):
            first = flat.first_cell[rank] + layout_of(program, rank).input_base
            self._memory[first : first + program.chunks] = [rank] * program.chunks

    def output(self, rank: int, chunks: int) -> tuple[int, ...]:
        """Return what the output of `rank` holds."""
        first = self._first_cell[rank] + layout_of(self._program, rank).output_base
        return tuple(self._written(self._memory[first : first + chunks]))

    def run(self) -> None:
        """Do all instructions."""
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
        if any(self._next[block] < self._blocks[block + 1][FIRST] for block in range(blocks)):
            raise _wrong("it hangs")

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
        item = self._items[self._next[block]]
        flags, count = item[FLAGS], item[COUNT]
        values: list[int] | None = None
        if flags & RECEIVES:
            values = self._messages[self._blocks[block][INCOMING]].popleft()
        if flags & READS_SRC:
            values = self._plus(values, self._written(self._memory[item[SRC] : item[SRC] + count]))
        if flags & READS_DST:
            values = self._plus(values, self._written(self._memory[item[DST] : item[DST] + count]))
        assert values is not None
        if flags & WRITES_DST:
            self._memory[item[DST] : item[DST] + count] = values
        if flags & SENDS:
            self._messages[self._blocks[block][OUTGOING]].append(values)
        self._next[block] += 1

    def _plus(self, some: list[int] | None, others: list[int]) -> list[int]:
        if some is None:
            return others
        return [self._sum(a, b) if a < b else self._sum(b, a) for a, b in zip(some, others, strict=True)]

    def _sum(self, smaller: int, larger: int) -> int:
        pair = smaller, larger
        number = self._numbers.get(pair)
        if number is None:
            number = self._numbers[pair] = len(self._program.ranks) + len(self.sums)
            self.sums.append(pair)
        return number

    def _written(self, values: list[int]) -> list[int]:
        if NOTHING in values:
            raise _wrong("it reads a chunk that was never written")
        return values


def _wrong(found: str) -> InvalidInput:
    return InvalidInput(
        "an order of additions is that of a program that does what its collective says", found, "check it"
    )


def additions_document(program: object) -> dict[str, Any] | None:
    """Return the facts of a checked program; None where nothing is added, where it is too large, and for plans."""
    if not isinstance(program, Program):
        return None
    order = order_of_additions(program)
    return None if order is None else order.to_json()
