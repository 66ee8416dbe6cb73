"""Says what is behind the faults of a plan: where a part is missing or doubled, and who waits for whom.

A call is run on parts of chunks, turn by turn: what moved what where, whatever is wrong with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from chorale.synth.programs.explanation import (
    MAX_EXPLAINED,
    Explanation,
    Part,
    PartHistory,
    Position,
    named,
    other_access,
    parts_of,
    sum_of,
)
from chorale.synth.programs.memory import BufferShape, cell_name
from chorale.synth.programs.plans.moves import MoveMaker, Repeat, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation
from chorale.synth.programs.plans.values import PlanValues
from chorale.synth.programs.postconditions import expected_outputs, initial_inputs
from chorale.synth.programs.program import ProgramViolation


class PlanHistory(PlanValues[Part]):
    """A call of a structurally sound plan on parts of chunks, and what went wrong in it."""

    def __init__(self, plan: ExecutionPlan, parts: int = 1) -> None:
        super().__init__(plan, parts)
        self._shape = BufferShape(plan.collective.name, plan.chunks, len(plan.ranks), plan.in_place)
        self._parts = PartHistory(plan, self._cell_name)
        self._sums: dict[Position, tuple[Part, tuple[tuple[str, Position | None], ...]]] = {}
        for rank in range(len(plan.ranks)):
            for cell, part in enumerate(parts_of(plan, initial_inputs(plan, rank), rank), plan.layout(rank).input_base):
                for piece in self.pieces_of(rank, cell):
                    self.held[piece] = part
                    self._parts.begin(piece, part)

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Return what is behind a wrong result or sum, or a chunk that is read before it is written."""
        if violation.rule == "result" and violation.rank is not None and violation.chunk is not None:
            return self._missing(violation.rank, violation.chunk)
        if violation.rank is None or violation.block is None or violation.step is None:
            return None
        position = violation.rank, violation.block, violation.step
        if violation.rule == "reduction" and position in self._sums:
            return self._parts.wrong_sum(*self._sums[position])
        return None

    def _missing(self, rank: int, chunk: int) -> Explanation | None:
        expected = expected_outputs(self._plan, rank)
        if expected is None:
            return None
        required = parts_of(self._plan, expected, None)[chunk]
        cells = self.pieces_of(rank, self._plan.layout(rank).output_base + chunk)
        wrong = next((cell for cell in cells if self.held[cell] != required), cells.start)
        return self._parts.wrong_result(wrong, self.held[wrong], required, rank)

    def note(self, position: Position, value: Part | None, rank: int, cell: int) -> None:
        """Remember who wrote a cell."""
        self._parts.record(position, value, rank, cell=cell)

    def total(self, position: Position, cells: Sequence[int]) -> Part | None:
        """Return the sum of what `cells` hold; what goes wrong in it is remembered."""
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
        return cell_name(self._shape, rank, self._plan.layout(rank), offset)


MAX_MOVES = 2**20
"""Pieces of chunks moved by all operations, beyond which nothing is explained: some seconds of work."""

_Condition = Callable[[int, Operation], bool]
"""Says of an operation of a block, given by its number, whether it is the one."""


def plan_explanations(plan: ExecutionPlan, violations: Sequence[ProgramViolation]) -> list[Explanation | None]:
    """Return, for each of `violations` of the structurally sound `plan`, what is behind it, None where nothing is
    known. The first few wrong chunks are explained. O(chunks moved + turns * blocks)."""
    behind = [other_access(violation) for violation in violations]
    if pieces_moved(plan) > MAX_MOVES:
        return behind
    executed = [v for v in violations if v.rule in ("result", "reduction")][:MAX_EXPLAINED]
    if executed:
        history = PlanHistory(plan)
        history.run()
        behind = [history.explain(v) if v in executed else item for v, item in zip(violations, behind, strict=True)]
    stuck = {_position(v) for v in violations if v.rule == "deadlock"} - {None}
    waits = _Waits(plan, {position for position in stuck if position is not None})
    return [waits.explain(v) if v.rule == "deadlock" else item for v, item in zip(violations, behind, strict=True)]


def packet_writer(plan: ExecutionPlan, rank: int, piece: int) -> int | None:
    """Return which rank writes packets to a piece of the scratch of `rank`; None where nobody does."""
    maker = MoveMaker(plan, pieces_of_a_chunk(plan, 1))
    writers = [writer for writer, _ in _Waits(plan, set()).packets_written(maker, rank, range(piece, piece + 1))]
    return None if writers[0] is None else writers[0][0]


def pieces_moved(plan: ExecutionPlan) -> int:
    """Return how many pieces of chunks all operations read and write."""
    pieces = pieces_of_a_chunk(plan, 1)
    steps = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    return pieces * sum(operand.count for each in steps for operand in (*each.sources, *each.targets))


def _position(violation: ProgramViolation) -> Position | None:
    if violation.rank is None or violation.block is None or violation.step is None:
        return None
    return violation.rank, violation.block, violation.step


class _Waits:
    """What blocks wait for that hang at the positions `stuck`."""

    def __init__(self, plan: ExecutionPlan, stuck: set[Position]) -> None:
        self._plan = plan
        self._at = {(rank, block): step for rank, block, step in stuck}

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Return for what the operation waits that `violation` names, and where those stand who would have to do it."""
        position = _position(violation)
        if position is None:
            return None
        rank, index, step = position
        top = self._plan.ranks[rank].blocks[index].operations[step]
        clauses: list[tuple[str, Position | None]] = []
        for operation in top.body or (top,):
            clauses += self._waits_of(rank, index, operation)
        if not clauses:
            return None
        positions = dict.fromkeys(other for _, other in clauses[:MAX_EXPLAINED] if other is not None)
        return Explanation("; ".join(text for text, _ in clauses[:MAX_EXPLAINED]), (position, *positions))

    def _waits_of(self, rank: int, index: int, operation: Operation) -> Iterator[tuple[str, Position | None]]:
        block = self._plan.ranks[rank].blocks[index]
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
            for met in self._barriers(rank, operation.barrier[0]):
                if met[1] != index:
                    yield self._clause(f"it waits at barrier {operation.barrier[0]}", met)
        if operation.action.packets:
            yield from self._packets_of(rank, index, operation)

    def _clause(self, what: str, other: Position | None) -> tuple[str, Position | None]:
        """Return a clause about something that the operation at `other` would have to do, None if there is none."""
        if other is None:
            return f"{what}, for which there is no further operation", None
        at = self._at.get(other[:2])
        if at is None or at > other[2]:
            return f"{what}, which {named(other)} has given already, or gives in a call that never comes", other
        return f"{what}, which {named(other)} would give; that block hangs at step {at}", other

    def _signalling(self, rank: int, number: int, heard: Operation) -> Position | None:
        def tells(index: int, operation: Operation) -> bool:
            numbers = self._plan.ranks[rank].blocks[index].channels_of(operation.kind)
            signals = operation.action.signals and operation.kind == heard.kind
            return signals and any(numbers[local] == number for local in operation.channels)

        return self._next(rank, tells)

    def _releasing(self, rank: int, number: int) -> Position | None:
        return self._next(rank, lambda _, each: each.action is Action.RELEASE and number in each.semaphores)

    def _barriers(self, rank: int, number: int) -> Iterator[Position]:
        for index in range(len(self._plan.ranks[rank].blocks)):
            met = self._next(rank, lambda _, each: each.barrier is not None and each.barrier[0] == number, index)
            if met is not None:
                yield met

    def _next(self, rank: int, is_wanted: _Condition, only: int | None = None) -> Position | None:
        """Return the first operation of `rank` that `is_wanted` and has not been done, else the last that has been."""
        done = None
        for index, block in enumerate(self._plan.ranks[rank].blocks):
            for step, operation in enumerate(block.operations if only in (None, index) else ()):
                if any(is_wanted(index, each) for each in operation.body or (operation,)):
                    if step >= self._at.get((rank, index), len(block.operations)):
                        return rank, index, step
                    done = rank, index, step
        return done

    def _packets_of(self, rank: int, index: int, operation: Operation) -> Iterator[tuple[str, Position | None]]:
        """Yield which packets are waited for, and who would write them."""
        maker = MoveMaker(self._plan, pieces_of_a_chunk(self._plan, 1))
        block = self._plan.ranks[rank].blocks[index]
        for move in maker.moves(rank, block, operation, Repeat()):
            for taken in move.takes if move.waits else ():
                pieces = range(taken.first, taken.first + taken.count)
                for writer, some in self.packets_written(maker, taken.rank, pieces):
                    first, last = some.start // maker.pieces, (some.stop - 1) // maker.pieces
                    chunks = f"s[{first}]" if first == last else f"s[{first}..{last}]"
                    what = f"it waits for packets in {chunks} of rank {taken.rank}"
                    yield (f"{what}, which nothing writes", None) if writer is None else self._clause(what, writer)

    def packets_written(self, maker: MoveMaker, rank: int, pieces: range) -> Iterator[tuple[Position | None, range]]:
        """Yield which runs of `pieces` of scratch of `rank` one operation writes as packets, or none."""
        writer_of: dict[int, Position] = {}
        for other, body in enumerate(self._plan.ranks):
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
