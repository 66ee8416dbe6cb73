"""Which thread block of a rank executes which instruction."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from synth.lowering.columns import Column
from synth.lowering.drafts import Drafts, Role

UNBOUNDED = sys.maxsize

Key = tuple[int, Role, int]
"""Channel, role, peer: the work for one direction of one connection, or local work."""
BlockKey = tuple[int | None, int | None, int]
"""Rank to send to, rank to receive from, channel."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The thread blocks of a rank, and the number of the block of each of its instructions."""

    keys: tuple[BlockKey, ...]
    of_draft: Column


def assigned_blocks(drafts: Drafts, most: int) -> Blocks:
    """Return a block for each direction of each connection of a rank and channel, and one for local work.

    Where these are more than `most`, blocks that send and blocks that receive on one channel become one, those with
    the fewest chunks first, because sending and receiving then take turns. There may be more than `most` even so: a
    block has one rank to send to. O(instructions * log(instructions)).
    """
    columns = np.stack([drafts.channel, drafts.role, drafts.peer], axis=1)
    found, index = np.unique(columns, axis=0, return_inverse=True)
    index = index.reshape(-1)
    keys = [(channel, Role(role), peer) for channel, role, peer in found.tolist()]
    work = np.bincount(index, weights=drafts.count, minlength=len(keys)).astype(np.int64).tolist()
    joined = _joined(keys, work, len(keys) - most)
    left = [number for number in range(len(keys)) if number not in joined]
    numbers = {number: position for position, number in enumerate(left)}
    block = np.array([numbers[joined.get(number, number)] for number in range(len(keys))], dtype=np.int64)
    partner = {into: number for number, into in joined.items() if keys[number][1] != Role.LOCAL}
    merged = tuple(_block_key(keys[number], keys[partner[number]] if number in partner else None) for number in left)
    return Blocks(merged, block[index])


def _joined(keys: list[Key], work: list[int], excess: int) -> dict[int, int]:
    """Return which of `keys` join which others, `excess` of them if there are so many that can."""
    if excess <= 0:
        return {}
    order = sorted(range(len(keys)), key=lambda number: (work[number], number))
    pairs: list[tuple[int, int]] = []
    for channel in sorted({channel for channel, _, _ in keys}):
        sends, receives = (
            [number for number in order if keys[number][:2] == (channel, role)] for role in (Role.SEND, Role.RECEIVE)
        )
        peers = {keys[number][2]: number for number in receives}
        mutual = [(number, peers[keys[number][2]]) for number in sends if keys[number][2] in peers]
        taken = {number for pair in mutual for number in pair}
        rest = zip(*([n for n in side if n not in taken] for side in (sends, receives)), strict=False)
        pairs += [*mutual, *rest]
    pairs.sort(key=lambda pair: work[pair[0]] + work[pair[1]])
    receives = [number for number in order if keys[number][1] == Role.RECEIVE]
    local = [(number, receives[0]) for number in order if keys[number][1] == Role.LOCAL and receives]
    return dict([*local, *pairs][:excess])


def _block_key(key: Key, partner: Key | None) -> BlockKey:
    channel = key[0]
    peers = {role: peer for _, role, peer in (key, *([partner] if partner else []))}
    return peers.get(Role.SEND), peers.get(Role.RECEIVE), channel
