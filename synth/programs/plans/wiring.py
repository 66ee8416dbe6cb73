"""Assigns a plan's thread blocks and channels: splits blocks with too many operations, shares others among groups.

A segment is a run of consecutive instructions of a program block. It becomes one thread block, or a group of thread
blocks. A lane consists of a connection's messages between one of the sender's segments and one of the receiver's. Each
lane becomes a separate channel, because only one block may signal on a channel and only one may wait.
Each member of a group executes all operations on its part of the chunks, so both ends of a connection must be groups of
the same size. If not all groups fit on the device at the same time, the blocks that move the most data get groups
first. The other blocks remain single thread blocks, which exchange signals with each member of a group.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chorale.synth.programs.plain_execution import Connection
from chorale.synth.programs.plans.deliveries import Carrier, Deliveries, Delivery
from chorale.synth.programs.plans.plan import Kind
from chorale.synth.programs.program import Position, Program, ThreadBlock

BlockId = tuple[int, int]
"""(rank, block of the program)."""
Cuts = Mapping[BlockId, Sequence[int]]
"""For each block that is cut, the first instruction of each of its segments."""


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """How many thread blocks share each segment of a program's block: 1 for blocks in `alone`, else `size`."""

    size: int
    alone: frozenset[BlockId] = frozenset()

    def members(self, block: BlockId) -> int:
        """Return the number of thread blocks that share each segment of `block`."""
        return 1 if block in self.alone else self.size


def groups_that_fit(program: Program, deliveries: Deliveries, cuts: Cuts, groups: BlockGroups) -> BlockGroups:
    """Remove groups until all thread blocks of each rank can run simultaneously; return the remaining groups.

    The limit is `resident_blocks` in the plan options of `program`. Blocks that move more chunks get groups first.
    O(blocks * log(blocks)).
    """
    room = program.plan.resident_blocks
    if room is None or groups.size == 1:
        return groups
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
    parts: dict[int, list[BlockId]] = defaultdict(list)  # connected blocks: all of them must have groups, or none
    for block, label in zip(carried, csgraph.connected_components(joins, directed=False)[1].tolist(), strict=True):
        parts[label].append(block)

    def segments(blocks: Sequence[BlockId] | Mapping[BlockId, int]) -> Counter[int]:
        """Return the total number of segments of `blocks` for each rank."""
        total: Counter[int] = Counter()
        for block in blocks:
            total[block[0]] += len(cuts.get(block, (0,)))
        return total

    used = segments(carried)
    alone = set(groups.alone)
    for joined in sorted(parts.values(), key=lambda blocks: (-max(carried[block] for block in blocks), blocks)):
        more = {rank: (groups.size - 1) * count for rank, count in segments(joined).items()}
        if alone.isdisjoint(joined) and all(used[rank] + count <= room for rank, count in more.items()):
            used.update(more)
        else:
            alone.update(joined)
    return BlockGroups(groups.size, frozenset(alone))


class Lane(NamedTuple):
    """The messages of a connection from one segment of the sender to one segment of the receiver."""

    connection: Connection
    sender_segment: int
    receiver_segment: int


class SegmentId(NamedTuple):
    """A segment: a run of consecutive instructions of a program block, which becomes a thread block or a group."""

    rank: int
    block: int
    number: int


class PlanWiring:
    """The segments and lanes of `program`, cut at `cuts`, with the thread blocks of `groups`.

    written: lanes on which the sender, or its port, writes to the receiver
    read:    lanes on which the receiver reads from the sender
    """

    def __init__(self, program: Program, deliveries: Deliveries, cuts: Cuts, groups: BlockGroups) -> None:
        self._program, self._cuts, self.groups = program, cuts, groups
        self._incoming: dict[SegmentId, dict[Lane, None]] = defaultdict(dict)
        self._outgoing: dict[SegmentId, dict[Lane, None]] = defaultdict(dict)
        self._first_channel: dict[tuple[int, Kind], dict[Lane, int]] = defaultdict(dict)
        self._peers: dict[tuple[int, Kind], list[int]] = defaultdict(list)
        self.written: set[Lane] = set()
        self.read: set[Lane] = set()
        members: dict[Lane, int] = {}
        for delivery in deliveries.of_send.values():
            lane = self.lane_of(delivery)
            (self.read if delivery.carrier is Carrier.RECEIVER else self.written).add(lane)
            self._outgoing[self.segment_of(delivery.send)][lane] = None
            members[lane] = groups.members(delivery.send[:2])
        for delivery in sorted(deliveries.of_receive.values(), key=lambda each: each.receive):
            self._incoming[self.segment_of(delivery.receive)][self.lane_of(delivery)] = None
        # Channels are numbered by peer and connection, so that both ranks of a pair number theirs in the same order.
        numbered = [
            (rank, peer, lane.connection[2], lane)
            for lane in {*self.written, *self.read}
            for rank, peer in (lane.connection[:2], lane.connection[1::-1])
        ]
        for rank, peer, _, lane in sorted(numbered):
            peers = self._peers[rank, self.kind_of(lane)]
            self._first_channel[rank, self.kind_of(lane)][lane] = len(peers)
            peers += [peer] * members[lane]

    def segment_of(self, item: Position) -> SegmentId:
        cuts = self._cuts.get(item[:2])
        return SegmentId(item[0], item[1], 0 if cuts is None else bisect_right(cuts, item[2]) - 1)

    def segments_of(self, rank: int, block: int) -> list[SegmentId]:
        """Return all segments of a block in order."""
        return [SegmentId(rank, block, number) for number in range(len(self._cuts.get((rank, block), (0,))))]

    def steps_of(self, segment: SegmentId, body: ThreadBlock) -> range:
        """Return the instruction numbers of `segment`, which is part of the block `body`."""
        cuts = [*self._cuts.get((segment.rank, segment.block), (0,)), len(body.instructions)]
        return range(cuts[segment.number], cuts[segment.number + 1])

    def lane_of(self, delivery: Delivery) -> Lane:
        ends = self.segment_of(delivery.send).number, self.segment_of(delivery.receive).number
        return Lane(delivery.connection, *ends)

    def incoming(self, segment: SegmentId) -> list[Lane]:
        return list(self._incoming[segment])

    def outgoing(self, segment: SegmentId) -> list[Lane]:
        return list(self._outgoing[segment])

    def kind_of(self, lane: Lane) -> Kind:
        sender, receiver, _ = lane.connection
        return "port" if self._program.plan.joined_by_port(sender, receiver) else "memory"

    def peers(self, rank: int, kind: Kind) -> tuple[int, ...]:
        """Return the peer of each channel of `rank`. There is one channel per lane and group member."""
        return tuple(self._peers[rank, kind])

    def channel(self, rank: int, lane: Lane, member: int) -> int:
        """Return the channel number of `lane` at `rank` for a group member."""
        return self._first_channel[rank, self.kind_of(lane)][lane] + member


class RankSemaphores(NamedTuple):
    """The semaphores of a rank. For groups, each number is the first member's; the other members use the next numbers.

    semaphores: number of semaphores
    acquired:   semaphores to acquire before an instruction, by (block, step)
    released:   semaphores to release after an instruction, by (block, step)
    chained:    for each segment except the first of a block, the semaphore that the segment before it releases
    """

    semaphores: int
    acquired: Mapping[tuple[int, int], Sequence[int]]
    released: Mapping[tuple[int, int], Sequence[int]]
    chained: Mapping[SegmentId, int]


def links_of(rank: int, blocks: Sequence[ThreadBlock], wiring: PlanWiring) -> RankSemaphores:
    """Assign semaphores to pairs of segments in which one waits for the other, and to consecutive segments of a block.

    A group has one semaphore per member. A single thread block that waits for the group, or for which it waits, uses
    all of them.
    """
    groups, count = wiring.groups, 0
    numbers: dict[tuple[SegmentId, SegmentId], int] = {}
    latest: dict[tuple[int, int], int] = {}
    acquired: dict[tuple[int, int], list[int]] = defaultdict(list)
    released: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, block in enumerate(blocks):
        for step, item in enumerate(block.instructions):
            for wait in item.waits:
                # An earlier wait for this or a later step makes this wait redundant.
                if wait.block == index or wait.step <= latest.get((wait.block, index), -1):
                    continue
                latest[wait.block, index] = wait.step
                ends = wiring.segment_of((rank, wait.block, wait.step)), wiring.segment_of((rank, index, step))
                members = groups.members((rank, wait.block)), groups.members((rank, index))
                pairs = max(members)
                if ends not in numbers:
                    numbers[ends], count = count, count + pairs
                first = numbers[ends]
                released[wait.block, wait.step] += range(first, first + pairs // members[0])
                acquired[index, step] += range(first, first + pairs // members[1])
    chained = {}
    for index in range(len(blocks)):
        for segment in wiring.segments_of(rank, index)[1:]:
            chained[segment], count = count, count + groups.members((rank, index))
    for found in (*acquired.values(), *released.values()):
        found.sort()
    return RankSemaphores(count, acquired, released, chained)
