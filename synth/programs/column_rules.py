"""Whether a rank keeps the rules of structure and the limits of a target, by facts of its columns.

Says only whether all is well. What is wrong, and where, say the rules in `chorale.synth.programs.check_structure` and
`chorale.synth.programs.limits`, instruction by instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.programs.columns import BUFFERS, NO_PEER, OPS, Column, RankColumns, RankRecord, record_of
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import Op, RankProgram

RECEIVES, SENDS, READS, WRITES = (
    np.array([getattr(op, name) for op in OPS]) for name in ("receives", "sends", "reads_src", "writes_dst")
)
_REDUCE = OPS.index(Op.REDUCE)


@dataclass(frozen=True, slots=True)
class RankShape:
    """What a rank is held to: its number, how many ranks and channels there are, and where its buffers lie."""

    rank: int
    ranks: int
    channels: int
    layout: Layout


class _OpKinds(NamedTuple):
    """By op: what it does."""

    receives: NDArray[np.bool_]
    sends: NDArray[np.bool_]
    reads: NDArray[np.bool_]
    writes: NDArray[np.bool_]


class _Buffers(NamedTuple):
    """By buffer: its chunks, and its first cell."""

    chunks: Column
    base: Column


_KINDS = _OpKinds(RECEIVES, SENDS, READS, WRITES)


def is_sound(body: RankProgram, columns: RankColumns, shape: RankShape) -> bool:
    """Return whether no rule of structure is broken within the rank. O(instructions + blocks * log(blocks))."""
    chunks = np.array([body.input_chunks, body.output_chunks, body.scratch_chunks])
    buffers = _Buffers(chunks, np.array([shape.layout.base(buffer) for buffer in BUFFERS]))
    return columns.blocks > 0 and _is_sound(
        record_of(columns), _KINDS, buffers, shape.rank, shape.ranks, shape.channels
    )


@compiled
def _is_sound(columns: RankRecord, kinds: _OpKinds, buffers: _Buffers, rank: int, ranks: int, channels: int) -> bool:
    return (
        _ends_are_sound(columns, kinds, rank, ranks, channels)
        and _waits_are_sound(columns)
        and _operands_are_sound(columns, kinds, buffers)
    )


@inlined
def _ends_are_sound(columns: RankRecord, kinds: _OpKinds, rank: int, ranks: int, channels: int) -> bool:
    blocks = len(columns.channel)
    for block in range(blocks):
        send, recv = columns.send_peer[block], columns.recv_peer[block]
        if not 0 <= columns.channel[block] < channels:
            return False
        if send != NO_PEER and (not 0 <= send < ranks or send == rank):
            return False
        if recv != NO_PEER and (not 0 <= recv < ranks or recv == rank):
            return False
        for item in range(columns.first[block], columns.first[block + 1]):
            op = columns.op[item]
            if (kinds.sends[op] and send == NO_PEER) or (kinds.receives[op] and recv == NO_PEER):
                return False
    return _are_distinct(columns.send_peer, columns.channel, ranks) and _are_distinct(
        columns.recv_peer, columns.channel, ranks
    )


@inlined
def _are_distinct(peers: Column, channels: Column, ranks: int) -> bool:
    """Return whether no two blocks have the same peer on the same channel."""
    ends = np.empty(len(peers), dtype=np.int64)
    for block in range(len(peers)):
        ends[block] = -1 - block if peers[block] == NO_PEER else channels[block] * ranks + peers[block]
    ends.sort()
    repeated = 0
    for block in range(1, len(ends)):
        repeated += ends[block] == ends[block - 1]
    return repeated == 0


@inlined
def _waits_are_sound(columns: RankRecord) -> bool:
    for wait in range(len(columns.wait_block)):
        block, step = columns.wait_block[wait], columns.wait_step[wait]
        if not 0 <= block < len(columns.channel):
            return False
        if not 0 <= step < columns.first[block + 1] - columns.first[block]:
            return False
    return True


@inlined
def _operands_are_sound(columns: RankRecord, kinds: _OpKinds, buffers: _Buffers) -> bool:
    for item in range(len(columns.op)):
        op, count = columns.op[item], columns.chunks[item]
        src, dst = columns.src_offset[item], columns.dst_offset[item]
        into, out_of = columns.dst_buffer[item], columns.src_buffer[item]
        if count < 1:
            return False
        if kinds.reads[op] and not 0 <= src <= buffers.chunks[out_of] - count:
            return False
        if kinds.writes[op] and not 0 <= dst <= buffers.chunks[into] - count:
            return False
        # The threads of a runtime read and write a stretch in no order.
        distance = abs(buffers.base[out_of] + src - buffers.base[into] - dst)
        if kinds.reads[op] and kinds.writes[op] and 0 < distance < count:
            return False
    return True


class RankFacts(NamedTuple):
    """The largest values of a rank that limits are about.

    steps, steps_with_nops: of a block, as targets write them whose steps carry all waits, or one each
    elements, elements_with_nops: blocks and steps of the rank, likewise
    waits:     of a block in all
    waited_block: largest block that is waited on, -1 for none
    per_direction: blocks of one channel that send, or that receive
    reduces_locally: whether there are reductions that a runtime may fuse
    """

    blocks: int
    steps: int
    steps_with_nops: int
    elements: int
    elements_with_nops: int
    waits: int
    waited_block: int
    per_direction: int
    chunks: int
    offset: int
    reduces_locally: bool


def facts_of(columns: RankColumns) -> RankFacts:
    """Return the facts of a rank. O(instructions + blocks * log(blocks))."""
    return _facts(record_of(columns))


@compiled
def _facts(columns: RankRecord) -> RankFacts:
    blocks, items = len(columns.channel), len(columns.op)
    steps, most_written, written, waits, waited, most_chunks, offset = 0, 0, 0, 0, -1, 0, 0
    reduces = False
    for block in range(blocks):
        first, end = columns.first[block], columns.first[block + 1]
        written_of_block = 0
        for item in range(first, end):
            written_of_block += max(1, columns.first_wait[item + 1] - columns.first_wait[item])
            most_chunks = max(most_chunks, columns.chunks[item])
            offset = max(offset, columns.src_offset[item], columns.dst_offset[item])
            reduces = reduces or columns.op[item] == _REDUCE
        steps, most_written = max(steps, end - first), max(most_written, written_of_block)
        written += written_of_block
        waits = max(waits, columns.first_wait[end] - columns.first_wait[first])
    for block in columns.wait_block:
        waited = max(waited, block)
    busiest = max(
        _most_of_channel(columns.send_peer, columns.channel), _most_of_channel(columns.recv_peer, columns.channel)
    )
    return RankFacts(
        blocks,
        steps,
        most_written,
        blocks + items,
        blocks + written,
        waits,
        waited,
        busiest,
        most_chunks,
        offset,
        reduces,
    )


@inlined
def _most_of_channel(peers: Column, channels: Column) -> int:
    """Return how many blocks with a peer a channel has at most."""
    used = np.sort(channels)
    count = np.zeros(len(channels), dtype=np.int64)
    for block in range(len(peers)):
        if peers[block] != NO_PEER:
            low, high = 0, len(used)
            while low < high:
                middle = (low + high) // 2
                if used[middle] < channels[block]:
                    low = middle + 1
                else:
                    high = middle
            count[low] += 1
    return int(count.max()) if len(count) else 0


def written_steps_of(columns: RankColumns) -> Column:
    """Return the steps of each block where a step carries one wait and each further one takes a `nop`."""
    extra = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.maximum(columns.waits - 1, 0))])
    return columns.lengths + np.diff(extra[columns.first])
