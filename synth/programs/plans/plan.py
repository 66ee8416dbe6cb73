"""The ExecutionPlan: a collective as one-sided operations, as the executor of MSCCL++ runs it.

Thread blocks move data over three kinds of channels: they write into memory of other ranks of their box (`put`) or read
it (`get`), have a proxy of the host write for them (ports, also to other boxes), or ask a switch to add the memory of
all ranks and to multicast. They notify each other by signals, or send packets: data with a flag, for which the reader
waits. Nothing matches sends with receives, and nothing holds a sender back. Only `nop` makes the threads of a block
wait for each other: what one thread learned by a wait holds for the others after it, and what all threads wrote may be
signalled after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from chorale.synth.collective import Collective
from chorale.synth.programs.memory import BufferShape, Layout
from chorale.synth.programs.program import Buffer, Message

TARGET = "mscclpp-json"


Kind = Literal["memory", "port", "switch"]
"""Kinds of channels: into memory of peers, through a proxy of the host, through a switch that adds and multicasts."""


class Action(StrEnum):
    """Operations of a block, under the names that the executor knows. Packets are data with flags of their call, which
    a reader waits for; they are in scratch."""

    NOP = "nop"  # all threads of the block wait for each other
    BARRIER = "barrier"  # all threads of some blocks of the rank wait for each other
    SIGNAL = "signal"  # tell the peer of each channel once
    WAIT = "wait"  # until the peer of each channel has told once more
    RELAXED_SIGNAL = "rlxsignal"  # the same, and says nothing of what was written before
    RELAXED_WAIT = "rlxwait"
    FLUSH = "flush"  # the executor takes the number of channels from targets, of which there are none
    ACQUIRE = "sem_acquire"  # until a semaphore of the rank is above 0, then take 1
    RELEASE = "sem_release"  # add 1 to a semaphore of the rank
    PUT = "put"  # write local chunks to a peer
    PUT_SIGNAL = "pws"  # the same through a port, and then signal
    PUT_SIGNAL_FLUSH = "pwsf"  # and then wait until the chunks have been read
    GET = "get"  # read chunks of a peer
    COPY = "copy"
    REDUCE = "re"  # target = sum of all sources
    REDUCE_SEND = "res"  # and write it to peers
    READ_REDUCE = "rre"  # target = sum of a local source and remote ones
    READ_REDUCE_SEND = "rres"
    PUT_PACKETS = "ppkt"  # write local chunks as packets to peers; through a port, send packets on
    READ_PUT_PACKETS = "rppkt"  # wait for packets and send them on
    COPY_PACKETS = "cpkt"  # write local chunks as packets
    UNPACK_PACKETS = "upkt"  # wait for packets and store what they hold
    REDUCE_PACKETS = "repkt"  # target = sum of a local source and packets
    REDUCE_SEND_PACKETS = "respkt"  # and write it as packets to peers
    REDUCE_COPY_PACKETS = "recpkt"  # and write it as own packets
    REDUCE_COPY_SEND_PACKETS = "recspkt"  # both
    GROUP_LOAD_REDUCE = "glre"  # target = sum over a group, made by the switch
    GROUP_LOAD_REDUCE_STORE = "glres"  # and stored at all of the group
    GROUP_STORE = "gstore"  # store local chunks at all of a group
    GROUP_STORE_PACKETS = "gstorepkt"
    PIPELINE = "pipeline"  # the operations in it, for one part of their chunks after the other

    @property
    def moves(self) -> bool:
        """Whether it moves data, with all threads of the block."""
        return self in _MOVING

    @property
    def packets(self) -> bool:
        """Whether it reads or writes packets."""
        return self.value.endswith("pkt")

    @property
    def takes_packets(self) -> bool:
        """Whether it waits for packets."""
        return self.packets and self not in _WRITING_PACKETS

    @property
    def signals(self) -> bool:
        """Whether it tells peers that something has been done."""
        return self in _SIGNALLING

    @property
    def waits(self) -> bool:
        """Whether it waits for peers."""
        return self in _WAITING


_SIGNALLING = frozenset({Action.SIGNAL, Action.RELAXED_SIGNAL, Action.PUT_SIGNAL, Action.PUT_SIGNAL_FLUSH})
_WAITING = frozenset({Action.WAIT, Action.RELAXED_WAIT})
_WRITING_PACKETS = frozenset({Action.PUT_PACKETS, Action.COPY_PACKETS, Action.GROUP_STORE_PACKETS})
_MOVING = frozenset(list(Action)[list(Action).index(Action.PUT) : list(Action).index(Action.PIPELINE)])


@dataclass(frozen=True, slots=True)
class Operand:
    """`count` chunks from `first` on: in a `buffer` of the own rank, in the remote buffer `remote` of the block, or in
    the buffer of its switch channel `switch` at all ranks of the group."""

    first: int
    count: int
    buffer: Buffer | None = None
    remote: int | None = None
    switch: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `channels` are numbers within the block, `semaphores` within the rank.

    kind:     of its channels and remote operands
    part:     which of how many equal parts of its chunks it works on: a group of blocks shares them
    barrier:  number within the rank, and how many blocks meet there
    pipeline: bytes of a part and chunks of the whole, of `body`, the operations that are repeated
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
    """A thread block. `channels` and `remotes` are the channels and remote buffers of the rank that it numbers anew,
    those of memory, of ports, and of switches."""

    channels: tuple[int, ...]
    remotes: tuple[int, ...]
    operations: tuple[Operation, ...]
    port_channels: tuple[int, ...] = ()
    port_remotes: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()

    def channels_of(self, kind: Kind) -> tuple[int, ...]:
        """Return its channels of `kind`, by their numbers within the rank."""
        return self.channels if kind == "memory" else self.port_channels if kind == "port" else self.switches

    def remotes_of(self, kind: Kind) -> tuple[int, ...]:
        """Return the remote buffers that it reaches by channels of `kind`."""
        return self.port_remotes if kind == "port" else self.remotes

    @property
    def is_shared(self) -> bool:
        """Whether it works on parts of chunks: as a member of a group."""
        return any(operation.part[1] > 1 for operation in self.every_operation())

    def every_operation(self) -> Iterator[Operation]:
        """Yield all operations, those in pipelines after their pipeline."""
        for operation in self.operations:
            yield operation
            yield from operation.body


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank executes.

    peers:      the rank at the other end of each channel. The i-th channel with a peer is its i-th with this rank
    remotes:    rank and buffer of what blocks write to elsewhere
    semaphores: the value that each has before the first call
    port_peers: as `peers`, of ports
    switches:   of each switch channel the buffer, and the ranks of the group
    access:     by which kinds of channels each of `remotes` is reached; memory where it is missing
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
        """Return the peers of the channels of `kind`."""
        return self.port_peers if kind == "port" else self.peers


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of the executor in addition to the operations.

    packets:        whether scratch holds packets: the protocol LL
    double_scratch: whether calls use the halves of scratch by turns
    reuse:          whether large chunks use parts of scratch again, in pipelines
    """

    packets: bool = False
    double_scratch: bool = False
    reuse: bool = False
    alignment_bytes: int = 16
    threads: int = 1024


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """A collective as one-sided operations of every rank; buffers and chunks are those of `Program`.

    min_bytes, max_bytes: sizes of the vector, both inclusive, that the plan is meant for
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
        """The most channels of a rank."""
        return max(len(body.peers) + len(body.port_peers) for body in self.ranks)

    @property
    def chunks(self) -> int:
        """Number of equal chunks of the whole vector."""
        return max(self.ranks[0].input_chunks, self.ranks[0].output_chunks)

    def peers(self) -> set[tuple[int, int]]:
        """Return who may write to whom, or be read by him."""
        written = {(rank, peer) for rank, body in enumerate(self.ranks) for peer, _ in body.remotes}
        groups = {group for body in self.ranks for _, group in body.switches}
        return written | {(rank, peer) for group in groups for rank in group for peer in group if rank != peer}

    def messages(self) -> Iterator[Message]:
        """Yield what is moved between ranks, of each block in order. O(operations)."""
        for rank, body in enumerate(self.ranks):
            for block in body.blocks:
                for operation in block.every_operation():
                    yield from self.puts(rank, block, operation)

    def puts(self, rank: int, block: PlanBlock, operation: Operation) -> list[Message]:
        """Return what `operation` of `block` moves between ranks: what it writes to others, and what it reads of them.

        Each direction between two ranks has a channel of its own, of several the block's. Packets carry as many bytes
        of flags as of data. A switch takes and gives chunks of each rank of a group once.
        """
        if not operation.action.moves:
            return []
        body, found = self.ranks[rank], []
        numbers, peers = block.channels_of(operation.kind), body.peers_of(operation.kind)
        flags = 2 if operation.action.packets else 1
        for operands, reads in ((operation.targets, False), (operation.sources, True)):
            for operand in operands:
                chunks = -(-operand.count * flags // operation.part[1])
                for peer in self._others(rank, block, operation, operand):
                    own = next(
                        (number for number in numbers if operation.kind != "switch" and peers[number] == peer), 0
                    )
                    ends = (peer, rank) if reads else (rank, peer)
                    found.append(Message(*ends, peers[:own].count(peer) // 2, chunks))
        return found

    def _others(self, rank: int, block: PlanBlock, operation: Operation, operand: Operand) -> Sequence[int]:
        """Return the other ranks whose memory `operand` names."""
        body = self.ranks[rank]
        if operand.remote is not None:
            return [body.remotes[block.remotes_of(operation.kind)[operand.remote]][0]]
        if operand.switch is not None:
            return [peer for peer in body.switches[block.switches[operand.switch]][1] if peer != rank]
        return []

    def layout(self, rank: int) -> Layout:
        """Return the memory of `rank`."""
        shape = BufferShape(self.collective.name, self.chunks, len(self.ranks), self.in_place)
        return shape.layout(rank, self.ranks[rank].scratch_chunks)

    def other_end(self, rank: int, channel: int, kind: Kind = "memory") -> tuple[int, int]:
        """Return the peer of `channel` of `rank`, and the number that it gives the channel.

        Where the peer declares fewer channels, it gets further ones, which it does not use.
        """
        peers = self.ranks[rank].peers_of(kind)
        peer = peers[channel]
        place = peers[:channel].count(peer)
        others = self.ranks[peer].peers_of(kind)
        numbers = [number for number, own in enumerate(others) if own == rank]
        return peer, numbers[place] if place < len(numbers) else len(others) + place


MAX_BLOCK_OPERATIONS = 64  # operations
MAX_BLOCK_CHANNELS = 16  # of a block
MAX_BLOCK_REMOTES = 16  # of a block
MAX_OPERATION_CHANNELS = 8  # of an operation
MAX_OPERANDS = 10  # on either side of an operation
MAX_OPERATION_SEMAPHORES = 16  # of an operation
MAX_BARRIERS = 16  # of a rank
OFFSET_BYTES = 2**32  # offsets in buffers are kept in 32 bits


def largest_bytes(chunks: int, scratch_chunks: int) -> int:
    """Return the size of the largest vector of `chunks` of which all offsets, also in scratch, can be told."""
    return (OFFSET_BYTES - 1) // max(chunks, scratch_chunks) * chunks
