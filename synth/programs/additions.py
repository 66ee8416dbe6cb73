"""Finds the order in which a program adds the ranks' contributions, by executing the program on expressions.

An expression is a rank's contribution or the sum of two expressions. Swapping the two operands of a floating-point
addition does not change the result, so a sum is an unordered pair. How sums are nested does matter.

One execution is enough. In a program without races (see `check_execution`), the sequence of instructions in each block,
the waits and the messages determine the order of all accesses to a chunk, and blocks make no choices. Each chunk
therefore takes the same values no matter which block runs first. A runtime may split chunks into pieces and pipeline
reductions piece by piece, but the order stays the same for each element. The vector size only determines which chunk an
element is in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import Any

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import layout_of, shape_of, words_of
from chorale.synth.programs.plans.moves import Move, Step, pieces_of_a_chunk
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.plans.run import PlanRun
from chorale.synth.programs.program import Op, Position, Program, chunks_moved
from chorale.synth.programs.rounds import execution_order

MAX_MOVES = 2**22
"""Maximum number of chunks that a program may move. `order_of_additions` would take too long for larger programs."""
SumOf = Callable[[int, int], int]
"""Takes the numbers of two expressions and returns the number of their sum."""


@dataclass(frozen=True, slots=True)
class OrderOfAdditions:
    """The order in which a program adds contributions. It is the same in every run, over every transport.

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
        """Whether the order of additions is the same for all elements, and so independent of vector size and chunks."""
        return self.orders == 1

    def depth(self) -> int:
        """Return the largest number of additions that a contribution goes through, which bounds the rounding error."""
        depths = [0] * self.ranks
        for left, right in self.sums:
            depths.append(1 + max(depths[left], depths[right]))
        return max(depths[expression] for result in self.results.values() for expression in result)

    def digest(self) -> str:
        """Return a hash that is equal for two programs if and only if they add each chunk in the same order."""
        hashes = [sha256(f"{rank}".encode()).digest() for rank in range(self.ranks)]
        for left, right in self.sums:
            hashes.append(sha256(b"+" + b"".join(sorted((hashes[left], hashes[right])))).digest())
        together = sha256(f"{self.ranks}".encode())
        for rank, result in sorted(self.results.items()):
            together.update(f"{rank} {len(result)}".encode() + b"".join(hashes[expression] for expression in result))
        return together.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the properties of this order (such as depth) as JSON values, for certificates and program tables."""
        return {
            "fixed": True,
            "same_on_all_ranks": self.same_on_all_ranks,
            "independent_of_position": self.independent_of_position,
            "orders": self.orders,
            "depth": self.depth(),
            "digest": self.digest(),
        }


def order_of_additions(program: Program | ExecutionPlan, most_moves: int = MAX_MOVES) -> OrderOfAdditions | None:
    """Return the order in which `program` adds contributions.

    O(chunks moved). Plans also take O(passes * blocks); each pass tries one operation of every block.

    Args:
        program: A program or plan that passed the check.
        most_moves: Maximum number of chunks that a program may move. For plans, the limit is a quarter of it.

    Returns:
        The order. None for collectives without sums, custom collectives, programs that exceed `most_moves`, and
        plans in which a switch does the reduction, because the switch chooses the order.

    Raises:
        InvalidInput: The program deadlocks, or a result comes from a chunk that was never written.
    """
    collective = program.collective
    if collective.custom is not None or not collective.reduces:
        return None
    shape = shape_of(program)
    chunk_of = {rank: tuple(shape.result_chunks(rank).tolist()) for rank in range(len(program.ranks))}
    chunk_of = {rank: chunks for rank, chunks in chunk_of.items() if chunks}
    sums: dict[tuple[int, int], int] = {}

    def sum_of(value: int, other: int) -> int:
        """Return the number of the sum of the expressions `value` and `other`, in either order."""
        return sums.setdefault((min(value, other), max(value, other)), len(program.ranks) + len(sums))

    if isinstance(program, ExecutionPlan):
        operations = [each for body in program.ranks for block in body.blocks for each in block.every_operation()]
        chunks = sum(operand.count for each in operations for operand in (*each.sources, *each.targets))
        adding = Action.GROUP_LOAD_REDUCE, Action.GROUP_LOAD_REDUCE_STORE
        if pieces_of_a_chunk(program, 1) * chunks > most_moves // 4 or any(
            each.action in adding for each in operations
        ):
            return None
        results = _PlanExecution(program, sum_of).results(chunk_of)
        pieces = len(next(iter(results.values()))) // len(next(iter(chunk_of.values())))
        chunk_of = {
            rank: tuple(chunk * pieces + piece for chunk in chunks for piece in range(pieces))
            for rank, chunks in chunk_of.items()
        }
    else:
        if chunks_moved(program) > most_moves:
            return None
        memory = _executed(program, sum_of)
        bases = {rank: layout_of(program, rank).output_base for rank in chunk_of}
        results = {
            rank: _written(memory[rank][bases[rank] : bases[rank] + len(chunks)]) for rank, chunks in chunk_of.items()
        }
    return OrderOfAdditions(len(program.ranks), tuple(sums), results, chunk_of)


def additions_document(program: object) -> dict[str, Any] | None:
    """Return the order of additions of a checked program as JSON values, or None if the order is not known."""
    order = order_of_additions(program) if isinstance(program, Program | ExecutionPlan) else None
    return None if order is None else order.to_json()


def _executed(program: Program, sum_of: SumOf) -> list[list[int | None]]:
    """Execute `program` on expressions instead of data; return the memory of each rank.

    None stands for a chunk that was never written, and for a sum that contains such a chunk.
    """
    layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
    memory: list[list[int | None]] = [[None] * layout.cells for layout in layouts]
    for rank, layout in enumerate(layouts):
        memory[rank][layout.input_base : layout.input_base + program.chunks] = [rank] * program.chunks
    sent: dict[Position, list[int | None]] = {}
    order, stuck = execution_order(program)
    if stuck:
        raise _wrong("it hangs")
    for (rank, index, step), sender in order:
        own, item = memory[rank], program.ranks[rank].blocks[index].instructions[step]
        operands: list[list[int | None]] = [] if sender is None else [sent.pop(sender)]
        for place, is_read in ((item.src, item.op.reads_src), (item.dst, item.op is Op.REDUCE)):
            if is_read:
                cell = layouts[rank].cell(place)
                operands.append(own[cell : cell + item.count])
        values = operands[0]
        for others in operands[1:]:
            pairs = zip(values, others, strict=True)
            values = [None if a is None or b is None else sum_of(a, b) for a, b in pairs]
        if item.op.writes_dst:
            cell = layouts[rank].cell(item.dst)
            own[cell : cell + len(values)] = values
        if item.op.sends:
            sent[rank, index, step] = values
    return memory


class _PlanExecution(PlanRun):
    """Executes one call of a plan on expressions. In each pass, every block that can proceed does one operation.

    Faults do not end the call, so every operation that can be executed is executed. O(passes * blocks + chunks moved).
    """

    def __init__(self, plan: ExecutionPlan, sum_of: SumOf) -> None:
        super().__init__(plan, parts=1, calls=1)
        self._sum_of = sum_of
        self._held: list[int | None] = [None] * self._memory.first_cell[-1]  # one per piece; None: never written
        for rank in range(len(plan.ranks)):
            first = self._memory.first_cell[rank] + plan.layout(rank).input_base * self._pieces
            pieces = plan.chunks * self._pieces
            self._held[first : first + pieces] = [rank] * pieces

    def results(self, chunk_of: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Return the expression in each output chunk of each rank, or in each piece if the pieces of a chunk differ."""
        for rank in range(len(self._plan.ranks)):
            self._begin(rank, 1)
        moved = True
        while moved:
            # A list instead of a generator, because `any` must not stop at the first block that proceeds.
            moved = any([self._has_more(number) and self._step(number) is True for number in range(len(self._blocks))])
        found: dict[int, tuple[int, ...]] = {}
        for rank, chunks in chunk_of.items():
            first = self._memory.first_cell[rank] + self._plan.layout(rank).output_base * self._pieces
            found[rank] = _written(self._held[first : first + len(chunks) * self._pieces])
        of_chunks = {rank: row[:: self._pieces] for rank, row in found.items()}
        is_one = all(
            row == tuple(each for each in of_chunks[rank] for _ in range(self._pieces)) for rank, row in found.items()
        )
        return of_chunks if is_one else found

    def _move(self, number: int, step: Step, move: Move) -> tuple[str, str] | None:
        call, doer = self._call[self._blocks[number][0]], self._doer(number, step, move)
        stretches = (*move.reads, *move.takes)  # the kernel adds in this order: plain data first, then packets
        sources = [self._memory.cells(each).start for each in stretches]
        totals: list[int | None] = []
        for k in range(stretches[0].count):
            values = [self._held[start + k] for start in sources]
            known = [value for value in values if value is not None]
            totals.append(reduce(self._sum_of, known) if len(known) == len(values) else None)
        for stretch in (*move.writes, *move.packets):
            self._held[self._memory.cells(stretch)] = totals
        for stretch in move.packets:
            nothing = np.zeros((stretch.count, words_of(self._plan)), dtype=np.uint64)
            self._packets.put(doer, stretch, call, (np.zeros(stretch.count, dtype=np.int64), nothing))
        self._signal(number, step, move)
        return None


def _written(values: Sequence[int | None]) -> tuple[int, ...]:
    """Return `values` as a tuple. Raises InvalidInput if a value is None (a chunk that was never written)."""
    found = tuple(value for value in values if value is not None)
    if len(found) < len(values):
        raise _wrong("a result comes from a chunk that was never written")
    return found


def _wrong(found: str) -> InvalidInput:
    rule = "a program must compute its collective correctly before its order of additions can be found"
    return InvalidInput(rule, found, "check it with `chorale verify`")
