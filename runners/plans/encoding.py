"""A rank's part of a plan as the numbers that the executor reads (native/plan_words.cpp).

What an operation moves is taken from `chorale.synth.programs.plans.moves`, as the check of plans takes it: both follow
the same stretches of the same pieces of chunks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chorale.runners.api.programs import PLAN_ALIGNMENT_BYTES
from chorale.synth.programs.plans.moves import Move, MoveMaker, Repeat, Stretch, pieces_of_a_chunk
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind, Operation, PlanBlock

_VERSION = 1
_NOP, _BARRIER, _SIGNAL, _PORT_SIGNAL, _WAIT, _ACQUIRE, _RELEASE, _MOVE, _PORT_MOVE, _PIPELINE = range(10)


def pieces_of_the_vector(plan: ExecutionPlan) -> int:
    """Return into how many equal pieces the vector of `plan` is cut: chunks, or parts of them that groups share."""
    return plan.chunks * pieces_of_a_chunk(plan, 1)


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What ranks agree on: pieces of a chunk, counters of memory channels and of all, pieces of memory and packets."""

    pieces: int
    memory_slots: int
    slots: int
    data_pieces: int
    packet_pieces: int

    @staticmethod
    def of(plan: ExecutionPlan) -> PlanShape:
        """Return the shape of `plan`: the most of any rank."""
        pieces = pieces_of_a_chunk(plan, 1)
        ranks = range(len(plan.ranks))
        scratch = max(body.scratch_chunks for body in plan.ranks) if plan.settings.packets else 0
        memory, ports = (_counters(plan, kind) for kind in _KINDS)
        cells = max(plan.layout(rank).cells for rank in ranks)
        return PlanShape(pieces, memory, memory + ports, cells * pieces, scratch * pieces)

    def slot(self, kind: Kind, number: int) -> int:
        """Return the counter of a channel of a rank."""
        return number if kind == "memory" else self.memory_slots + number


_KINDS: tuple[Kind, Kind] = ("memory", "port")


def _counters(plan: ExecutionPlan, kind: Kind) -> int:
    """Return how many channels of `kind` a rank has at most, with those that only the other end declares."""
    ends = [
        end
        for rank, body in enumerate(plan.ranks)
        for number in range(len(body.peers_of(kind)))
        for end in (number, plan.other_end(rank, number, kind)[1])
    ]
    return 1 + max(ends, default=0)


def encode_plan(plan: ExecutionPlan, rank: int) -> array[int]:
    """Return the part of `rank` of the structurally sound `plan` as 64-bit integers. O(operations)."""
    encoder = _Encoder(plan, rank)
    words = array("q", encoder.head())
    for block in plan.ranks[rank].blocks:
        actions = list(encoder.block(block))
        words.append(len(actions))
        for action in actions:
            words.extend(action)
    return words


class _Encoder:
    def __init__(self, plan: ExecutionPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._shape = PlanShape.of(plan)
        self._maker = MoveMaker(plan, self._shape.pieces)

    def head(self) -> list[int]:
        plan, shape = self._plan, self._shape
        body = plan.ranks[self._rank]
        sizes = [len(plan.ranks), shape.slots, shape.data_pieces, shape.packet_pieces]
        halves = int(plan.settings.double_scratch)
        return [_VERSION, *sizes, halves, len(body.semaphores), *body.semaphores, len(body.blocks)]

    def block(self, block: PlanBlock) -> Iterator[list[int]]:
        """Yield the words of each action of `block`: its step, what it is, its operands."""
        for step, operation in enumerate(block.operations):
            if operation.action is not Action.PIPELINE:
                yield from ([step, *action] for action in self._actions(block, operation))
                continue
            assert operation.pipeline is not None
            unit_bytes, chunks = operation.pipeline
            body = [action for each in operation.body for action in self._actions(block, each)]
            unit_bytes = -(-unit_bytes // PLAN_ALIGNMENT_BYTES) * PLAN_ALIGNMENT_BYTES
            yield [step, _PIPELINE, unit_bytes, chunks * self._shape.pieces, len(body)]
            yield from ([step, *action] for action in body)

    def _actions(self, block: PlanBlock, operation: Operation) -> Iterator[list[int]]:
        action = operation.action
        if action.moves:
            for move in self._maker.moves(self._rank, block, operation, Repeat()):
                yield self._move(block, operation, move)
        elif action.signals:
            code = _PORT_SIGNAL if operation.kind == "port" else _SIGNAL
            yield [code, *self._counters(block, operation, operation.channels)]
        elif action.waits:
            numbers = [block.channels_of(operation.kind)[local] for local in operation.channels]
            yield [_WAIT, *_listed([self._shape.slot(operation.kind, number) for number in numbers])]
        elif action is Action.BARRIER:
            assert operation.barrier is not None
            yield [_BARRIER, *operation.barrier]
        elif action in (Action.ACQUIRE, Action.RELEASE):
            yield [_ACQUIRE if action is Action.ACQUIRE else _RELEASE, *_listed(operation.semaphores)]
        else:
            yield [_NOP]  # the threads of a block are one here; a flush alone does nothing

    def _counters(self, block: PlanBlock, operation: Operation, channels: Sequence[int]) -> list[int]:
        """Return how many counters at other ranks a signal on `channels` counts up, and each: rank and counter."""
        words = [len(channels)]
        for local in channels:
            own = block.channels_of(operation.kind)[local]
            peer, number = self._plan.other_end(self._rank, own, operation.kind)
            words += [peer, self._shape.slot(operation.kind, number)]
        return words

    def _move(self, block: PlanBlock, operation: Operation, move: Move) -> list[int]:
        words = [_MOVE if move.port is None else _PORT_MOVE]
        for stretches, are_packets in (
            (move.reads, False),
            (move.takes, True),
            (move.writes, False),
            (move.packets, True),
        ):
            words.append(len(stretches))
            for stretch in stretches:
                words += self._stretch(stretch, are_packets)
        if move.port is None:
            return words
        signals = operation.channels[move.port : move.port + 1] if operation.action.signals else ()
        words += self._counters(block, operation, signals)
        waits = bool(move.takes) and move.waits
        return [*words, int(waits), int(operation.action is Action.PUT_SIGNAL_FLUSH)]

    def _stretch(self, stretch: Stretch, is_packets: bool) -> list[int]:
        if is_packets:
            return [stretch.rank, stretch.first, stretch.count]
        base = self._plan.layout(stretch.rank).base(stretch.buffer) * self._shape.pieces
        return [stretch.rank, base + stretch.first, stretch.count]


def _listed(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *numbers]
