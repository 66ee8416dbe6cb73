"""Which blocks of a program are shared by a group of thread blocks, where not all groups could run at once.

A member of a group does all operations on its share of their chunks, so that both ends of a connection are shared
alike. Blocks that carry most get groups first; the others stay alone, and deal with each member by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chorale.synth.programs.plans.deliveries import Deliveries
from chorale.synth.programs.program import Program

BlockId = tuple[int, int]
"""Rank and block of the program."""
Cuts = Mapping[BlockId, Sequence[int]]
"""The first instruction of each segment of the blocks that are cut."""


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """How many thread blocks there are for each segment of a block: `size`, or one of those that are `alone`."""

    size: int
    alone: frozenset[BlockId] = frozenset()

    def members(self, block: BlockId) -> int:
        """Return how many thread blocks share each segment of `block`."""
        return 1 if block in self.alone else self.size

    def between(self, first: BlockId, second: BlockId) -> int:
        """Return how many pairs of thread blocks deal with each other, of two segments that do."""
        return max(self.members(first), self.members(second))


def groups_that_fit(program: Program, deliveries: Deliveries, cuts: Cuts, groups: BlockGroups) -> BlockGroups:
    """Return `groups` with as many more blocks alone as it takes for all thread blocks of a rank to run at once, by
    the plan options of `program`. Blocks that carry more chunks are taken before others. O(blocks * log(blocks))."""
    room = program.plan.resident_blocks
    if room is None or groups.size == 1:
        return groups
    segments = {
        (rank, index): len(cuts.get((rank, index), (0,)))
        for rank, body in enumerate(program.ranks)
        for index in range(len(body.blocks))
    }
    used = _by_rank(segments, segments)
    alone = set(groups.alone)
    for joined in _joined_blocks(program, deliveries):
        shared = _by_rank(joined, segments)
        more = {rank: (groups.size - 1) * count for rank, count in shared.items()}
        if alone.isdisjoint(joined) and all(used[rank] + count <= room for rank, count in more.items()):
            used.update(more)
        else:
            alone.update(joined)
    return BlockGroups(groups.size, frozenset(alone))


def _by_rank(blocks: Iterable[BlockId], counts: Mapping[BlockId, int]) -> Counter[int]:
    total: Counter[int] = Counter()
    for block in blocks:
        total[block[0]] += counts[block]
    return total


def _joined_blocks(program: Program, deliveries: Deliveries) -> list[list[BlockId]]:
    """Return the blocks that are shared alike, those with a block that carries most first."""
    from scipy.sparse import csgraph, csr_array  # noqa: PLC0415 (slow, and few programs have groups)

    carried = {
        (rank, index): sum(item.count for item in block.instructions)
        for rank, body in enumerate(program.ranks)
        for index, block in enumerate(body.blocks)
    }
    number = {block: place for place, block in enumerate(carried)}
    pairs = {(number[each.send[:2]], number[each.receive[:2]]) for each in deliveries.of_send.values()}
    ends = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    joins = csr_array((np.ones(len(pairs), dtype=np.int8), (ends[0], ends[1])), shape=(len(number), len(number)))
    parts: dict[int, list[BlockId]] = defaultdict(list)
    for block, label in zip(carried, csgraph.connected_components(joins, directed=False)[1].tolist(), strict=True):
        parts[label].append(block)
    return sorted(parts.values(), key=lambda blocks: (-max(carried[block] for block in blocks), blocks))
