"""Explains the faults of a plan: which contributions are missing or counted twice, and which blocks wait for which.

One call is executed symbolically, turn by turn. Unlike the check, it continues after a fault.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from chorale.synth.programs.explanation import (
    MAX_EXPLAINED,
    Explanation,
    Part,
    PartHistory,
    named,
    other_access,
    parts_of,
    sum_of,
)
from chorale.synth.programs.memory import cell_name, shape_of
from chorale.synth.programs.plans.moves import MoveMaker, Repeat, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation
from chorale.synth.programs.plans.values import PlanValues
from chorale.synth.programs.postconditions import expected_outputs, initial_inputs
from chorale.synth.programs.program import Position, ProgramViolation

MAX_MOVES = 2**20
"""Plans that move more pieces than this get no explanations, because computing them would take too long."""


class PlanHistory(PlanValues[Part]):
    """Executes one call of a structurally sound plan symbolically and records what goes wrong."""

    def __init__(self, plan: ExecutionPlan) -> None:
        super().__init__(plan)
        self._parts = PartHistory(plan, self._cell_name)
        self._sums: dict[Position, tuple[Part, tuple[tuple[str, Position | None], ...]]] = {}
        for rank in range(len(plan.ranks)):
            for cell, part in enumerate(parts_of(plan, initial_inputs(plan, rank), rank), plan.layout(rank).input_base):
                for piece in self.pieces_of(rank, cell):
                    self.held[piece] = part
                    self._parts.begin(piece, part)

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Return the cause of a wrong result or sum."""
        rank, chunk, position = violation.rank, violation.chunk, violation.position
        if violation.rule == "result" and rank is not None and chunk is not None:
            expected = expected_outputs(self._plan, rank)
            if expected is None:
                return None
            required = parts_of(self._plan, expected, None)[chunk]
            cells = self.pieces_of(rank, self._plan.layout(rank).output_base + chunk)
            wrong = next((cell for cell in cells if self.held[cell] != required), cells.start)
            return self._parts.wrong_result(wrong, self.held[wrong], required, rank)
        if violation.rule == "reduction" and position in self._sums:
            return self._parts.wrong_sum(*self._sums[position])
        return None

    def note(self, position: Position, value: Part | None, rank: int, cell: int) -> None:
        """Record that the operation at `position` wrote a cell."""
        self._parts.record(position, value, rank, cell=cell)

    def total(self, position: Position, cells: Sequence[int]) -> Part | None:
        """Return the sum of the contents of `cells`; record the first wrong sum at `position`."""
        total = self.held[cells[0]]
        for cell in cells[1:]:
            added = self.held[cell]
            if total is None or added is None:
                return None
            before, total = total, sum_of(total, added)
            if before.is_sum and added.is_sum and not total.is_sum:
                writers = [each for each in map(self._parts.last_write, (cells[0], cell)) if each is not None]
                verbs = ("one was put there by", "the other was put there by")
                self._sums.setdefault(position, (total, tuple(zip(verbs, writers, strict=False))))
        return total

    def _cell_name(self, cell: int) -> str:
        rank = bisect_right(self._memory.first_cell, cell) - 1
        offset = (cell - self._memory.first_cell[rank]) // self._pieces
        return cell_name(shape_of(self._plan), rank, self._plan.layout(rank), offset)


def plan_explanations(plan: ExecutionPlan, violations: Sequence[ProgramViolation]) -> list[Explanation | None]:
    """Return the cause of each of `violations` of the structurally sound `plan`, or None if it is not known.

    Only the first few wrong chunks are explained. O(chunks moved + turns * blocks).
    """
    found = [other_access(violation) for violation in violations]
    if pieces_moved(plan) > MAX_MOVES:
        return found
    executed = [v for v in violations if v.rule in ("result", "reduction")][:MAX_EXPLAINED]
    if executed:
        history = PlanHistory(plan)
        history.run()
        found = [history.explain(v) if v in executed else item for v, item in zip(violations, found, strict=True)]
    waits = _Waits(plan, {v.position for v in violations if v.rule == "deadlock" and v.position is not None})
    return [waits.explain(v) if v.rule == "deadlock" else item for v, item in zip(violations, found, strict=True)]


def pieces_moved(plan: ExecutionPlan) -> int:
    """Return the number of pieces of chunks that all operations together read and write."""
    pieces = pieces_of_a_chunk(plan, 1)
    steps = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    return pieces * sum(operand.count for each in steps for operand in (*each.sources, *each.targets))


def packet_writer(plan: ExecutionPlan, rank: int, piece: int) -> int | None:
    """Return the rank that writes packets to a piece of the scratch of `rank`; None if no rank does."""
    maker = MoveMaker(plan, pieces_of_a_chunk(plan, 1))
    (writer, _), *_ = _packets_written(maker, rank, range(piece, piece + 1))
    return None if writer is None else writer[0]


def _packets_written(maker: MoveMaker, rank: int, pieces: range) -> Iterator[tuple[Position | None, range]]:
    """Divide `pieces` of the scratch of `rank` into runs with the same writer of packets; yield (writer, run).

    The writer is None if no operation writes packets there.
    """
    writer_of: dict[int, Position] = {}
    for other, body in enumerate(maker.plan.ranks):
        for index, block in enumerate(body.blocks):
            for step in unrolled(block, 1):
                packets = step.operation.action.packets
                for move in maker.moves(other, block, step.operation, step.repeat) if packets else ():
                    for each in move.packets:
                        shared = range(max(each.first, pieces.start), min(each.first + each.count, pieces.stop))
                        if each.rank == rank:
                            writer_of |= dict.fromkeys(shared, (other, index, step.number))
    first = pieces.start
    for piece in pieces:
        if piece + 1 == pieces.stop or writer_of.get(piece + 1) != writer_of.get(piece):
            yield writer_of.get(piece), range(first, piece + 1)
            first = piece + 1


_Clause = tuple[str, Position | None]
"""Text that says what a block waits for, and the operation that would provide it (None: no operation)."""


class _Waits:
    """Explains what the blocks that hang at the positions `stuck` are waiting for."""

    def __init__(self, plan: ExecutionPlan, stuck: set[Position]) -> None:
        self._plan = plan
        self._at = {(rank, block): step for rank, block, step in stuck}

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Explain what the operation of `violation` waits for, and where the blocks that would provide it hang."""
        if violation.position is None:
            return None
        rank, index, step = violation.position
        top = self._plan.ranks[rank].blocks[index].operations[step]
        clauses: list[_Clause] = []
        for operation in top.body or (top,):
            clauses += self._waits_of(rank, index, operation)
        if not clauses:
            return None
        positions = dict.fromkeys(other for _, other in clauses[:MAX_EXPLAINED] if other is not None)
        return Explanation("; ".join(text for text, _ in clauses[:MAX_EXPLAINED]), (violation.position, *positions))

    def _waits_of(self, rank: int, index: int, operation: Operation) -> Iterator[_Clause]:
        body = self._plan.ranks[rank]
        block = body.blocks[index]
        if operation.action.waits:
            for local in operation.channels:
                number = block.channels_of(operation.kind)[local]
                peer, other = self._plan.other_end(rank, number, operation.kind)
                what = f"it waits for a signal of rank {peer} on {operation.kind} channel {number}"
                yield self._clause(what, self._signalling(peer, other, operation))
        if operation.action is Action.ACQUIRE:
            for number in operation.semaphores:
                yield self._clause(f"it waits for semaphore {number}", self._releasing(rank, number))
        if operation.action is Action.BARRIER and operation.barrier is not None:
            barrier = operation.barrier[0]
            for other in range(len(body.blocks)):
                met = self._next(rank, lambda _, each: each.barrier is not None and each.barrier[0] == barrier, other)
                if met is not None and other != index:
                    yield self._clause(f"it waits at barrier {barrier}", met)
        if operation.action.packets:
            maker = MoveMaker(self._plan, pieces_of_a_chunk(self._plan, 1))
            for move in maker.moves(rank, block, operation, Repeat()):
                for taken in move.takes if move.waits else ():
                    pieces = range(taken.first, taken.first + taken.count)
                    for writer, some in _packets_written(maker, taken.rank, pieces):
                        first, last = some.start // maker.pieces, (some.stop - 1) // maker.pieces
                        chunks = f"s[{first}]" if first == last else f"s[{first}..{last}]"
                        what = f"it waits for packets in {chunks} of rank {taken.rank}"
                        yield self._clause(what, writer) if writer else (f"{what}, which nothing writes", None)

    def _clause(self, what: str, other: Position | None) -> _Clause:
        """Return a clause: `what` is waited for, and why the operation at `other` does not provide it."""
        if other is None:
            return f"{what}, for which there is no further operation", None
        at = self._at.get(other[:2])
        if at is None or at > other[2]:
            return f"{what}, which {named(other)} has given already, or gives in a call that never comes", other
        return f"{what}, which {named(other)} would give; that block hangs at step {at}", other

    def _releasing(self, rank: int, number: int) -> Position | None:
        return self._next(rank, lambda _, each: each.action is Action.RELEASE and number in each.semaphores)

    def _signalling(self, rank: int, number: int, awaited: Operation) -> Position | None:
        def signals(index: int, operation: Operation) -> bool:
            numbers = self._plan.ranks[rank].blocks[index].channels_of(operation.kind)
            is_signal = operation.action.signals and operation.kind == awaited.kind
            return is_signal and any(numbers[local] == number for local in operation.channels)

        return self._next(rank, signals)

    def _next(self, rank: int, is_wanted: Callable[[int, Operation], bool], only: int | None = None) -> Position | None:
        """Return the first matching operation of `rank` that is not done yet, or if all are done, the last one.

        Args:
            rank: The rank to search.
            is_wanted: Called with a block number and an operation; returns whether the operation matches.
            only: Block to search; None for all blocks.
        """
        done = None
        for index, block in enumerate(self._plan.ranks[rank].blocks):
            for step, operation in enumerate(block.operations if only in (None, index) else ()):
                if any(is_wanted(index, each) for each in operation.body or (operation,)):
                    if step >= self._at.get((rank, index), len(block.operations)):
                        return rank, index, step
                    done = rank, index, step
        return done
