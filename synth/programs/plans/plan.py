"""Defines the ExecutionPlan: a collective as one-sided operations, in the form that the MSCCL++ executor runs.

Thread blocks move data over three kinds of channels. Over a memory channel, they write to the memory of other ranks in
their box (`put`) or read it (`get`). Over a port, a proxy on the host writes on behalf of blocks, also to ranks in
other boxes. Over a switch channel, a switch adds up data from the memory of all ranks or multicasts data. Blocks notify
each other with signals, or send packets, which are data with a flag for which the reader waits.

The executor does not match sends with receives, and a sender never has to wait. Only `nop` makes the threads of a block
wait for each other. After a `nop`, all threads know everything for which any thread has waited, and a signal covers
the writes of all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout, shape_of
from chorale.synth.programs.program import Buffer, Message

TARGET = "mscclpp-json"
Kind = Literal["memory", "port", "switch"]
"""Kinds of channels: direct access to a peer's memory, a proxy on the host, or a switch that reduces or multicasts."""
VECTOR_BYTES = (8, 16)
"""Numbers of bytes that a thread of Chorale's kernel can read or write at once; the last is the default."""


class Action(StrEnum):
    """Kinds of operations, with the names that the executor uses. Packets are always in scratch memory."""

    NOP = "nop"  # all threads of the block wait for each other
    BARRIER = "barrier"  # all threads of several of the rank's blocks wait for each other
    SIGNAL = "signal"  # notify each channel's peer once
    WAIT = "wait"  # wait until each channel's peer has signalled once more
    RELAXED_SIGNAL = "rlxsignal"  # like signal, but without ordering earlier writes
    RELAXED_WAIT = "rlxwait"
    FLUSH = "flush"  # does nothing: the executor takes the channels from the targets, but a flush has no targets
    ACQUIRE = "sem_acquire"  # wait until one of the rank's semaphores is above 0, then subtract 1
    RELEASE = "sem_release"  # add 1 to one of the rank's semaphores
    PUT = "put"  # write local chunks to a peer
    PUT_SIGNAL = "pws"  # put through a port, then signal
    PUT_SIGNAL_FLUSH = "pwsf"  # like pws, then wait until the chunks have been read
    GET = "get"  # read a peer's chunks
    COPY = "copy"
    REDUCE = "re"  # target = sum of all sources
    REDUCE_SEND = "res"  # re, then write the sum to peers
    READ_REDUCE = "rre"  # target = sum of a local source and remote ones
    READ_REDUCE_SEND = "rres"
    PUT_PACKETS = "ppkt"  # write local chunks as packets to peers; through a port, forward packets
    READ_PUT_PACKETS = "rppkt"  # wait for packets and forward them
    COPY_PACKETS = "cpkt"  # write local chunks as packets
    UNPACK_PACKETS = "upkt"  # wait for packets and store their data
    REDUCE_PACKETS = "repkt"  # target = sum of a local source and packets
    REDUCE_SEND_PACKETS = "respkt"  # repkt, then write the sum to peers as packets
    REDUCE_COPY_PACKETS = "recpkt"  # repkt, then write the sum to local packets
    REDUCE_COPY_SEND_PACKETS = "recspkt"  # respkt and recpkt together
    GROUP_LOAD_REDUCE = "glre"  # target = sum over a group, computed by the switch
    GROUP_LOAD_REDUCE_STORE = "glres"  # glre, then store the sum at all ranks of the group
    GROUP_STORE = "gstore"  # store local chunks at all ranks of a group
    GROUP_STORE_PACKETS = "gstorepkt"
    PIPELINE = "pipeline"  # repeat the operations in it for each part of their chunks in turn

    @property
    def moves(self) -> bool:
        """Whether the operation moves data, using all of the block's threads."""
        return self in _MOVING

    @property
    def packets(self) -> bool:
        """Whether the operation reads or writes packets."""
        return self.value.endswith("pkt")

    @property
    def signals(self) -> bool:
        return self in _SIGNALLING

    @property
    def waits(self) -> bool:
        return self in _WAITING


_SIGNALLING = frozenset({Action.SIGNAL, Action.RELAXED_SIGNAL, Action.PUT_SIGNAL, Action.PUT_SIGNAL_FLUSH})
_WAITING = frozenset({Action.WAIT, Action.RELAXED_WAIT})
_MOVING = frozenset(list(Action)[list(Action).index(Action.PUT) : list(Action).index(Action.PIPELINE)])


@dataclass(frozen=True, slots=True)
class Operand:
    """`count` chunks of a buffer, starting at chunk `first`. Exactly one of the other fields identifies the buffer.

    buffer: a buffer of the same rank
    remote: number of a remote buffer of the block
    switch: number of a switch channel of the block, which stands for its buffer at all ranks of the group
    """

    first: int
    count: int
    buffer: Buffer | None = None
    remote: int | None = None
    switch: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a block. `channels` are numbered within the block, `semaphores` within the rank.

    kind:     kind of the operation's channels and remote operands
    part:     (index, count) if `count` blocks of a group share the operation equally and this block does part `index`
    barrier:  (barrier number within the rank, number of blocks that meet there)
    pipeline: (bytes per part, total chunks) of a pipeline, which repeats the operations `body` for each part
    """

    action: Action
    sources: tuple[Operand, ...] = ()
    targets: tuple[Operand, ...] = ()
    channels: tuple[int, ...] = ()
    semaphores: tuple[int, ...] = ()
    kind: Kind = "memory"
    part: tuple[int, int] = (0, 1)
    barrier: tuple[int, int] | None = None
    pipeline: tuple[int, int] | None = None
    body: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """A thread block. Its operations identify a channel or remote buffer by its index in the block's lists."""

    channels: tuple[int, ...]
    remotes: tuple[int, ...]
    operations: tuple[Operation, ...]
    port_channels: tuple[int, ...] = ()
    port_remotes: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()

    def channels_of(self, kind: Kind) -> tuple[int, ...]:
        """Return the channels of `kind`, as numbers within the rank."""
        return self.channels if kind == "memory" else self.port_channels if kind == "port" else self.switches

    def remotes_of(self, kind: Kind) -> tuple[int, ...]:
        """Return the remote buffers that are reached through channels of `kind`."""
        return self.port_remotes if kind == "port" else self.remotes

    def every_operation(self) -> Iterator[Operation]:
        """Yield all operations. A pipeline is followed by the operations in it."""
        for operation in self.operations:
            yield operation
            yield from operation.body


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The buffers, channels and thread blocks of one rank.

    peers:      rank at the other end of each memory channel. The i-th channel to a peer is connected to that peer's
                i-th channel to this rank.
    remotes:    (rank, buffer) of each remote buffer that blocks access
    semaphores: initial value of each semaphore
    port_peers: rank at the other end of each port; ports are connected in the same way as memory channels
    switches:   (buffer, ranks of the group) of each switch channel
    access:     for each of `remotes`, the kinds of channels used to access it; missing entries mean memory
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: tuple[int, ...]
    remotes: tuple[tuple[int, Buffer], ...]
    semaphores: tuple[int, ...]
    blocks: tuple[PlanBlock, ...]
    port_peers: tuple[int, ...] = ()
    switches: tuple[tuple[Buffer, tuple[int, ...]], ...] = ()
    access: tuple[tuple[Kind, ...], ...] = ()

    def peers_of(self, kind: Kind) -> tuple[int, ...]:
        return self.port_peers if kind == "port" else self.peers


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of the executor that are part of a plan.

    packets:        whether scratch contains packets (protocol LL)
    double_scratch: whether consecutive calls alternate between two halves of scratch
    reuse:          whether pipelines over large chunks may reuse parts of scratch
    alignment_bytes: chunk sizes must be multiples of this number
    threads:        number of threads per block
    vector_bytes:   bytes that a thread of Chorale's kernel reads or writes at once; other executors ignore it
    """

    packets: bool = False
    double_scratch: bool = False
    reuse: bool = False
    alignment_bytes: int = 16
    threads: int = 1024
    vector_bytes: int = VECTOR_BYTES[-1]


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """A collective as the one-sided operations of every rank. Chunks, `in_place` and `origin` are as in `Program`.

    min_bytes, max_bytes: smallest and largest vector size in bytes for which the plan can be used
    """

    name: str
    collective: Collective
    in_place: bool
    ranks: tuple[RankPlan, ...]
    min_bytes: int
    max_bytes: int
    origin: str = ""
    settings: PlanSettings = PlanSettings()

    @property
    def target(self) -> str:
        return TARGET

    @property
    def protocol(self) -> str:
        return "LL" if self.settings.packets else "Simple"

    @property
    def one_sided(self) -> bool:
        return True

    @property
    def channels(self) -> int:
        """Maximum number of memory channels and ports that a rank has."""
        return max(len(body.peers) + len(body.port_peers) for body in self.ranks)

    @property
    def chunks(self) -> int:
        """Number of equal chunks in the complete vector."""
        return max(self.ranks[0].input_chunks, self.ranks[0].output_chunks)

    def peers(self) -> set[tuple[int, int]]:
        """Return all pairs (rank, peer) in which the rank may access the peer's memory."""
        written = {(rank, peer) for rank, body in enumerate(self.ranks) for peer, _ in body.remotes}
        groups = {group for body in self.ranks for _, group in body.switches}
        return written | {(rank, peer) for group in groups for rank in group for peer in group if rank != peer}

    def messages(self) -> Iterator[Message]:
        """Yield the transfers between ranks, block by block in order. O(operations)."""
        for rank, body in enumerate(self.ranks):
            for block in body.blocks:
                for operation in block.every_operation():
                    yield from self.puts(rank, block, operation)

    def puts(self, rank: int, block: PlanBlock, operation: Operation) -> list[Message]:
        """Return the transfers between ranks that an operation causes by writing to or reading from other ranks.

        Half of a packet's bytes are flags, so its chunks count twice. A switch reads or writes the chunks of each
        rank in the group once.
        """
        if not operation.action.moves:
            return []
        found = []
        numbers, peers = block.channels_of(operation.kind), self.ranks[rank].peers_of(operation.kind)
        flags = 2 if operation.action.packets else 1
        for operands, reads in ((operation.targets, False), (operation.sources, True)):
            for operand in operands:
                chunks = -(-operand.count * flags // operation.part[1])
                for peer, _ in self.memory_of(rank, block, operation, operand):
                    if peer == rank:
                        continue
                    own = next(
                        (number for number in numbers if operation.kind != "switch" and peers[number] == peer), 0
                    )
                    ends = (peer, rank) if reads else (rank, peer)
                    found.append(Message(*ends, peers[:own].count(peer) // 2, chunks))
        return found

    def memory_of(
        self, rank: int, block: PlanBlock, operation: Operation, operand: Operand
    ) -> list[tuple[int, Buffer]]:
        """Return (rank, buffer) of an operand; for a switch channel, return one pair per rank of the group."""
        body = self.ranks[rank]
        if operand.remote is not None:
            return [body.remotes[block.remotes_of(operation.kind)[operand.remote]]]
        if operand.switch is not None:
            buffer, group = body.switches[block.switches[operand.switch]]
            return [(each, buffer) for each in group]
        return [(rank, operand.buffer or "s")]

    def layout(self, rank: int) -> Layout:
        return shape_of(self).layout(rank, self.ranks[rank].scratch_chunks)

    def other_end(self, rank: int, channel: int, kind: Kind = "memory") -> tuple[int, int]:
        """Return the other end of `rank`'s `channel`: (peer, number of the channel at the peer).

        If the peer declares too few channels, it is assumed to have additional, unused channels.
        """
        peers = self.ranks[rank].peers_of(kind)
        peer = peers[channel]
        place = peers[:channel].count(peer)
        others = self.ranks[peer].peers_of(kind)
        numbers = [number for number, own in enumerate(others) if own == rank]
        return peer, numbers[place] if place < len(numbers) else len(others) + place


MAX_BLOCK_OPERATIONS = 64
MAX_BLOCK_CHANNELS = 16
MAX_BLOCK_REMOTES = 16
MAX_OPERATION_CHANNELS = 8
MAX_OPERANDS = 10  # sources of an operation; the same limit applies to targets
MAX_OPERATION_SEMAPHORES = 16
MAX_BARRIERS = 16  # per rank
OFFSET_BYTES = 2**32  # offsets in buffers have 32 bits


def largest_bytes(chunks: int, scratch_chunks: int) -> int:
    """Return the largest vector size in bytes for which all buffer offsets, including scratch, fit in 32 bits."""
    return (OFFSET_BYTES - 1) // max(chunks, scratch_chunks) * chunks


def bounded_bytes(max_bytes: int, chunks: int, scratch_chunks: int) -> int:
    """Return `max_bytes` or, if it is 0, the largest vector size. Raises InvalidInput if offsets need over 32 bits."""
    largest = largest_bytes(chunks, scratch_chunks)
    if max_bytes > largest:
        rule = f"a vector of this plan must be at most {largest} bytes, because offsets have 32 bits"
        raise InvalidInput(rule, max_bytes, "use a smaller max_bytes, or 0 for as much as the plan can do")
    return max_bytes or largest
