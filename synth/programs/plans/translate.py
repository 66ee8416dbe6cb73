"""From a program of sends and receives to a plan of one-sided operations, with a `nop` wherever threads must wait.

Every connection becomes a channel. Before anything is put, the receiver signals once that it has begun the call, and so
its memory is no longer used by the last call. After that senders never ask: a message that may not go straight to its
destination has its own part of scratch. So no queue holds anybody back, and a program that ends with bounded queues
does so as a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout, buffer_chunks, layout_of
from chorale.synth.programs.plans.causality import InstructionId, direct_receives
from chorale.synth.programs.plans.plan import (
    Action,
    ExecutionPlan,
    Operand,
    Operation,
    PlanBlock,
    RankPlan,
    largest_bytes,
)
from chorale.synth.programs.program import Buffer, BufferRef, Instruction, Op, Program, ThreadBlock


class BlockWriter:
    """Appends operations; `layout` is the memory of the rank.

    A `nop` comes between a wait and data, between data and a signal, and between data and data that meet in memory.
    """

    def __init__(self, layout: Layout) -> None:
        self.operations: list[Operation] = []
        self._layout = layout
        self._heard = False
        self._read: list[range] = []
        self._written: list[range] = []

    def wait(self, action: Action, channels: tuple[int, ...] = (), semaphores: tuple[int, ...] = ()) -> None:
        """Wait for a signal or a semaphore."""
        self.operations.append(Operation(action, channels=channels, semaphores=semaphores))
        self._heard = True

    def signal(self, action: Action, channels: tuple[int, ...] = (), semaphores: tuple[int, ...] = ()) -> None:
        """Signal, or release semaphores, after all that was moved; each number is up to one thread."""
        if self._read or self._written or (self._heard and len(channels + semaphores) > 1):
            self._join()
        self.operations.append(Operation(action, channels=channels, semaphores=semaphores))

    def move(self, action: Action, sources: tuple[Operand, ...], target: Operand) -> None:
        """Move or add data with all threads, after what was heard."""
        read = [self._cells(source) for source in sources]
        written = [] if target.buffer is None else [self._cells(target)]
        meets = any(_meet(own, other) for own in (*read, *written) for other in self._written)
        if self._heard or meets or any(_meet(own, other) for own in written for other in self._read):
            self._join()
        # A sum takes its operands and its target piece by piece: `put` has as many targets as sources.
        self.operations.append(Operation(action, sources, (target,)))
        self._read += read
        self._written += written

    def _join(self) -> None:
        self.operations.append(Operation(Action.NOP))
        self._heard = False
        self._read, self._written = [], []

    def _cells(self, operand: Operand) -> range:
        base = self._layout.base(operand.buffer or "s")
        return range(base + operand.first, base + operand.first + operand.count)


def _meet(first: range, second: range) -> bool:
    return first.start < second.stop and second.start < first.stop


Connection = tuple[int, int, int]
"""Sender, receiver, channel of the program."""


def plan_of(program: Program) -> ExecutionPlan:
    """Return what `program` does as one-sided operations; InvalidInput for a protocol with flags in its packets, and
    for sizes beyond what offsets can tell. O(instructions * blocks)."""
    if program.protocol != "Simple":
        raise InvalidInput("plans of MSCCL++ are written for protocol Simple", program.protocol, "use Simple")
    arrivals = _arrivals(program, direct_receives(program))
    slots = [_scratch(program, rank, arrivals) for rank in range(len(program.ranks))]
    largest = largest_bytes(program.chunks, max(slots))
    if program.max_bytes > largest:
        rule = f"a vector of this plan must be at most {largest} bytes, because offsets have 32 bits"
        raise InvalidInput(rule, program.max_bytes, "use a smaller max_bytes, or 0 for as much as the plan can do")
    ranks = tuple(_RankWriter(program, rank, arrivals).plan(slots[rank]) for rank in range(len(program.ranks)))
    largest = program.max_bytes or largest
    return ExecutionPlan(
        program.name, program.collective, program.in_place, ranks, program.min_bytes, largest, program.origin
    )


class _Arrivals:
    """Where messages arrive: of each connection in the order of its messages, and of each receive by its step."""

    def __init__(self) -> None:
        self.of_connection: dict[Connection, list[BufferRef]] = defaultdict(list)
        self.of_step: dict[InstructionId, BufferRef] = {}


def _arrivals(program: Program, direct: set[InstructionId]) -> _Arrivals:
    arrivals = _Arrivals()
    for rank, body in enumerate(program.ranks):
        free = body.scratch_chunks
        for index, block in enumerate(body.blocks):
            for step, item in enumerate(block.instructions):
                if not item.op.receives:
                    continue
                place = item.dst if (rank, index, step) in direct else BufferRef("s", free)
                free += 0 if place is item.dst else item.count
                arrivals.of_step[rank, index, step] = place
                arrivals.of_connection[block.recv_peer or 0, rank, block.channel].append(place)
    return arrivals


def _scratch(program: Program, rank: int, arrivals: _Arrivals) -> int:
    """Return how many chunks of scratch `rank` needs."""
    body = program.ranks[rank]
    slots = (
        item.count
        for index, block in enumerate(body.blocks)
        for step, item in enumerate(block.instructions)
        if item.op.receives and arrivals.of_step[rank, index, step] is not item.dst
    )
    return body.scratch_chunks + sum(slots)


class _RankWriter:
    """Writes the plan of one rank."""

    def __init__(self, program: Program, rank: int, arrivals: _Arrivals) -> None:
        self._rank = rank
        self._body = program.ranks[rank]
        self._arrivals = arrivals
        self._layout = layout_of(program, rank)
        self._buffers = buffer_chunks(program.collective.name, program.chunks, len(program.ranks))
        self._channels = _channels(rank, self._body.blocks)
        self._links = _links(self._body.blocks)
        self._remotes: dict[tuple[int, Buffer], int] = {}

    def plan(self, scratch_chunks: int) -> RankPlan:
        """Return the plan."""
        blocks = tuple(self._block(index, block) for index, block in enumerate(self._body.blocks))
        return RankPlan(
            *self._buffers,
            scratch_chunks,
            tuple(peer for peer, _ in self._channels),
            tuple(self._remotes),
            (0,) * self._links.semaphores,
            blocks,
        )

    def _block(self, index: int, block: ThreadBlock) -> PlanBlock:
        writer = BlockWriter(self._layout)
        incoming = (block.recv_peer or 0, self._rank, block.channel)
        outgoing = (self._rank, block.send_peer or 0, block.channel)
        used = [(block.recv_peer, incoming), (block.send_peer, outgoing)]
        channels = [self._channels[peer, connection] for peer, connection in used if peer is not None]
        into, out = (0,), (len(channels) - 1,)
        if block.recv_peer is not None:
            writer.signal(Action.SIGNAL, into)
        if block.send_peer is not None:
            writer.wait(Action.WAIT, out)
        remotes: dict[int, int] = {}
        sent = count()
        for step, item in enumerate(block.instructions):
            if (index, step) in self._links.acquired:
                writer.wait(Action.ACQUIRE, semaphores=self._links.acquired[index, step])
            place = self._receive(writer, (self._rank, index, step), item, into)
            if item.op.sends:
                target = self._arrivals.of_connection[outgoing][next(sent)]
                remote = self._remotes.setdefault((outgoing[1], target.buffer), len(self._remotes))
                local = remotes.setdefault(remote, len(remotes))
                writer.move(Action.PUT, (_at(place, item),), Operand(target.offset, item.count, remote=local))
                writer.signal(Action.SIGNAL, out)
            if (index, step) in self._links.released:
                writer.signal(Action.RELEASE, semaphores=self._links.released[index, step])
        return PlanBlock(tuple(channels), tuple(remotes), tuple(writer.operations))

    def _receive(self, writer: BlockWriter, step: InstructionId, item: Instruction, channel: tuple[int]) -> BufferRef:
        """Write what `item` does besides sending; return where it leaves what it sends."""
        if item.op.receives:
            writer.wait(Action.WAIT, channel)
            arrived = self._arrivals.of_step[step]
            if item.op is Op.RECV_REDUCE_SEND:
                writer.move(Action.REDUCE, (_at(arrived, item), _at(item.src, item)), _at(arrived, item))
                return arrived
            if item.op.reads_src:
                writer.move(Action.REDUCE, (_at(item.src, item), _at(arrived, item)), _at(item.dst, item))
            elif arrived is not item.dst:
                writer.move(Action.COPY, (_at(arrived, item),), _at(item.dst, item))
            return item.dst
        if item.op is Op.COPY:
            writer.move(Action.COPY, (_at(item.src, item),), _at(item.dst, item))
        if item.op is Op.REDUCE:
            writer.move(Action.REDUCE, (_at(item.dst, item), _at(item.src, item)), _at(item.dst, item))
        return item.src


class _Links(NamedTuple):
    """Semaphores for the waits of a rank, one for each pair of blocks: how many, and by block and step, which are
    acquired before it and released after it."""

    semaphores: int
    acquired: dict[tuple[int, int], tuple[int, ...]]
    released: dict[tuple[int, int], tuple[int, ...]]


def _links(blocks: Sequence[ThreadBlock]) -> _Links:
    numbers: dict[tuple[int, int], int] = {}
    latest: dict[int, int] = {}
    acquired: dict[tuple[int, int], list[int]] = defaultdict(list)
    released: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, block in enumerate(blocks):
        for step, item in enumerate(block.instructions):
            for wait in item.waits:
                if wait.block == index:
                    continue
                number = numbers.setdefault((wait.block, index), len(numbers))
                # What an earlier wait includes needs no other.
                if wait.step > latest.get(number, -1):
                    latest[number] = wait.step
                    acquired[index, step].append(number)
                    released[wait.block, wait.step].append(number)
    return _Links(
        len(numbers), *({key: tuple(sorted(found)) for key, found in of.items()} for of in (acquired, released))
    )


def _channels(rank: int, blocks: Sequence[ThreadBlock]) -> dict[tuple[int, Connection], int]:
    """Number the channels of `rank` by peer and connection, so that both ends have those with one peer in one order."""
    found: list[tuple[int, Connection]] = []
    for block in blocks:
        if block.recv_peer is not None:
            found.append((block.recv_peer, (block.recv_peer, rank, block.channel)))
        if block.send_peer is not None:
            found.append((block.send_peer, (rank, block.send_peer, block.channel)))
    found.sort(key=lambda end: (end[0], end[1][2], end[1][0]))
    return {end: number for number, end in enumerate(found)}


def _at(place: BufferRef, item: Instruction) -> Operand:
    return Operand(place.offset, item.count, place.buffer)
