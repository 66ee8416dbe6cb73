"""A rank's part of a program as the numbers that the engine reads (native/program.cpp)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.program import Instruction, Op, RankProgram, Wait

_VERSION = 1
_COLLECTIVES = (
    CollectiveName.ALLGATHER,
    CollectiveName.REDUCE_SCATTER,
    CollectiveName.ALLREDUCE,
    CollectiveName.BROADCAST,
    CollectiveName.REDUCE,
    CollectiveName.ALLTOALL,
)
_SAME_BUFFERS = {CollectiveName.CUSTOM: CollectiveName.ALLREDUCE}
"""Collectives that the engine does not know, and what has the same buffers: it executes instructions, whatever for."""
_OPS = {
    Op.SEND: 0,
    Op.RECV: 1,
    Op.RECV_COPY_SEND: 2,
    Op.RECV_REDUCE_SEND: 3,
    Op.RECV_REDUCE_COPY: 4,
    Op.RECV_REDUCE_COPY_SEND: 5,
    Op.COPY: 6,
    Op.REDUCE: 7,
}
_BUFFERS = {"i": 0, "o": 1, "s": 2}


def encode_rank(
    collective: Collective, ranks: int, chunks: int, in_place: bool, depth: int, part: RankProgram
) -> array[int]:
    """Return the part of a rank as 64-bit integers.

    depth: how many messages a sender may be ahead of its receiver on a connection
    """
    root = -1 if collective.root is None else collective.root
    words = array(
        "q",
        [
            _VERSION,
            _COLLECTIVES.index(_SAME_BUFFERS.get(collective.name, collective.name)),
            root,
            ranks,
            chunks,
            int(in_place),
        ],
    )
    words.extend((part.scratch_chunks, depth, len(part.blocks)))
    for block in part.blocks:
        peers = (-1 if peer is None else peer for peer in (block.send_peer, block.recv_peer))
        words.extend((*peers, block.channel, len(block.instructions)))
        for step in block.instructions:
            words.extend(_step(step))
    return words


def _step(step: Instruction) -> Iterator[int]:
    yield _OPS[step.op]
    yield from (_BUFFERS[step.src.buffer], step.src.offset, _BUFFERS[step.dst.buffer], step.dst.offset, step.count)
    yield len(step.waits)
    for wait in step.waits:
        yield from _wait(wait)


def _wait(wait: Wait) -> tuple[int, int]:
    return wait.block, wait.step
