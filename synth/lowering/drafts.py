"""From messages to instructions of each rank, in an order in which executing one after another is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np

from synth.lowering.memory import Shape
from synth.lowering.messages import Message
from synth.lowering.places import Codes, Places, place_of, received_chunks
from synth.lowering.program import Op, Place


class Role(IntEnum):
    """What a block is for. Separate blocks for each direction of a connection can wait on each other freely."""

    RECEIVE = 0
    SEND = 1
    LOCAL = 2


@dataclass(frozen=True, slots=True, order=True)
class BlockKey:
    """Names a block of a rank; the order of the keys is the order of the blocks. `peer` is -1 for local work."""

    channel: int
    role: Role
    peer: int


@dataclass(frozen=True, slots=True)
class Draft:
    """An instruction without its waits, and the block it belongs to."""

    block: BlockKey
    op: Op
    src: Place
    dst: Place
    count: int


@dataclass(frozen=True, slots=True)
class Drafts:
    """Per rank: the instructions in a valid sequential order, and the chunks of its buffers that are used."""

    by_rank: tuple[tuple[Draft, ...], ...]
    input_chunks: int
    output_chunks: int
    scratch_chunks: tuple[int, ...]


def draft_instructions(shape: Shape, steps: Sequence[Sequence[Message]], longest: int, exchanged: int) -> Drafts:
    """Return the instructions that move `steps`.

    Within a step all sends come before all receives, because a send means the state before its step. Chunks that
    follow one another at both ends travel in one instruction of at most `longest` chunks; at most `exchanged`
    (what a connection holds without its receiver) in a step where a rank receives into what it sends: such a
    receive waits for the send, and two ranks that exchange would otherwise wait for each other.
    O(chunks moved).
    """
    places = Places(shape, received_chunks(shape, steps))
    by_rank: list[list[Draft]] = [[] for _ in range(shape.ranks)]
    for messages in steps:
        receives: list[list[Draft]] = [[] for _ in range(shape.ranks)]
        limit = min(longest, exchanged) if _has_exchange(places, messages) else longest
        sources = [places.home[message.sender, message.first : message.end].copy() for message in messages]
        for message, source in zip(messages, sources, strict=True):
            for send, receive in _pairs(places, message, source, limit):
                by_rank[message.sender].append(send)
                receives[message.receiver].append(receive)
        for rank, later in enumerate(receives):
            by_rank[rank].extend(later)
    for rank in range(shape.ranks):
        by_rank[rank].extend(_copies(places, rank, longest))
    return Drafts(tuple(map(tuple, by_rank)), *places.used_chunks, tuple(places.scratch_chunks))


def _has_exchange(places: Places, messages: Sequence[Message]) -> bool:
    """Return whether a rank receives into a place that it sends from in the same step."""
    sent = np.zeros(places.home.shape, dtype=np.bool_)
    for message in messages:
        sent[message.sender, message.first : message.end] = True
    for message in messages:
        where = (message.receiver, slice(message.first, message.end))
        if np.any(sent[where] & (places.home[where] == places.work[where])):
            return True
    return False


def _pairs(places: Places, message: Message, source: Codes, limit: int) -> Iterator[tuple[Draft, Draft]]:
    """Yield the send and the receive of every piece of `message`, and move the home of what arrives."""
    where = (message.receiver, slice(message.first, message.end))
    target = places.work[where].copy()
    operand = places.home[where].copy() if message.reduces else target
    places.home[where] = target
    send_key = BlockKey(message.channel, Role.SEND, message.receiver)
    receive_key = BlockKey(message.channel, Role.RECEIVE, message.sender)
    receive_op = Op.RECV_REDUCE_COPY if message.reduces else Op.RECV
    for first, end in _runs((source, operand, target), limit):
        at_sender, at_operand, at_target = (place_of(int(codes[first])) for codes in (source, operand, target))
        send = Draft(send_key, Op.SEND, at_sender, at_sender, end - first)
        yield send, Draft(receive_key, receive_op, at_operand, at_target, end - first)


def _copies(places: Places, rank: int, longest: int) -> Iterator[Draft]:
    """Yield the copies of what belongs into the result of `rank` and never moved from its input."""
    first, final = places.final(rank)
    home = places.home[rank, first : first + len(final)]
    for chunk, end in _runs((home, final), longest):
        if home[chunk] != final[chunk]:
            source, target = place_of(int(home[chunk])), place_of(int(final[chunk]))
            yield Draft(BlockKey(0, Role.LOCAL, -1), Op.COPY, source, target, end - chunk)


def _runs(columns: Sequence[Codes], longest: int) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of the longest stretches in which every column counts up by one, at most `longest` long."""
    length = len(columns[0])
    broken = np.zeros(max(0, length - 1), dtype=np.bool_)
    for column in columns:
        broken |= np.diff(column) != 1
    edges = [0, *(np.flatnonzero(broken) + 1).tolist(), length]
    for first, end in pairwise(edges):
        for start in range(first, end, longest):
            yield start, min(end, start + longest)
