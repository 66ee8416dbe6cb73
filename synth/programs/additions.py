"""In which order a program adds what ranks contribute, found by executing it on expressions instead of numbers.

An expression is a rank's contribution or the sum of two expressions. A sum of floating-point numbers does not depend on
which of its two operands comes first, so sums are pairs without an order; how they are nested does matter.

One execution says it for all: a program without races (see `check_execution`) orders all accesses to a chunk by its
blocks, waits and messages, blocks have no choices, and so each chunk goes through the same values whichever block goes
on first. A runtime may cut chunks into pieces and let a reduction follow another piece by piece; for each element the
sequence stays. What the size changes is only which elements are in which chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.explanation import Position
from chorale.synth.programs.memory import BufferShape
from chorale.synth.programs.plain_execution import PlainExecution
from chorale.synth.programs.plans.explanation import pieces_moved
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.plans.values import PlanValues
from chorale.synth.programs.program import Program, chunks_moved

MAX_MOVES = 2**22
"""Chunks moved by all instructions, beyond which `order_of_additions` says nothing: some seconds of work."""


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


def order_of_additions(program: Program | ExecutionPlan, most_moves: int = MAX_MOVES) -> OrderOfAdditions | None:
    """Return how `program`, in which its check finds nothing wrong, adds.

    None for collectives that add nothing, for custom ones, for programs that move more than `most_moves` chunks, and
    for plans that move a quarter of that, or in which a switch adds, in an order of its own. InvalidInput for a program
    that hangs, or whose result comes from what was never written. O(chunks moved), of plans O(turns * blocks), too.
    """
    collective = program.collective
    if collective.custom is not None or not collective.reduces:
        return None
    shape = BufferShape(collective.name, program.chunks, len(program.ranks), program.in_place, collective.root)
    chunk_of = {rank: tuple(shape.result_chunks(rank).tolist()) for rank in range(len(program.ranks))}
    chunk_of = {rank: chunks for rank, chunks in chunk_of.items() if chunks}
    expressions = _Expressions(len(program.ranks))
    if isinstance(program, ExecutionPlan):
        if pieces_moved(program) > most_moves // 4 or _adds_by_switch(program):
            return None
        results = _PlanExecution(program, expressions).results(chunk_of)
        pieces = len(next(iter(results.values()))) // len(next(iter(chunk_of.values())))
        if pieces > 1:
            chunk_of = {
                rank: tuple(chunk * pieces + piece for chunk in chunks for piece in range(pieces))
                for rank, chunks in chunk_of.items()
            }
    else:
        if chunks_moved(program) > most_moves:
            return None
        execution = _Execution(program, expressions)
        if not execution.run():
            raise _wrong("it hangs")
        results = {rank: execution.results_of(rank, len(chunks)) for rank, chunks in chunk_of.items()}
    return OrderOfAdditions(len(program.ranks), tuple(expressions.sums), results, chunk_of)


def _adds_by_switch(plan: ExecutionPlan) -> bool:
    operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    adding = Action.GROUP_LOAD_REDUCE, Action.GROUP_LOAD_REDUCE_STORE
    return any(operation.action in adding for operation in operations)


@dataclass(slots=True)
class _Expressions:
    """Numbers of expressions: those of ranks, then those of sums."""

    ranks: int
    sums: list[tuple[int, int]] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def sum_of(self, value: int, other: int) -> int:
        """Return the number of the sum of two expressions."""
        pair = min(value, other), max(value, other)
        number = self._numbers.get(pair)
        if number is None:
            number = self._numbers[pair] = self.ranks + len(self.sums)
            self.sums.append(pair)
        return number


class _PlanExecution(PlanValues[int]):
    """A call of a plan on expressions."""

    def __init__(self, plan: ExecutionPlan, expressions: _Expressions) -> None:
        super().__init__(plan)
        self._expressions = expressions
        for rank in range(len(plan.ranks)):
            base = plan.layout(rank).input_base
            for cell in range(base, base + plan.chunks):
                for piece in self.pieces_of(rank, cell):
                    self.held[piece] = rank

    def total(self, position: Position, cells: Sequence[int]) -> int | None:
        """Return the sum of what is read, in the order of the kernel: plain data first, then packets."""
        values = [self.held[cell] for cell in cells]
        found = [value for value in values if value is not None]
        return reduce(self._expressions.sum_of, found) if len(found) == len(values) else None

    def results(self, chunk_of: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Return the expression of each chunk of the output of each rank, or of each piece where those of some chunk
        differ."""
        self.run()
        found: dict[int, tuple[int, ...]] = {}
        for rank, chunks in chunk_of.items():
            base = self._plan.layout(rank).output_base
            cells = [piece for chunk in range(len(chunks)) for piece in self.pieces_of(rank, base + chunk)]
            written = [value for value in (self.held[cell] for cell in cells) if value is not None]
            if len(written) < len(cells):
                raise _wrong("a result comes from a chunk that was never written")
            found[rank] = tuple(written)
        first = {rank: row[:: self._pieces] for rank, row in found.items()}
        is_one = all(
            row == tuple(each for each in first[rank] for _ in range(self._pieces)) for rank, row in found.items()
        )
        return first if is_one else found


class _Execution(PlainExecution[int]):
    """A run of a program on expressions."""

    def __init__(self, program: Program, expressions: _Expressions) -> None:
        super().__init__(program)
        self._expressions = expressions
        for rank, layout in enumerate(self.layouts):
            first = self.first_cell[rank] + layout.input_base
            self.memory[first : first + program.chunks] = [rank] * program.chunks

    def results_of(self, rank: int, chunks: int) -> tuple[int, ...]:
        """Return the expressions that the output of `rank` holds."""
        written = tuple(value for value in self.output(rank, chunks) if value is not None)
        if len(written) < chunks:
            raise _wrong("a result comes from a chunk that was never written")
        return written

    def sum_of(self, value: int, other: int) -> int:
        """Return the number of the sum of two expressions."""
        return self._expressions.sum_of(value, other)


def _wrong(found: str) -> InvalidInput:
    return InvalidInput(
        "an order of additions is that of a program that does what its collective says", found, "check it"
    )


def additions_document(program: object) -> dict[str, Any] | None:
    """Return the facts of a checked program; None where `order_of_additions` has none."""
    if not isinstance(program, Program | ExecutionPlan):
        return None
    order = order_of_additions(program)
    return None if order is None else order.to_json()
