"""The Program: what each rank executes, as columns of numbers and, on demand, as blocks of instructions; violations.

One in-memory form serves every XML target. Buffers, instructions and the meaning of chunks are those of the
MSCCL interpreters; targets differ in names, limits and text (see `chorale.synth.targets.base`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.names import name_among
from chorale.synth.programs.plans.options import WHOLE_CHUNKS, PlanOptions

Protocol = Literal["Simple", "LL", "LL128"]
QUEUE_DEPTH: Mapping[Protocol, int] = {"Simple": 2, "LL": 8, "LL128": 8}
"""How many messages a sender can be ahead of its receiver on one connection."""
Buffer = Literal["i", "o", "s"]
"""Input, output, scratch."""


def as_protocol(text: str) -> Protocol:
    """Return `text` as the protocol that it names; InvalidInput for any other text."""
    return cast(Protocol, name_among("protocol", text, get_args(Protocol)))


def exact_protocol(text: str) -> Protocol:
    """Return `text`, which must be a protocol letter by letter, as runtimes read it; InvalidInput for any other."""
    if as_protocol(text) != text:
        rule = "a protocol of a program must be written as runtimes write it"
        raise InvalidInput(rule, text, f"write {as_protocol(text)}")
    return as_protocol(text)


class Message(NamedTuple):
    """`chunks` chunks from rank `src` to rank `dst` on one channel."""

    src: int
    dst: int
    channel: int
    chunks: int


class Op(StrEnum):
    """Instructions; `net` is the message from the block's receive peer, all on `count` chunks."""

    SEND = "s"  # send src
    RECV = "r"  # dst = net
    RECV_COPY_SEND = "rcs"  # dst = net; send net
    RECV_REDUCE_SEND = "rrs"  # send net + src; nothing is stored
    RECV_REDUCE_COPY = "rrc"  # dst = net + src
    RECV_REDUCE_COPY_SEND = "rrcs"  # dst = net + src; send the same
    COPY = "cpy"  # dst = src, local
    REDUCE = "re"  # dst = dst + src, local

    @property
    def receives(self) -> bool:
        return self in _RECEIVING

    @property
    def sends(self) -> bool:
        return self in _SENDING

    @property
    def reads_src(self) -> bool:
        """Whether the src place holds an operand (the src of `r` and `rcs` is ignored)."""
        return self not in (Op.RECV, Op.RECV_COPY_SEND)

    @property
    def writes_dst(self) -> bool:
        """Whether the dst place is written (the dst of `s` and `rrs` is ignored)."""
        return self not in (Op.SEND, Op.RECV_REDUCE_SEND)


_RECEIVING = frozenset({Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND})
_SENDING = frozenset({Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})


@dataclass(frozen=True, slots=True)
class BufferRef:
    """First chunk of an operand: `offset` counts chunks from the start of `buffer`."""

    buffer: Buffer
    offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until block `block` of the same rank has finished its instruction number `step`."""

    block: int
    step: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction on `count` consecutive chunks, started after all `waits` are met.

    Waits refer to instruction numbers within a block; a target that allows one wait per step writes the
    others as `nop` steps and renumbers.
    """

    op: Op
    src: BufferRef
    dst: BufferRef
    count: int
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A strictly sequential program with at most one peer to send to and one to receive from, on one channel."""

    send_peer: int | None
    recv_peer: int | None
    channel: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """What one rank executes; a block's index is its id. Chunk counts are those of whole buffers, or 0 where unused.

    Of programs that were lowered or read, `blocks` are columns that make their objects on demand, else a tuple.
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: Sequence[ThreadBlock]

    def __repr__(self) -> str:
        return f"<{len(self.blocks)} blocks>"


@dataclass(frozen=True, slots=True)
class Program:
    """A collective as instructions for every rank.

    chunks:     N, the number of equal chunks of the whole vector (`nchunksperloop`). Chunk k of a buffer is its
                elements [k * S, (k + 1) * S), S = elements of the vector / N. allgather: the input has
                N / ranks chunks; reduce_scatter: the output has; all else N and N.
    in_place:   whether input and output share memory: allgather `i[k]` is `o[rank * N / ranks + k]`;
                reduce_scatter `o[k]` is `i[rank * N / ranks + k]`; else `i[k]` is `o[k]`.
    channels:   number of channels. A connection is (sender, receiver, channel); its messages match in order.
    origin:     content id of the schedule it was lowered from, "" for a program read from elsewhere.
    plan:       how a one-sided runtime moves what is sent; without meaning elsewhere.
    switches:   nodes of the network that the last of the ranks stand for, switches that add or multicast; see
                `chorale.synth.programs.switch_processes`.
    """

    name: str
    target: str
    collective: Collective
    chunks: int
    in_place: bool
    protocol: Protocol
    channels: int
    ranks: tuple[RankProgram, ...]
    min_bytes: int = 0
    max_bytes: int = 0  # 0: no limit
    origin: str = ""
    plan: PlanOptions = WHOLE_CHUNKS
    switches: tuple[int, ...] = ()

    def __repr__(self) -> str:
        size = f"{len(self.ranks)} ranks, {self.chunks} chunks, channels: {self.channels}"
        return f"<{self.target} {self.name or self.collective}: {size}>"

    @property
    def one_sided(self) -> bool:
        return False

    def peers(self) -> set[tuple[int, int]]:
        """Return who may send to whom."""
        peers = (columns_of(body).send_peer for body in self.ranks)
        return {(rank, peer) for rank, some in enumerate(peers) for peer in some.tolist() if peer != NO_PEER}

    def messages(self) -> Iterator[Message]:
        """Yield what is sent, of each block in order. O(instructions)."""
        for rank, body in enumerate(self.ranks):
            columns = columns_of(body)
            block = columns.block_of_instruction()
            sent = np.flatnonzero(_SENDS[columns.op] & (columns.send_peer[block] != NO_PEER))
            parts = (columns.send_peer[block[sent]], columns.channel[block[sent]], columns.count[sent])
            for peer, channel, chunks in zip(*(part.tolist() for part in parts), strict=True):
                yield Message(rank, peer, channel, chunks)


@dataclass(frozen=True, slots=True)
class ProgramViolation:
    """A rule that a program breaks. `rule` is a stable short name, `message` one line that includes the place.

    `block` is the id of a thread block of `rank`, `step` the number of an instruction in it; None where the
    rule is about something wider. `chunk` is that of the output whose contents are wrong; `other` is the other of two
    instructions that nothing orders: rank, block, step.
    """

    rule: str
    message: str
    rank: int | None = None
    block: int | None = None
    step: int | None = None
    chunk: int | None = None
    other: tuple[int, int, int] | None = None

    @staticmethod
    def at(
        rule: str, message: str, rank: int | None = None, block: int | None = None, step: int | None = None
    ) -> ProgramViolation:
        """Return a violation whose message begins with its place."""
        named = (("rank", rank), ("block", block), ("step", step))
        place = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return ProgramViolation(rule, f"{place}: {message}" if place else message, rank, block, step)


OPS = tuple(Op)
BUFFERS: tuple[Buffer, ...] = ("i", "o", "s")
NO_PEER = -1

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RankColumns:
    """What one rank executes: columns of its blocks, of their instructions in order, and of the waits of these.

    send_peer, recv_peer: ranks, or NO_PEER
    channel:     of each block
    first:       first instruction of each block, and the end of the last
    op:          of each instruction, an index into OPS
    src_buffer, dst_buffer: indices into BUFFERS
    src_offset, dst_offset: first chunks of the operands
    count:       chunks
    first_wait:  first wait of each instruction, and the end of the last
    wait_block, wait_step: which instruction of which block each wait is for
    """

    send_peer: Column
    recv_peer: Column
    channel: Column
    first: Column
    op: Column
    src_buffer: Column
    src_offset: Column
    dst_buffer: Column
    dst_offset: Column
    count: Column
    first_wait: Column
    wait_block: Column
    wait_step: Column

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankColumns):
            return NotImplemented
        pairs = ((getattr(self, item.name), getattr(other, item.name)) for item in fields(self))
        return all(len(one) == len(another) and bool((one == another).all()) for one, another in pairs)

    __hash__ = None  # type: ignore[assignment]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.channel)

    @property
    def lengths(self) -> Column:
        """Instructions of each block."""
        return np.diff(self.first)

    @property
    def waits(self) -> Column:
        """Waits of each instruction."""
        return np.diff(self.first_wait)

    def block_of_instruction(self) -> Column:
        """Return the block of each instruction."""
        return np.repeat(np.arange(self.blocks), self.lengths)


_SENDS = np.array([op.sends for op in OPS])


class ColumnBlocks(Sequence[ThreadBlock]):
    """The blocks that `columns` describe; equal to a tuple of the same blocks."""

    __slots__ = ("_objects", "columns")

    def __init__(self, columns: RankColumns) -> None:
        self.columns = columns
        self._objects: tuple[ThreadBlock, ...] | None = None

    def __len__(self) -> int:
        return self.columns.blocks

    @overload
    def __getitem__(self, index: int) -> ThreadBlock: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ThreadBlock, ...]: ...
    def __getitem__(self, index: int | slice) -> ThreadBlock | tuple[ThreadBlock, ...]:
        return self._blocks()[index]

    def __iter__(self) -> Iterator[ThreadBlock]:
        return iter(self._blocks())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ColumnBlocks):
            return self.columns == other.columns
        return self._blocks() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._blocks())

    def __repr__(self) -> str:
        return repr(self._blocks())

    def __add__(self, other: tuple[ThreadBlock, ...]) -> tuple[ThreadBlock, ...]:
        return self._blocks() + other

    def __mul__(self, times: int) -> tuple[ThreadBlock, ...]:
        return self._blocks() * times

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnBlocks, (self.columns,)

    def _blocks(self) -> tuple[ThreadBlock, ...]:
        if self._objects is None:
            self._objects = _blocks_of(self.columns)
        return self._objects


_place = lru_cache(maxsize=2**16)(BufferRef)
_wait = lru_cache(maxsize=2**16)(Wait)


def _blocks_of(columns: RankColumns) -> tuple[ThreadBlock, ...]:
    waits = [_wait(*pair) for pair in zip(columns.wait_block.tolist(), columns.wait_step.tolist(), strict=True)]
    operands = ((columns.src_buffer, columns.src_offset), (columns.dst_buffer, columns.dst_offset))
    sources, targets = (
        [_place(BUFFERS[buffer], offset) for buffer, offset in zip(buffers.tolist(), offsets.tolist(), strict=True)]
        for buffers, offsets in operands
    )
    bounds = columns.first_wait.tolist()
    rows = zip(columns.op.tolist(), sources, targets, columns.count.tolist(), bounds[:-1], bounds[1:], strict=True)
    items = [Instruction(OPS[op], src, dst, count, tuple(waits[low:high])) for op, src, dst, count, low, high in rows]
    first = columns.first.tolist()
    ends = zip(columns.send_peer.tolist(), columns.recv_peer.tolist(), columns.channel.tolist(), strict=True)
    return tuple(
        ThreadBlock(_peer(send), _peer(recv), channel, tuple(items[first[index] : first[index + 1]]))
        for index, (send, recv, channel) in enumerate(ends)
    )


def _peer(number: int) -> int | None:
    return None if number == NO_PEER else number


def columns_of(rank: RankProgram) -> RankColumns:
    """Return `rank` as columns. O(1), O(instructions) for one that was built of objects."""
    if isinstance(rank.blocks, ColumnBlocks):
        return rank.blocks.columns
    items = [item for block in rank.blocks for item in block.instructions]
    rows = [
        (OPS.index(i.op), BUFFERS.index(i.src.buffer), i.src.offset, BUFFERS.index(i.dst.buffer), i.dst.offset, i.count)
        for i in items
    ]
    ends = [
        (*(NO_PEER if peer is None else peer for peer in (block.send_peer, block.recv_peer)), block.channel)
        for block in rank.blocks
    ]
    waits = [[(wait.block, wait.step) for wait in item.waits] for item in items]
    return columns_from(ends, [len(block.instructions) for block in rank.blocks], rows, waits)


def columns_from(
    ends: Sequence[Sequence[int]],
    lengths: Sequence[int],
    rows: Sequence[Sequence[int]],
    waits: Sequence[Sequence[tuple[int, int]]],
) -> RankColumns:
    """Return the columns of a rank.

    ends:    send_peer, recv_peer and channel of each block; lengths: instructions of each
    rows:    op, src_buffer, src_offset, dst_buffer, dst_offset and count of each instruction; waits: those of each
    """
    pairs = [pair for some in waits for pair in some]
    columns = (
        *_transposed(ends, 3),
        ends_of(lengths),
        *_transposed(rows, 6),
        ends_of([len(some) for some in waits]),
        *_transposed(pairs, 2),
    )
    return RankColumns(*columns)


def _transposed(rows: Sequence[Sequence[int]], width: int) -> Iterator[Column]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), width)
    return (np.ascontiguousarray(column) for column in table.T)


def chunks_moved(program: Program) -> int:
    """Return the chunks that all instructions move together. O(instructions)."""
    return sum(int(columns_of(rank).count.sum()) for rank in program.ranks)


def ends_of(lengths: Sequence[int] | Column) -> Column:
    """Return where each of so many consecutive stretches begins, and where the last ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
