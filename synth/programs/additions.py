"""The order in which a program adds the ranks' contributions, found by executing the program on expressions.

An expression is a rank's contribution or the sum of two expressions. The sum of two floating-point numbers does not
depend on which comes first, so a sum is an unordered pair, but the nesting of sums does matter.

One execution is enough: a program without races (see `check_execution`) orders all accesses to a chunk by its blocks,
waits and messages, and blocks make no choices. Each chunk therefore takes the same values whichever block runs first. A
runtime may split chunks into pieces and pipeline reductions piece by piece, but the order stays the same for each
element. The vector size only determines which chunk an element is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import shape_of
from chorale.synth.programs.plain_execution import PlainExecution
from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.plans.values import PlanValues
from chorale.synth.programs.program import Program, chunks_moved

MAX_MOVES = 2**22
"""`order_of_additions` returns None for programs that move more chunks than this, because it would take too long."""


@dataclass(frozen=True, slots=True)
class OrderOfAdditions:
    """The order in which a program adds. It is the same in every run, over every transport and with any timing.

    Expressions are numbered: first the contributions of the ranks, then `sums`.

    ranks:    number of ranks
    sums:     entry k contains the two operands of expression `ranks + k`, the smaller number first. Sums come after
              their operands.
    results:  for each rank that has a result, the expression in each output chunk
    chunk_of: for each rank that has a result, the index of each output chunk in the vector
    """

    ranks: int
    sums: tuple[tuple[int, int], ...]
    results: dict[int, tuple[int, ...]]
    chunk_of: dict[int, tuple[int, ...]]

    @property
    def orders(self) -> int:
        """Number of different orders of addition among all chunks."""
        return len({expression for result in self.results.values() for expression in result})

    @property
    def same_on_all_ranks(self) -> bool:
        """Whether each result chunk is bitwise identical on all ranks that hold it."""
        seen: dict[int, int] = {}
        pairs = (
            pair for rank, result in self.results.items() for pair in zip(self.chunk_of[rank], result, strict=True)
        )
        return all(seen.setdefault(chunk, expression) == expression for chunk, expression in pairs)

    @property
    def independent_of_position(self) -> bool:
        """Whether all elements are added in the same order, so that results do not depend on vector size or chunks."""
        return self.orders == 1

    def text(self, expression: int) -> str:
        """Return an expression as a string of rank numbers, such as ((0+1)+(2+3))."""
        texts = [str(rank) for rank in range(self.ranks)]
        for left, right in self.sums[: max(0, expression - self.ranks + 1)]:
            texts.append(f"({texts[left]}+{texts[right]})")
        return texts[expression]

    def depth(self) -> int:
        """Return the maximum number of additions through which a contribution goes, which bounds the rounding error."""
        depths = [0] * self.ranks
        for left, right in self.sums:
            depths.append(1 + max(depths[left], depths[right]))
        return max(depths[expression] for result in self.results.values() for expression in result)

    def digest(self) -> str:
        """Return a hash that is equal for two programs if and only if they add all chunks in the same orders."""
        hashes = [sha256(f"{rank}".encode()).digest() for rank in range(self.ranks)]
        for left, right in self.sums:
            hashes.append(sha256(b"+" + b"".join(sorted((hashes[left], hashes[right])))).digest())
        together = sha256(f"{self.ranks}".encode())
        for rank, result in sorted(self.results.items()):
            together.update(f"{rank} {len(result)}".encode() + b"".join(hashes[expression] for expression in result))
        return together.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the properties of this order as JSON values for certificates and program tables."""
        return {
            "fixed": True,
            "same_on_all_ranks": self.same_on_all_ranks,
            "independent_of_position": self.independent_of_position,
            "orders": self.orders,
            "depth": self.depth(),
            "digest": self.digest(),
        }


def order_of_additions(program: Program | ExecutionPlan, most_moves: int = MAX_MOVES) -> OrderOfAdditions | None:
    """Return the order in which the correct `program` adds contributions.

    O(chunks moved), for plans also O(turns * blocks).

    Args:
        program: A program or plan that passed the check.
        most_moves: Maximum number of chunks that a program may move. For plans, a quarter of this is allowed.

    Returns:
        The order. None for collectives that add nothing, custom collectives, programs that exceed `most_moves`, and
        plans in which a switch adds, because a switch chooses its own order.

    Raises:
        InvalidInput: The program deadlocks, or a result comes from a chunk that was never written.
    """
    collective = program.collective
    if collective.custom is not None or not collective.reduces:
        return None
    shape = shape_of(program)
    chunk_of = {rank: tuple(shape.result_chunks(rank).tolist()) for rank in range(len(program.ranks))}
    chunk_of = {rank: chunks for rank, chunks in chunk_of.items() if chunks}
    expressions = _Expressions(len(program.ranks))
    if isinstance(program, ExecutionPlan):
        if _pieces_moved(program) > most_moves // 4 or _adds_by_switch(program):
            return None
        results = _PlanExecution(program, expressions).results(chunk_of)
        pieces = len(next(iter(results.values()))) // len(next(iter(chunk_of.values())))
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
        results = {rank: _written(execution.output(rank, len(chunks))) for rank, chunks in chunk_of.items()}
    return OrderOfAdditions(len(program.ranks), tuple(expressions.numbers), results, chunk_of)


def additions_document(program: object) -> dict[str, Any] | None:
    """Return the order of additions of a checked program as JSON values, or None if it has no known order."""
    order = order_of_additions(program) if isinstance(program, Program | ExecutionPlan) else None
    return None if order is None else order.to_json()


class _Expressions:
    """Assigns a number to each distinct sum. `numbers` maps each pair of operands to the number of their sum."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.numbers: dict[tuple[int, int], int] = {}

    def sum_of(self, value: int, other: int) -> int:
        return self.numbers.setdefault((min(value, other), max(value, other)), self._ranks + len(self.numbers))


class _Execution(PlainExecution[int]):
    """Executes a program on expressions instead of data."""

    def __init__(self, program: Program, expressions: _Expressions) -> None:
        super().__init__(program)
        self._expressions = expressions
        for rank, layout in enumerate(self.layouts):
            first = self.first_cell[rank] + layout.input_base
            self.memory[first : first + program.chunks] = [rank] * program.chunks

    def sum_of(self, value: int, other: int) -> int:
        return self._expressions.sum_of(value, other)


class _PlanExecution(PlanValues[int]):
    """Executes one call of a plan on expressions instead of data."""

    def __init__(self, plan: ExecutionPlan, expressions: _Expressions) -> None:
        super().__init__(plan)
        self._expressions = expressions
        for rank in range(len(plan.ranks)):
            base = plan.layout(rank).input_base
            for cell in range(base, base + plan.chunks):
                for piece in self.pieces_of(rank, cell):
                    self.held[piece] = rank

    def total(self, cells: Sequence[int]) -> int | None:
        """Return the sum of `cells`, added in the order that the kernel uses: plain data first, then packets."""
        values = [self.held[cell] for cell in cells]
        found = [value for value in values if value is not None]
        return reduce(self._expressions.sum_of, found) if len(found) == len(values) else None

    def results(self, chunk_of: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Return the expressions in each rank's output chunks, or in their pieces if the pieces of a chunk differ."""
        self.run()
        found: dict[int, tuple[int, ...]] = {}
        for rank, chunks in chunk_of.items():
            base = self._plan.layout(rank).output_base
            pieces = [self.held[piece] for k in range(len(chunks)) for piece in self.pieces_of(rank, base + k)]
            found[rank] = _written(pieces)
        first = {rank: row[:: self._pieces] for rank, row in found.items()}
        is_one = all(
            row == tuple(each for each in first[rank] for _ in range(self._pieces)) for rank, row in found.items()
        )
        return first if is_one else found


def _pieces_moved(plan: ExecutionPlan) -> int:
    """Return the total number of pieces of chunks that operations read and write."""
    steps = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    return pieces_of_a_chunk(plan, 1) * sum(each.count for step in steps for each in (*step.sources, *step.targets))


def _adds_by_switch(plan: ExecutionPlan) -> bool:
    operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    adding = Action.GROUP_LOAD_REDUCE, Action.GROUP_LOAD_REDUCE_STORE
    return any(operation.action in adding for operation in operations)


def _written(values: Sequence[int | None]) -> tuple[int, ...]:
    """Return `values`. Raises InvalidInput if one of them is None, that is, was never written."""
    found = tuple(value for value in values if value is not None)
    if len(found) < len(values):
        raise _wrong("a result comes from a chunk that was never written")
    return found


def _wrong(found: str) -> InvalidInput:
    rule = "a program must do what its collective says before its order of additions can be found"
    return InvalidInput(rule, found, "check it with `chorale verify`")
