"""What operations of a plan read and write: stretches of pieces of chunks, and what becomes of them.

A chunk is cut into as many pieces as the parts need that groups of blocks and pipelines work on. A pipeline is taken to
have one part, or two: more change nothing of what is ordered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import NamedTuple

from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operand, Operation, PlanBlock
from chorale.synth.programs.program import Buffer

MAX_PIECES = 64


class Stretch(NamedTuple):
    """Consecutive pieces of a buffer of a rank."""

    rank: int
    buffer: Buffer
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count


@dataclass(frozen=True, slots=True)
class Move:
    """One way of data: the sum of all that is read, or a copy, goes to all that is written.

    reads, writes:   plain data
    takes, packets:  packets that are waited for, and that are written
    port:            which of the channels of the operation does it, None for the threads of the block
    switch:          whether the switch reads and writes
    waits:           whether packets are waited for; a port sends on what is there
    """

    reads: tuple[Stretch, ...] = ()
    takes: tuple[Stretch, ...] = ()
    writes: tuple[Stretch, ...] = ()
    packets: tuple[Stretch, ...] = ()
    port: int | None = None
    switch: bool = False
    waits: bool = True


def pieces_of_a_chunk(plan: ExecutionPlan, parts: int) -> int:
    """Return into how many pieces chunks are cut, with pipelines of so many `parts`."""
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
    """Which part of a pipeline an operation is in."""

    number: int = 0
    parts: int = 1


class Step(NamedTuple):
    """An operation as a block comes to it, pipelines repeated.

    number:   of the operation in its block; of a pipeline, for all in it
    channels: of the operation, by their numbers within the rank
    """

    number: int
    operation: Operation
    repeat: Repeat
    channels: tuple[int, ...]


def unrolled(block: PlanBlock, parts: int) -> Iterator[Step]:
    """Yield what `block` does in its order, with pipelines in so many `parts`."""
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
    """Makes the moves of operations of `plan`, whose chunks have `pieces` pieces."""

    plan: ExecutionPlan
    pieces: int

    def moves(self, rank: int, block: PlanBlock, operation: Operation, repeat: Repeat) -> list[Move]:
        """Return what `operation` of `block` of `rank` moves. O(operands)."""
        sources = [self._stretches(rank, block, operation, each, repeat) for each in operation.sources]
        targets = [self._stretches(rank, block, operation, each, repeat) for each in operation.targets]
        action = operation.action
        if operation.kind == "switch":
            return [self._by_switch(action, sources, targets)]
        if action in _PAIRS:
            pairs = zip(sources, targets, strict=True)
            made = [_paired(action, source[0], target[0]) for source, target in pairs]
            if operation.kind != "port":
                return made
            if action is Action.PUT_PACKETS:
                made = [replace(move, reads=(), takes=move.reads, waits=False) for move in made]
            return [replace(move, port=number) for number, move in enumerate(made)]
        return [_summed(action, [each[0] for each in sources], [each[0] for each in targets])]

    def _by_switch(self, action: Action, sources: list[list[Stretch]], targets: list[list[Stretch]]) -> Move:
        reads, writes = tuple(sources[0]), tuple(targets[0])
        if action is Action.GROUP_STORE_PACKETS:
            return Move(reads, packets=writes)
        return Move(reads, writes=writes, switch=True)

    def _stretches(
        self, rank: int, block: PlanBlock, operation: Operation, operand: Operand, repeat: Repeat
    ) -> list[Stretch]:
        """Return where `operand` lies: one stretch, or of a switch one at each rank of the group."""
        body = self.plan.ranks[rank]
        places: list[tuple[int, Buffer]]
        if operand.switch is not None:
            buffer, group = body.switches[block.switches[operand.switch]]
            places = [(each, buffer) for each in group]
        elif operand.remote is not None:
            places = [body.remotes[block.remotes_of(operation.kind)[operand.remote]]]
        else:
            places = [(rank, operand.buffer or "s")]
        number, of = operation.part
        whole = operand.count * self.pieces
        share = whole // of
        part = share // repeat.parts
        first = operand.first * self.pieces + number * share + repeat.number * part
        return [Stretch(each, buffer, first, part) for each, buffer in places]


_PAIRS = frozenset(
    {
        Action.PUT,
        Action.PUT_SIGNAL,
        Action.PUT_SIGNAL_FLUSH,
        Action.GET,
        Action.COPY,
        Action.PUT_PACKETS,
        Action.READ_PUT_PACKETS,
        Action.COPY_PACKETS,
        Action.UNPACK_PACKETS,
    }
)
"""Each source goes to the target at the same position."""


def _paired(action: Action, source: Stretch, target: Stretch) -> Move:
    if action is Action.READ_PUT_PACKETS:
        return Move(takes=(source,), packets=(target,))
    if action is Action.UNPACK_PACKETS:
        return Move(takes=(source,), writes=(target,))
    if action.packets:
        return Move(reads=(source,), packets=(target,))
    return Move(reads=(source,), writes=(target,))


def _summed(action: Action, sources: list[Stretch], targets: list[Stretch]) -> Move:
    if not action.packets:
        return Move(reads=tuple(sources), writes=tuple(targets))
    return Move((sources[0],), tuple(sources[1:]), (targets[0],), tuple(targets[1:]))
