"""Computes which data a plan's operations read and write, as stretches (intervals) of pieces of chunks.

Groups of blocks and pipelines work on parts of chunks, so each chunk is cut into enough pieces to express these parts.
A pipeline is assumed to have one or two parts, because more parts would not change which accesses are ordered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import NamedTuple

from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operand, Operation, PlanBlock
from chorale.synth.programs.program import Buffer

MAX_PIECES = 64
_PAIRS = frozenset(
    {Action.PUT, Action.PUT_SIGNAL, Action.PUT_SIGNAL_FLUSH, Action.GET, Action.COPY, Action.PUT_PACKETS}
    | {Action.READ_PUT_PACKETS, Action.COPY_PACKETS, Action.UNPACK_PACKETS}
)
"""Operations that copy the k-th source to the k-th target."""


class Stretch(NamedTuple):
    """Consecutive pieces of chunks in one buffer of a rank."""

    rank: int
    buffer: Buffer
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count


@dataclass(frozen=True, slots=True)
class Move:
    """A movement of data: everything that is read is added up, and the sum is stored in every written stretch.

    reads:           stretches of plain data that are read
    takes:           stretches of packets that are read
    writes:          stretches to which plain data is written
    packets:         stretches to which packets are written
    port:            index, among the operation's channels, of the port that moves the data; None if the block's threads
                     move the data
    switch:          whether a switch moves the data
    waits:           whether to wait for the packets in `takes`; a port instead sends what scratch contains at that time
    """

    reads: tuple[Stretch, ...] = ()
    takes: tuple[Stretch, ...] = ()
    writes: tuple[Stretch, ...] = ()
    packets: tuple[Stretch, ...] = ()
    port: int | None = None
    switch: bool = False
    waits: bool = True


def pieces_of_a_chunk(plan: ExecutionPlan, parts: int) -> int:
    """Return the number of pieces per chunk if pipelines have `parts` parts. Stops counting above MAX_PIECES."""
    pieces = 1
    for body in plan.ranks:
        for block in body.blocks:
            for operation in block.operations:
                repeated = parts if operation.body else 1
                for each in operation.body or (operation,):
                    for operand in (*each.sources, *each.targets):
                        shares = each.part[1] * repeated
                        pieces = lcm(pieces, shares // gcd(shares, max(1, operand.count)))
                        if pieces > MAX_PIECES:
                            return pieces
    return pieces


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part of a pipeline: part `number` of `parts`."""

    number: int = 0
    parts: int = 1


class Step(NamedTuple):
    """An operation to execute. Each operation in a pipeline becomes one step for each part of the pipeline.

    number:   the operation's index in its block; for an operation in a pipeline, the pipeline's index
    channels: the operation's channels, as numbers within the rank
    """

    number: int
    operation: Operation
    repeat: Repeat
    channels: tuple[int, ...]


def unrolled(block: PlanBlock, parts: int) -> Iterator[Step]:
    """Yield the operations of `block` in order. The operations of each pipeline are repeated for `parts` parts."""
    for number, operation in enumerate(block.operations):
        is_pipeline = operation.action is Action.PIPELINE
        for part in range(parts if is_pipeline else 1):
            repeat = Repeat(part, parts) if is_pipeline else Repeat()
            for each in operation.body if is_pipeline else (operation,):
                numbers = block.channels_of(each.kind)
                channels = tuple(numbers[local] for local in each.channels) if each.kind != "switch" else ()
                yield Step(number, each, repeat, channels)


@dataclass(frozen=True, slots=True)
class MoveMaker:
    """Computes the data movements of operations in `plan`. Each chunk consists of `pieces` pieces."""

    plan: ExecutionPlan
    pieces: int

    def moves(self, rank: int, block: PlanBlock, operation: Operation, repeat: Repeat) -> list[Move]:
        sources = [self._stretches(rank, block, operation, each, repeat) for each in operation.sources]
        targets = [self._stretches(rank, block, operation, each, repeat) for each in operation.targets]
        action = operation.action
        if action is Action.GROUP_STORE_PACKETS:
            return [Move(tuple(sources[0]), packets=tuple(targets[0]))]
        if operation.kind == "switch":
            return [Move(tuple(sources[0]), writes=tuple(targets[0]), switch=True)]
        read, written = (tuple(each[0] for each in side) for side in (sources, targets))
        if action not in _PAIRS:
            if action.packets:
                return [Move(read[:1], read[1:], written[:1], written[1:])]
            return [Move(read, writes=written)]
        takes_packets = action in (Action.READ_PUT_PACKETS, Action.UNPACK_PACKETS)
        writes_packets = action.packets and action is not Action.UNPACK_PACKETS
        made = []
        for source, target in zip(read, written, strict=True):
            from_ = ((), (source,)) if takes_packets else ((source,), ())
            made.append(Move(*from_, *(((), (target,)) if writes_packets else ((target,), ()))))
        if operation.kind != "port":
            return made
        if action is Action.PUT_PACKETS:
            made = [replace(move, reads=(), takes=move.reads, waits=False) for move in made]
        return [replace(move, port=number) for number, move in enumerate(made)]

    def _stretches(
        self, rank: int, block: PlanBlock, operation: Operation, operand: Operand, repeat: Repeat
    ) -> list[Stretch]:
        """Return the memory of `operand`: one stretch or, for a switch channel, one at each rank of the group."""
        number, of = operation.part
        share = operand.count * self.pieces // of
        part = share // repeat.parts
        first = operand.first * self.pieces + number * share + repeat.number * part
        places = self.plan.memory_of(rank, block, operation, operand)
        return [Stretch(each, buffer, first, part) for each, buffer in places]
