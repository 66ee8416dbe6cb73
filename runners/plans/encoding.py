"""Encodes a rank's part of a plan as the numbers that the executor reads (native/plan_core.hpp).

`chorale.synth.programs.plans.moves`, which the plan checker also uses, lists the data that an operation moves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chorale.runners.api.programs import PLAN_ALIGNMENT_BYTES
from chorale.synth.programs.plans.moves import Move, MoveMaker, Repeat, Stretch, pieces_of_a_chunk
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind, Operation, PlanBlock

_VERSION = 3
_NOP, _BARRIER, _SIGNAL, _PORT_SIGNAL, _WAIT, _ACQUIRE, _RELEASE, _MOVE, _PORT_MOVE, _PIPELINE = range(10)
INPUT, OUTPUT, SCRATCH, PACKETS, COUNTERS, WINDOWS = range(6)
"""Windows of a rank's memory; rank r's windows are numbered from r * WINDOWS on."""
_WINDOW_OF = {"i": INPUT, "o": OUTPUT, "s": SCRATCH}


def pieces_of_the_vector(plan: ExecutionPlan) -> int:
    """Return the number of equal pieces into which the plan divides its vector.

    A piece is a chunk or, if several groups share each chunk, a group's part of it.
    """
    return plan.chunks * pieces_of_a_chunk(plan, 1)


@dataclass(frozen=True, slots=True)
class PlanShape:
    """Sizes of a plan that are the same on all ranks.

    pieces:       number of pieces per chunk
    memory_slots: number of counters for memory channels
    slots:        number of counters for all channels
    windows:      for each rank, the pieces in its input, output, scratch and packets
    """

    pieces: int
    memory_slots: int
    slots: int
    windows: tuple[tuple[int, int, int, int], ...]

    @staticmethod
    def of(plan: ExecutionPlan) -> PlanShape:
        pieces = pieces_of_a_chunk(plan, 1)
        memory, ports = (_counters(plan, kind) for kind in _KINDS)
        windows = []
        for rank, body in enumerate(plan.ranks):
            layout = plan.layout(rank)
            ends = (layout.scratch_base if plan.in_place else layout.output_base), layout.scratch_base
            inputs, outputs = ends[0] - layout.input_base, ends[1] - layout.output_base
            packets = body.scratch_chunks if plan.settings.packets else 0
            windows.append((inputs * pieces, outputs * pieces, body.scratch_chunks * pieces, packets * pieces))
        return PlanShape(pieces, memory, memory + ports, tuple(windows))

    def slot(self, kind: Kind, number: int) -> int:
        """Return the position of a channel's counter among its rank's counters."""
        return number if kind == "memory" else self.memory_slots + number


_KINDS: tuple[Kind, Kind] = ("memory", "port")


def _counters(plan: ExecutionPlan, kind: Kind) -> int:
    """Return the largest number of channels of `kind` on any rank, including those that only the other end declares."""
    ends = [
        end
        for rank, body in enumerate(plan.ranks)
        for number in range(len(body.peers_of(kind)))
        for end in (number, plan.other_end(rank, number, kind)[1])
    ]
    return 1 + max(ends, default=0)


@dataclass(frozen=True, slots=True)
class WordsHead:
    """The first words of an encoded plan, which determine a rank's state; see native/plan_core.hpp."""

    slots: int
    halves: int
    barriers: int
    semaphores: tuple[int, ...]
    blocks: int

    @staticmethod
    def of(words: Sequence[int]) -> WordsHead:
        """Parse the first of the `words` from `encode_plan`."""
        _, _, ranks, slots, halves, barriers, semaphores, blocks, _ = words[:9]
        first = 9 + 4 * ranks
        return WordsHead(slots, halves, barriers, tuple(words[first : first + semaphores]), blocks)

    def state(self) -> list[int]:
        """Return a rank's state before the first call."""
        return [*[0] * (4 * self.blocks + self.slots), *self.semaphores, *[0] * self.barriers]


def encode_plan(plan: ExecutionPlan, rank: int) -> array[int]:
    """Return `rank`'s part as 64-bit integers. `plan` must be structurally sound. O(operations)."""
    encoder, blocks = _Encoder(plan, rank), plan.ranks[rank].blocks
    head = encoder.head()
    table = len(head)
    words = array("q", [*head, *[0] * (2 * len(blocks))])
    for number, block in enumerate(blocks):
        words[table + 2 * number] = len(words)
        for action in encoder.block(block, len(words)):
            words.extend(action)
        words[table + 2 * number + 1] = len(words)
    return words


class _Encoder:
    def __init__(self, plan: ExecutionPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._shape = PlanShape.of(plan)
        self._maker = MoveMaker(plan, self._shape.pieces)

    def head(self) -> list[int]:
        plan, shape = self._plan, self._shape
        body = plan.ranks[self._rank]
        numbers = [each.barrier[0] for block in body.blocks for each in block.every_operation() if each.barrier]
        sizes = [pieces for windows in shape.windows for pieces in windows]
        fixed = [_VERSION, self._rank, len(plan.ranks), shape.slots, 1 + int(plan.settings.double_scratch)]
        lists = [1 + max(numbers, default=-1), len(body.semaphores), len(body.blocks), plan.settings.vector_bytes]
        return [*fixed, *lists, *sizes, *body.semaphores]

    def block(self, block: PlanBlock, first: int) -> Iterator[list[int]]:
        """Yield the words of each action in `block`, which begins at the word `first`.

        An action consists of its number of words, its step, its kind and its operands.
        """
        for step, operation in enumerate(block.operations):
            if operation.action is not Action.PIPELINE:
                actions = [_framed(step, action) for action in self._actions(block, operation)]
            else:
                assert operation.pipeline is not None
                unit_bytes, chunks = operation.pipeline
                body = [_framed(step, action) for each in operation.body for action in self._actions(block, each)]
                unit_bytes = -(-unit_bytes // PLAN_ALIGNMENT_BYTES) * PLAN_ALIGNMENT_BYTES
                head = _framed(step, [_PIPELINE, unit_bytes, chunks * self._shape.pieces, 0])
                head[-1] = first + len(head) + sum(map(len, body))
                actions = [head, *body]
            first += sum(map(len, actions))
            yield from actions

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
            peers = self._plan.ranks[self._rank].peers_of(operation.kind)
            slots = [word for number in numbers for word in (self._shape.slot(operation.kind, number), peers[number])]
            yield [_WAIT, len(numbers), *slots]
        elif action is Action.BARRIER:
            assert operation.barrier is not None
            yield [_BARRIER, *operation.barrier]
        elif action in (Action.ACQUIRE, Action.RELEASE):
            code = _ACQUIRE if action is Action.ACQUIRE else _RELEASE
            yield [code, len(operation.semaphores), *operation.semaphores]
        else:
            yield [_NOP, 0]  # the threads of a block wait for each other; a flush alone does nothing

    def _counters(self, block: PlanBlock, operation: Operation, channels: Sequence[int]) -> list[int]:
        """Return the number of counters that a signal on `channels` increments, then rank and counter of each."""
        words = [len(channels)]
        for local in channels:
            own = block.channels_of(operation.kind)[local]
            peer, number = self._plan.other_end(self._rank, own, operation.kind)
            words += [peer, self._shape.slot(operation.kind, number)]
        return words

    def _move(self, block: PlanBlock, operation: Operation, move: Move) -> list[int]:
        lists = ((move.reads, False), (move.takes, True), (move.writes, False), (move.packets, True))
        places = [_place(stretch, packed) for stretches, packed in lists for stretch in stretches]
        count = next(stretch.count for stretches, _ in lists for stretch in stretches)
        words = [*(len(stretches) for stretches, _ in lists), count, int(move.switch)]
        words += [word for place in places for word in place]
        if move.port is None:
            return [_MOVE, *words]
        signals = operation.channels[move.port : move.port + 1] if operation.action.signals else ()
        waits = bool(move.takes) and move.waits
        flushes = operation.action is Action.PUT_SIGNAL_FLUSH
        return [_PORT_MOVE, *words, *self._counters(block, operation, signals), int(waits), int(flushes)]


def _framed(step: int, action: list[int]) -> list[int]:
    return [2 + len(action), step, *action]


def _place(stretch: Stretch, packed: bool) -> tuple[int, int]:
    return stretch.rank * WINDOWS + (PACKETS if packed else _WINDOW_OF[stretch.buffer]), stretch.first
