"""Explains what the hanging blocks of a plan wait for, and which operation would have to provide it."""

from collections.abc import Callable, Iterator

from chorale.synth.programs.plans.moves import MoveMaker, Repeat, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation
from chorale.synth.programs.program import Position

_MAX_NAMED = 5


def packet_writer(plan: ExecutionPlan, rank: int, piece: int) -> int | None:
    """Return the rank that writes packets to a piece of `rank`'s scratch, or None if no rank does."""
    maker = MoveMaker(plan, pieces_of_a_chunk(plan, 1))
    (writer, _), *_ = _packets_written(maker, rank, range(piece, piece + 1))
    return None if writer is None else writer[0]


def _packets_written(maker: MoveMaker, rank: int, pieces: range) -> Iterator[tuple[Position | None, range]]:
    """Divide `pieces` of `rank`'s scratch into runs with the same packet writer; yield (writer, run).

    The writer is None if no operation writes packets to this run.
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


class Waits:
    """Explains what the blocks that hang at the positions `stuck` wait for."""

    def __init__(self, plan: ExecutionPlan, stuck: list[Position]) -> None:
        self._plan = plan
        self._at = {(rank, block): step for rank, block, step in stuck}

    def text(self, rank: int, index: int, step: int) -> str:
        """Return what the operation waits for, and where the blocks that would provide it hang; "" if not known."""
        top = self._plan.ranks[rank].blocks[index].operations[step]
        clauses = (clause for each in top.body or (top,) for clause in self._waits_of(rank, index, each))
        return "; ".join(list(clauses)[:_MAX_NAMED])

    def _waits_of(self, rank: int, index: int, operation: Operation) -> Iterator[str]:
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
                        yield self._clause(what, writer) if writer else f"{what}, which nothing writes"

    def _clause(self, what: str, other: Position | None) -> str:
        """Return a clause that says that `what` is awaited and why the operation at `other` does not provide it."""
        if other is None:
            return f"{what}, for which there is no further operation"
        place, at = "rank {}, block {}, step {}".format(*other), self._at.get(other[:2])
        if at is None or at > other[2]:
            return f"{what}, which {place} has given already, or gives in a call that never comes"
        return f"{what}, which {place} would give; that block hangs at step {at}"

    def _releasing(self, rank: int, number: int) -> Position | None:
        return self._next(rank, lambda _, each: each.action is Action.RELEASE and number in each.semaphores)

    def _signalling(self, rank: int, number: int, awaited: Operation) -> Position | None:
        def signals(index: int, operation: Operation) -> bool:
            numbers = self._plan.ranks[rank].blocks[index].channels_of(operation.kind)
            is_signal = operation.action.signals and operation.kind == awaited.kind
            return is_signal and any(numbers[local] == number for local in operation.channels)

        return self._next(rank, signals)

    def _next(self, rank: int, is_wanted: Callable[[int, Operation], bool], only: int | None = None) -> Position | None:
        """Return the first matching operation of `rank` that is not done yet or, if all are done, the last one.

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
