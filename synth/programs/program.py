"""Defines programs, which consist of instructions for every rank, and the violations that checks find in programs.

Every XML target can write a `Program`. Buffers, instructions and chunks have the same meaning as in the MSCCL
interpreters. Targets differ in names, limits and text; see `chorale.synth.targets.registry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput, name_among

if TYPE_CHECKING:
    from chorale.synth.programs.library_call import LibraryCall
    from chorale.synth.programs.plans.plan import ExecutionPlan

Protocol = Literal["Simple", "LL", "LL128"]
QUEUE_DEPTH: Mapping[Protocol, int] = {"Simple": 2, "LL": 8, "LL128": 8}
"""Maps each protocol to the number of messages that a connection can buffer before its sender has to wait."""
Buffer = Literal["i", "o", "s"]
"""Input, output, scratch."""
Position = tuple[int, int, int]
"""(rank, block within the rank, step within the block)."""
MAX_GROUP = 64
GRANULE_BYTES = 16
MAX_PIPELINE_BYTES = 2**30
AnyProgram: TypeAlias = "Program | ExecutionPlan | LibraryCall"
"""A program in any form: instructions, one-sided operations, or a collective that a library executes."""


def as_protocol(text: str) -> Protocol:
    """Return the protocol named by `text` in any spelling. Raises InvalidInput for an unknown name."""
    return cast(Protocol, name_among("protocol", text, get_args(Protocol)))


def exact_protocol(text: str) -> Protocol:
    """Return `text` as a protocol. Raises InvalidInput unless it is spelled exactly as in the runtimes."""
    if as_protocol(text) != text:
        rule = "runtimes do not accept the spelling '{}' of a protocol"
        raise InvalidInput(rule, text, f"write {as_protocol(text)}")
    return as_protocol(text)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options for one-sided runtimes; other runtimes ignore them.

    reads:          whether receivers read data from senders where possible, instead of senders writing to receivers
    group:          number of thread blocks that share the work of each of the program's blocks
    pipeline_bytes: size in bytes of the parts in which a chunk passes through a block's steps; 0: complete chunks
    boxes:          index of each rank's box; () if all ranks are in one box. Ranks in different boxes communicate
                    through ports.
    threads:        threads per thread block; None for the executor's default
    vector_bytes:   bytes that a thread of Chorale's kernel reads or writes at once: 8 or 16
    """

    reads: bool = False
    group: int = 1
    pipeline_bytes: int = 0
    boxes: tuple[int, ...] = ()
    threads: int | None = None
    vector_bytes: int = GRANULE_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.group <= MAX_GROUP:
            rule = f"a group must have 1 to {MAX_GROUP} thread blocks"
            raise InvalidInput(rule, self.group, "choose a number in this range")
        if self.pipeline_bytes % GRANULE_BYTES or not 0 <= self.pipeline_bytes <= MAX_PIPELINE_BYTES:
            rule = f"parts of a pipeline must be multiples of {GRANULE_BYTES} bytes up to {MAX_PIPELINE_BYTES}"
            raise InvalidInput(rule, self.pipeline_bytes, "use 64KiB, or 0 for none")
        if self.group > 1 and self.pipeline_bytes:
            rule = "a plan has either pipelines or block groups, not both: {}"
            raise InvalidInput(rule, f"groups of {self.group}", "use one of the two")

    def joined_by_port(self, first: int, second: int) -> bool:
        return bool(self.boxes) and self.boxes[first] != self.boxes[second]


WHOLE_CHUNKS = PlanOptions()
"""Default options: senders write complete chunks, each block is one thread block, and all ranks are in one box."""


class Message(NamedTuple):
    """A message of `chunks` chunks from rank `src` to rank `dst` on one channel."""

    src: int
    dst: int
    channel: int
    chunks: int


class Op(StrEnum):
    """Kinds of instructions. Each works on `count` chunks; `net` is the message from the block's `recv_peer`."""

    SEND = "s"  # send src
    RECV = "r"  # dst = net
    RECV_COPY_SEND = "rcs"  # dst = net; send net
    RECV_REDUCE_SEND = "rrs"  # send net + src; nothing is stored
    RECV_REDUCE_COPY = "rrc"  # dst = net + src
    RECV_REDUCE_COPY_SEND = "rrcs"  # dst = net + src; send dst
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
        """Whether the field src is an operand (`r` and `rcs` ignore it)."""
        return self not in (Op.RECV, Op.RECV_COPY_SEND)

    @property
    def writes_dst(self) -> bool:
        """Whether the instruction writes to dst (`s` and `rrs` ignore it)."""
        return self not in (Op.SEND, Op.RECV_REDUCE_SEND)


_RECEIVING = frozenset({Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND})
_SENDING = frozenset({Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})


@dataclass(frozen=True, slots=True)
class BufferRef:
    """The position of an operand's first chunk. `offset` counts chunks from the start of `buffer`."""

    buffer: Buffer
    offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until block `block` of the same rank has finished instruction `step`."""

    block: int
    step: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction on `count` consecutive chunks. It starts when all `waits` are over.

    Waits refer to instruction numbers within a block. A target that allows only one wait per step writes additional
    waits as `nop` steps and renumbers the steps.
    """

    op: Op
    src: BufferRef
    dst: BufferRef
    count: int
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A thread block: instructions that run strictly one after the other and use one channel.

    A block sends to at most one rank (`send_peer`) and receives from at most one rank (`recv_peer`).
    """

    send_peer: int | None
    recv_peer: int | None
    channel: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The program of one rank: its blocks, whose ids are their indices, and the sizes of its buffers (0 if unused).

    `blocks` may be given as a tuple; they are stored as columns.
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: Sequence[ThreadBlock]

    def __post_init__(self) -> None:
        if isinstance(self.blocks, ColumnBlocks):
            return
        items = [item for block in self.blocks for item in block.instructions]
        places = [[(BUFFERS.index(place.buffer), place.offset) for place in (item.src, item.dst)] for item in items]
        rows = [(OPS.index(item.op), *src, *dst, item.count) for item, (src, dst) in zip(items, places, strict=True)]
        ends = [
            (*(NO_PEER if peer is None else peer for peer in (block.send_peer, block.recv_peer)), block.channel)
            for block in self.blocks
        ]
        waits = [[(wait.block, wait.step) for wait in item.waits] for item in items]
        columns = columns_from(ends, [len(block.instructions) for block in self.blocks], rows, waits)
        object.__setattr__(self, "blocks", ColumnBlocks(columns))

    @property
    def columns(self) -> RankColumns:
        """The blocks as columns of numbers. O(1)."""
        assert isinstance(self.blocks, ColumnBlocks)
        return self.blocks.columns

    def __repr__(self) -> str:
        return f"<{len(self.blocks)} blocks>"


@dataclass(frozen=True, slots=True)
class Program:
    """A program for a collective: instructions for every rank.

    chunks:     N, the number of equal chunks in the complete vector (`nchunksperloop`). Chunk k of a buffer contains
                elements [k * S, (k + 1) * S), with S = vector elements / N. The input of an allgather and the output of
                a reduce_scatter have N / ranks chunks; all other buffers have N.
    in_place:   whether input and output share memory. Then, `i[k]` of an allgather is `o[rank * N / ranks + k]`,
                `o[k]` of a reduce_scatter is `i[rank * N / ranks + k]`, and `i[k]` of other collectives is `o[k]`.
    channels:   number of channels. A connection is (sender, receiver, channel); its k-th send matches its k-th receive.
    min_bytes, max_bytes: smallest and largest vector size in bytes; a maximum of 0 means no limit
    origin:     content id of the schedule from which the program was lowered; "" for a program from elsewhere
    plan:       options for one-sided runtimes, such as MSCCL++; other runtimes ignore them
    switches:   node indices of the switches that reduce or multicast data. The last ranks of the program represent
                these switches; see `chorale.synth.programs.memory`.
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
    max_bytes: int = 0
    origin: str = ""
    plan: PlanOptions = WHOLE_CHUNKS
    switches: tuple[int, ...] = ()

    def __repr__(self) -> str:
        size = f"{len(self.ranks)} ranks, {self.chunks} chunks, channels: {self.channels}"
        return f"<{self.target} {self.name or self.collective}: {size}>"

    @property
    def one_sided(self) -> bool:
        """Whether senders write directly to other ranks' memory, so that they never wait for connection buffers."""
        return False

    def peers(self) -> set[tuple[int, int]]:
        """Return all (sender, receiver) pairs of ranks that exchange messages."""
        peers = (body.columns.send_peer for body in self.ranks)
        return {(rank, peer) for rank, some in enumerate(peers) for peer in some.tolist() if peer != NO_PEER}

    def messages(self) -> Iterator[Message]:
        """Yield all messages, block by block in order of sending. O(instructions)."""
        for rank, body in enumerate(self.ranks):
            columns = body.columns
            block = columns.block_of_instruction()
            sent = np.flatnonzero(SENDS[columns.op] & (columns.send_peer[block] != NO_PEER))
            parts = (columns.send_peer[block[sent]], columns.channel[block[sent]], columns.count[sent])
            for peer, channel, chunks in zip(*(part.tolist() for part in parts), strict=True):
                yield Message(rank, peer, channel, chunks)


@dataclass(frozen=True, slots=True)
class ProgramViolation:
    """A violation of a rule. `rule` is a stable short name; `message` is one line that includes the position.

    block, step: thread block of `rank` and instruction in it; None if the rule concerns a larger part of the program
    chunk:       index of the wrong output chunk, if any
    """

    rule: str
    message: str
    rank: int | None = None
    block: int | None = None
    step: int | None = None
    chunk: int | None = None

    @staticmethod
    def at(
        rule: str, message: str, rank: int | None = None, block: int | None = None, step: int | None = None
    ) -> ProgramViolation:
        """Return a violation whose message begins with its position."""
        named = (("rank", rank), ("block", block), ("step", step))
        place = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return ProgramViolation(rule, f"{place}: {message}" if place else message, rank, block, step)


OPS = tuple(Op)
BUFFERS: tuple[Buffer, ...] = ("i", "o", "s")
NO_PEER = -1
RECEIVES, SENDS, READS_SRC, WRITES_DST = (
    np.array([getattr(op, name) for op in OPS]) for name in ("receives", "sends", "reads_src", "writes_dst")
)
"""Four arrays bool[ops]: whether each op in OPS receives, sends, reads src, and writes dst."""

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RankColumns:
    """The program of one rank as columns with one row per block, per instruction (block by block) or per wait.

    send_peer, recv_peer: peer rank of each block, or NO_PEER
    channel:     channel of each block
    first:       first instruction of each block, followed by the number of instructions
    op:          index into OPS for each instruction
    src_buffer, dst_buffer: indices into BUFFERS
    src_offset, dst_offset: first chunks of the operands
    count:       number of chunks of each instruction
    first_wait:  first wait of each instruction, followed by the number of waits
    wait_block, wait_step: for each wait, the block and the instruction in it to wait for
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
        return all(np.array_equal(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    __hash__ = None  # type: ignore[assignment]

    @property
    def blocks(self) -> int:
        return len(self.channel)

    @property
    def lengths(self) -> Column:
        return np.diff(self.first)

    @property
    def waits(self) -> Column:
        return np.diff(self.first_wait)

    def block_of_instruction(self) -> Column:
        return np.repeat(np.arange(self.blocks), self.lengths)


class ColumnBlocks(Sequence[ThreadBlock]):
    """A sequence of the blocks that `columns` describe, created on first use. It equals a tuple of the same blocks."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnBlocks, (self.columns,)

    def _blocks(self) -> tuple[ThreadBlock, ...]:
        if self._objects is not None:
            return self._objects
        columns = self.columns
        waits = [_wait(*pair) for pair in zip(columns.wait_block.tolist(), columns.wait_step.tolist(), strict=True)]
        operands = ((columns.src_buffer, columns.src_offset), (columns.dst_buffer, columns.dst_offset))
        sources, targets = (
            [_place(BUFFERS[buffer], offset) for buffer, offset in zip(buffers.tolist(), offsets.tolist(), strict=True)]
            for buffers, offsets in operands
        )
        bounds = columns.first_wait.tolist()
        rows = zip(columns.op.tolist(), sources, targets, columns.count.tolist(), bounds[:-1], bounds[1:], strict=True)
        items = [
            Instruction(OPS[op], src, dst, count, tuple(waits[low:high])) for op, src, dst, count, low, high in rows
        ]
        first = columns.first.tolist()
        peers = (
            [None if peer == NO_PEER else peer for peer in side.tolist()]
            for side in (columns.send_peer, columns.recv_peer)
        )
        ends = zip(*peers, columns.channel.tolist(), first[:-1], first[1:], strict=True)
        self._objects = tuple(
            ThreadBlock(send, recv, channel, tuple(items[low:high])) for send, recv, channel, low, high in ends
        )
        return self._objects


_place = lru_cache(maxsize=2**16)(BufferRef)
_wait = lru_cache(maxsize=2**16)(Wait)


def columns_from(
    ends: Sequence[Sequence[int]],
    lengths: Sequence[int],
    rows: Sequence[Sequence[int]],
    waits: Sequence[Sequence[tuple[int, int]]],
) -> RankColumns:
    """Build the columns of one rank from lists.

    Args:
        ends: send_peer, recv_peer and channel of each block.
        lengths: Number of instructions in each block.
        rows: op, src_buffer, src_offset, dst_buffer, dst_offset and count of each instruction.
        waits: (block, step) pairs for which each instruction waits.
    """

    def columns(rows: Sequence[Sequence[int]], width: int) -> Iterator[Column]:
        return map(np.ascontiguousarray, np.array(rows, dtype=np.int64).reshape(len(rows), width).T)

    pairs = [pair for some in waits for pair in some]
    first_wait = ends_of([len(some) for some in waits])
    table = (*columns(ends, 3), ends_of(lengths), *columns(rows, 6), first_wait, *columns(pairs, 2))
    return RankColumns(*table)


def chunks_moved(program: Program) -> int:
    """Return the total number of chunks on which the program's instructions work. O(instructions)."""
    return sum(int(rank.columns.count.sum()) for rank in program.ranks)


def ends_of(lengths: Sequence[int] | Column) -> Column:
    """Return the boundaries of consecutive ranges with the given `lengths`: all starts, then the last end."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
