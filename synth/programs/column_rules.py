"""Whether a rank keeps the rules of structure and the limits of a target, by facts of its columns.

Says only whether all is well. What is wrong, and where, say the rules in `chorale.synth.programs.check_structure` and
`chorale.synth.programs.limits`, instruction by instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import distinct
from chorale.synth.programs.columns import BUFFERS, NO_PEER, OPS, Column, RankColumns
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


def is_sound(body: RankProgram, columns: RankColumns, shape: RankShape) -> bool:
    """Return whether no rule of structure is broken within the rank. O(instructions)."""
    return (
        columns.blocks > 0
        and _ends_are_sound(columns, shape)
        and _waits_are_sound(columns)
        and _operands_are_sound(body, columns, shape.layout)
    )


def _ends_are_sound(columns: RankColumns, shape: RankShape) -> bool:
    if ((columns.channel < 0) | (columns.channel >= shape.channels)).any():
        return False
    block = columns.block_of_instruction()
    for peers, uses in ((columns.send_peer, SENDS), (columns.recv_peer, RECEIVES)):
        present = peers != NO_PEER
        ranks = peers[present]
        if ((ranks < 0) | (ranks >= shape.ranks) | (ranks == shape.rank)).any():
            return False
        ends = columns.channel[present] * shape.ranks + ranks
        if len(distinct(ends)) < len(ends) or (uses[columns.op] & ~present[block]).any():
            return False
    return True


def _waits_are_sound(columns: RankColumns) -> bool:
    blocks, steps = columns.wait_block, columns.wait_step
    if ((blocks < 0) | (blocks >= columns.blocks)).any():
        return False
    return not ((steps < 0) | (steps >= columns.lengths[blocks])).any()


def _operands_are_sound(body: RankProgram, columns: RankColumns, layout: Layout) -> bool:
    chunks = np.array([body.input_chunks, body.output_chunks, body.scratch_chunks])
    bases = np.array([layout.base(buffer) for buffer in BUFFERS])
    reads, writes, count = READS[columns.op], WRITES[columns.op], columns.count
    outside = reads & _beyond(columns.src_offset, count, chunks[columns.src_buffer])
    outside |= writes & _beyond(columns.dst_offset, count, chunks[columns.dst_buffer])
    # The threads of a runtime read and write a stretch in no order.
    source, target = bases[columns.src_buffer] + columns.src_offset, bases[columns.dst_buffer] + columns.dst_offset
    overlap = reads & writes & (source != target) & (np.abs(source - target) < count)
    return not (outside | overlap | (count < 1)).any()


def _beyond(offset: Column, count: Column, chunks: Column) -> NDArray[np.bool_]:
    return (offset < 0) | (offset + count > chunks)


@dataclass(frozen=True, slots=True)
class RankFacts:
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
    count: int
    offset: int
    reduces_locally: bool


def facts_of(columns: RankColumns) -> RankFacts:
    """Return the facts of a rank. O(instructions)."""
    lengths, written = columns.lengths, written_steps_of(columns)
    waits = np.diff(columns.first_wait[columns.first])
    return RankFacts(
        blocks=columns.blocks,
        steps=int(lengths.max(initial=0)),
        steps_with_nops=int(written.max(initial=0)),
        elements=columns.blocks + int(lengths.sum()),
        elements_with_nops=columns.blocks + int(written.sum()),
        waits=int(waits.max(initial=0)),
        waited_block=int(columns.wait_block.max(initial=-1)),
        per_direction=max(_most_of_channel(columns, columns.send_peer), _most_of_channel(columns, columns.recv_peer)),
        count=int(columns.count.max(initial=0)),
        offset=int(max(columns.src_offset.max(initial=0), columns.dst_offset.max(initial=0))),
        reduces_locally=bool((columns.op == _REDUCE).any()),
    )


def written_steps_of(columns: RankColumns) -> Column:
    """Return the steps of each block where a step carries one wait and each further one takes a `nop`."""
    extra = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.maximum(columns.waits - 1, 0))])
    return columns.lengths + np.diff(extra[columns.first])


def _most_of_channel(columns: RankColumns, peers: Column) -> int:
    channels = columns.channel[peers != NO_PEER]
    return int(np.unique(channels, return_counts=True)[1].max(initial=0))
