"""The blocks of a rank as columns of numbers, and as a sequence whose objects are made only where one is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.program import (
    Buffer,
    BufferRef,
    CompactBlocks,
    Instruction,
    Op,
    Program,
    RankProgram,
    ThreadBlock,
    Wait,
)

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


class RankRecord(NamedTuple):
    """`RankColumns` as kernels take them."""

    send_peer: Column
    recv_peer: Column
    channel: Column
    first: Column
    op: Column
    src_buffer: Column
    src_offset: Column
    dst_buffer: Column
    dst_offset: Column
    chunks: Column
    first_wait: Column
    wait_block: Column
    wait_step: Column


_VALUES = attrgetter(*(item.name for item in fields(RankColumns)))


def record_of(columns: RankColumns) -> RankRecord:
    """Return `columns` for a kernel."""
    return RankRecord(*_VALUES(columns))


_SENDS = np.array([op.sends for op in OPS])


class ColumnBlocks(CompactBlocks):
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

    def targets(self) -> list[int]:
        """Return the ranks that blocks may send to."""
        peers = self.columns.send_peer
        return list(peers[peers != NO_PEER].tolist())

    def sends(self) -> Iterator[tuple[int, int, int]]:
        """Yield receiving rank, channel and chunks of all that is sent, of each block in order."""
        columns = self.columns
        block = columns.block_of_instruction()
        sent = np.flatnonzero(_SENDS[columns.op] & (columns.send_peer[block] != NO_PEER))
        parts = (columns.send_peer[block[sent]], columns.channel[block[sent]], columns.count[sent])
        return zip(*(part.tolist() for part in parts), strict=True)

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


def columns_held(rank: RankProgram) -> RankColumns | None:
    """Return the columns that `rank` holds, None for one that was built of objects."""
    return rank.blocks.columns if isinstance(rank.blocks, ColumnBlocks) else None


def columns_of(rank: RankProgram) -> RankColumns:
    """Return the structurally sound `rank` as columns. O(instructions), O(1) where it holds them."""
    return columns_held(rank) or _columns_of(rank.blocks)


def chunks_moved(program: Program) -> int:
    """Return the chunks that all instructions move together. O(instructions)."""
    held = [(rank, columns_held(rank)) for rank in program.ranks]
    return sum(
        int(columns.count.sum())
        if columns is not None
        else sum(item.count for block in rank.blocks for item in block.instructions)
        for rank, columns in held
    )


_NUMBER_OF_OP = {op: number for number, op in enumerate(OPS)}
_NUMBER_OF_BUFFER = {buffer: number for number, buffer in enumerate(BUFFERS)}


def _columns_of(blocks: Sequence[ThreadBlock]) -> RankColumns:
    items = [item for block in blocks for item in block.instructions]
    rows = [
        (
            _NUMBER_OF_OP[item.op],
            _NUMBER_OF_BUFFER[item.src.buffer],
            item.src.offset,
            _NUMBER_OF_BUFFER[item.dst.buffer],
            item.dst.offset,
            item.count,
        )
        for item in items
    ]
    waits = [(wait.block, wait.step) for item in items for wait in item.waits]
    ends = [
        [NO_PEER if peer is None else peer for peer in (block.send_peer, block.recv_peer)] + [block.channel]
        for block in blocks
    ]
    columns = [
        *_transposed(ends, 3),
        ends_of([len(block.instructions) for block in blocks]),
        *_transposed(rows, 6),
        ends_of([len(item.waits) for item in items]),
        *_transposed(waits, 2),
    ]
    return RankColumns(*columns)


def _transposed(rows: Sequence[Sequence[int]], width: int) -> Iterator[Column]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), width)
    return (np.ascontiguousarray(column) for column in table.T)


def ends_of(lengths: Sequence[int] | Column) -> Column:
    """Return where each of so many consecutive stretches begins, and where the last ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
