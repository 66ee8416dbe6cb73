"""Which thread blocks and channels a plan has: blocks with too many operations are cut, others shared by groups.

A segment is a run of the instructions of a block of the program and becomes a thread block, or a group of them. The
messages of a connection between a segment of its sender and one of its receiver are a lane, which becomes a channel:
only one block may signal on a channel, and only one may wait.

A member of a group does all operations on its share of their chunks, so that both ends of a connection are shared
alike. Where not all groups could run at once, blocks that carry most get groups first; the others stay alone, and deal
with each member by itself.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chorale.synth.programs.plans.deliveries import Carrier, Connection, Deliveries, Delivery, InstructionId
from chorale.synth.programs.plans.plan import Kind
from chorale.synth.programs.program import Program, ThreadBlock

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


class Lane(NamedTuple):
    """Messages of a connection from one segment to another."""

    connection: Connection
    sender_segment: int
    receiver_segment: int


class SegmentId(NamedTuple):
    """A segment of a block of the program."""

    rank: int
    block: int
    number: int


class PlanWiring:
    """Segments and lanes of `program`, cut at `cuts`, with as many thread blocks for each segment as `groups` says."""

    def __init__(self, program: Program, deliveries: Deliveries, cuts: Cuts, groups: BlockGroups) -> None:
        self._program, self._cuts, self.groups = program, cuts, groups
        self._incoming: dict[SegmentId, dict[Lane, None]] = defaultdict(dict)
        self._outgoing: dict[SegmentId, dict[Lane, None]] = defaultdict(dict)
        self._first_channel: dict[tuple[int, Kind], dict[Lane, int]] = defaultdict(dict)
        self._peers: dict[tuple[int, Kind], list[int]] = defaultdict(list)
        self._members: dict[Lane, int] = {}
        self.written: set[Lane] = set()  # lanes whose sender, or a port, writes to the receiver
        self.read: set[Lane] = set()  # lanes whose receiver reads
        for delivery in deliveries.of_send.values():
            lane = self.lane_of(delivery)
            (self.read if delivery.carrier is Carrier.RECEIVER else self.written).add(lane)
            self._outgoing[self.segment_of(delivery.send)][lane] = None
            self._members[lane] = groups.members(delivery.send[:2])
        for delivery in sorted(deliveries.of_receive.values(), key=lambda each: each.receive):
            self._incoming[self.segment_of(delivery.receive)][self.lane_of(delivery)] = None
        self._number_channels()

    def segment_of(self, item: InstructionId) -> SegmentId:
        """Return the segment that an instruction is in."""
        return SegmentId(item[0], item[1], self._segment_number(item))

    def _segment_number(self, item: InstructionId) -> int:
        cuts = self._cuts.get(item[:2])
        return 0 if cuts is None else bisect_right(cuts, item[2]) - 1

    def segments_of(self, rank: int, block: int) -> list[SegmentId]:
        """Return all segments of a block in order."""
        return [SegmentId(rank, block, number) for number in range(len(self._cuts.get((rank, block), (0,))))]

    def steps_of(self, segment: SegmentId, body: ThreadBlock) -> range:
        """Return the numbers of its instructions."""
        cuts = [*self._cuts.get((segment.rank, segment.block), (0,)), len(body.instructions)]
        return range(cuts[segment.number], cuts[segment.number + 1])

    def lane_of(self, delivery: Delivery) -> Lane:
        """Return the lane that a message is on."""
        ends = self._segment_number(delivery.send), self._segment_number(delivery.receive)
        return Lane(delivery.connection, *ends)

    def incoming(self, segment: SegmentId) -> list[Lane]:
        """Return the lanes that lead to `segment`."""
        return list(self._incoming[segment])

    def outgoing(self, segment: SegmentId) -> list[Lane]:
        """Return the lanes that begin in `segment`."""
        return list(self._outgoing[segment])

    def kind_of(self, lane: Lane) -> Kind:
        """Return the kind of its channels."""
        sender, receiver, _ = lane.connection
        return "port" if self._program.plan.joined_by_port(sender, receiver) else "memory"

    def peers(self, rank: int, kind: Kind) -> tuple[int, ...]:
        """Return the peer of each channel of `rank`: one channel for each lane and member of a group."""
        return tuple(self._peers[rank, kind])

    def channel(self, rank: int, lane: Lane, member: int) -> int:
        """Return the channel of `lane` at `rank` for a member of the group."""
        return self._first_channel[rank, self.kind_of(lane)][lane] + member

    def _number_channels(self) -> None:
        """Number lanes by peer and connection, so that both ends have those with one peer in one order."""
        ends = {(lane.connection[end], lane) for lane in (*self.written, *self.read) for end in (0, 1)}
        for rank, lane in sorted(ends, key=lambda end: (end[0], _peer(*end), end[1].connection[2], end[1])):
            peers = self._peers[rank, self.kind_of(lane)]
            self._first_channel[rank, self.kind_of(lane)][lane] = len(peers)
            peers += [_peer(rank, lane)] * self._members[lane]


class RankSemaphores(NamedTuple):
    """Semaphores of a rank: how many, which are acquired before an instruction and released after it, by block and
    number, and which leads from each segment to the next. Those of groups are the numbers of their first members."""

    semaphores: int
    acquired: Mapping[tuple[int, int], Sequence[int]]
    released: Mapping[tuple[int, int], Sequence[int]]
    chained: Mapping[SegmentId, int]


def links_of(rank: int, blocks: Sequence[ThreadBlock], wiring: PlanWiring) -> RankSemaphores:
    """Return one semaphore for each pair of segments of which one waits for the other, and for segments in a row; of
    groups one for each member. Who is alone deals with all of them."""
    groups, count = wiring.groups, 0
    numbers: dict[tuple[SegmentId, SegmentId], int] = {}
    latest: dict[tuple[int, int], int] = {}
    acquired: dict[tuple[int, int], list[int]] = defaultdict(list)
    released: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, block in enumerate(blocks):
        for step, item in enumerate(block.instructions):
            for wait in item.waits:
                # What an earlier wait includes needs no other.
                if wait.block == index or wait.step <= latest.get((wait.block, index), -1):
                    continue
                latest[wait.block, index] = wait.step
                ends = wiring.segment_of((rank, wait.block, wait.step)), wiring.segment_of((rank, index, step))
                pairs = groups.between((rank, wait.block), (rank, index))
                if ends not in numbers:
                    numbers[ends], count = count, count + pairs
                first = numbers[ends]
                acquired[index, step] += range(first, first + pairs // groups.members((rank, index)))
                released[wait.block, wait.step] += range(first, first + pairs // groups.members((rank, wait.block)))
    chained = {}
    for index in range(len(blocks)):
        for segment in wiring.segments_of(rank, index)[1:]:
            chained[segment], count = count, count + groups.members((rank, index))
    return RankSemaphores(count, _sorted(acquired), _sorted(released), chained)


def _sorted(items: Mapping[tuple[int, int], list[int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    return {key: tuple(sorted(numbers)) for key, numbers in items.items()}


def _peer(rank: int, lane: Lane) -> int:
    sender, receiver, _ = lane.connection
    return receiver if sender == rank else sender
