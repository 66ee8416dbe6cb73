"""The ExecutionPlan: a collective as one-sided operations, as the executor of MSCCL++ runs it.

Thread blocks write into memory of other ranks (`put`) and notify each other by signals; nothing matches sends with
receives, and nothing holds a sender back. Only `nop` makes the threads of a block wait for each other: what one thread
learned by a wait holds for the others after it, and what all threads wrote may be signalled after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from chorale.synth.collective import Collective
from chorale.synth.programs.memory import BufferShape, Layout
from chorale.synth.programs.program import Buffer, Message

TARGET = "mscclpp-json"


class Action(StrEnum):
    """Operations of a block, under the names that the executor knows."""

    NOP = "nop"  # all threads of the block wait for each other
    SIGNAL = "signal"  # tell the peer of each channel once
    WAIT = "wait"  # until the peer of each channel has told once more
    PUT = "put"  # write local chunks to a peer
    COPY = "copy"
    REDUCE = "re"  # target = sum of all sources
    ACQUIRE = "sem_acquire"  # until a semaphore of the rank is above 0, then take 1
    RELEASE = "sem_release"  # add 1 to a semaphore of the rank

    @property
    def moves(self) -> bool:
        """Whether it moves data, with all threads of the block."""
        return self in (Action.PUT, Action.COPY, Action.REDUCE)


@dataclass(frozen=True, slots=True)
class Operand:
    """`count` chunks from `first` on, in a `buffer` of the own rank or in the remote buffer `remote` of the block."""

    first: int
    count: int
    buffer: Buffer | None = None
    remote: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `channels` are numbers within the block, `semaphores` within the rank."""

    action: Action
    sources: tuple[Operand, ...] = ()
    targets: tuple[Operand, ...] = ()
    channels: tuple[int, ...] = ()
    semaphores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """A thread block. `channels` and `remotes` are the channels and remote buffers of the rank that it numbers anew."""

    channels: tuple[int, ...]
    remotes: tuple[int, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank executes.

    peers:      the rank at the other end of each channel. The i-th channel with a peer is its i-th with this rank
    remotes:    rank and buffer of what blocks write to elsewhere
    semaphores: the value that each has before the first call
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: tuple[int, ...]
    remotes: tuple[tuple[int, Buffer], ...]
    semaphores: tuple[int, ...]
    blocks: tuple[PlanBlock, ...]


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

    @property
    def target(self) -> str:
        return TARGET

    @property
    def protocol(self) -> str:
        return "Simple"

    @property
    def one_sided(self) -> bool:
        return True

    @property
    def channels(self) -> int:
        """The most channels of a rank."""
        return max(len(body.peers) for body in self.ranks)

    @property
    def chunks(self) -> int:
        """Number of equal chunks of the whole vector."""
        return max(self.ranks[0].input_chunks, self.ranks[0].output_chunks)

    def peers(self) -> set[tuple[int, int]]:
        """Return who may write to whom."""
        return {(rank, peer) for rank, body in enumerate(self.ranks) for peer, _ in body.remotes}

    def messages(self) -> Iterator[Message]:
        """Yield what is put, of each block in order. O(operations)."""
        for rank, body in enumerate(self.ranks):
            for block in body.blocks:
                for operation in block.operations:
                    yield from self.puts(rank, block, operation)

    def puts(self, rank: int, block: PlanBlock, operation: Operation) -> list[Message]:
        """Return what `operation` of `block` writes to other ranks.

        Each direction between two ranks has a channel of its own, of several the block's.
        """
        if operation.action is not Action.PUT:
            return []
        body, found = self.ranks[rank], []
        for target in operation.targets:
            peer = body.remotes[block.remotes[target.remote or 0]][0]
            own = next((channel for channel in block.channels if body.peers[channel] == peer), 0)
            found.append(Message(rank, peer, body.peers[:own].count(peer) // 2, target.count))
        return found

    def layout(self, rank: int) -> Layout:
        """Return the memory of `rank`."""
        shape = BufferShape(self.collective.name, self.chunks, len(self.ranks), self.in_place)
        return shape.layout(rank, self.ranks[rank].scratch_chunks)

    def other_end(self, rank: int, channel: int) -> tuple[int, int]:
        """Return the peer of `channel` of `rank`, and the number that it gives the channel."""
        peers = self.ranks[rank].peers
        peer = peers[channel]
        place = peers[:channel].count(peer)
        return peer, [number for number, own in enumerate(self.ranks[peer].peers) if own == rank][place]


MAX_BLOCK_OPERATIONS = 64  # operations
MAX_BLOCK_CHANNELS = 16  # of a block
MAX_BLOCK_REMOTES = 16  # of a block
MAX_OPERATION_CHANNELS = 8  # of an operation
MAX_OPERANDS = 10  # on either side of an operation
MAX_OPERATION_SEMAPHORES = 16  # of an operation
OFFSET_BYTES = 2**32  # offsets in buffers are kept in 32 bits


def largest_bytes(chunks: int, scratch_chunks: int) -> int:
    """Return the size of the largest vector of `chunks` of which all offsets, also in scratch, can be told."""
    return (OFFSET_BYTES - 1) // max(chunks, scratch_chunks) * chunks
