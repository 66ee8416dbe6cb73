"""Patterns of rings: along one cycle, along edge-disjoint cycles of a torus, and over boxes as NCCL makes them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName, require_collective
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.subcollective import (
    InSequence,
    Piece,
    ShardSends,
    StepMessages,
    SubCollective,
    TimeReversed,
)
from chorale.synth.methods.rings.cycles import disjoint_cycles, hamiltonian_cycle
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """A reduce_scatter along `order`: in step t position p hands on the sum of the shard of position p - 1 - t."""

    order: NDArray[np.int64]

    @property
    def step_count(self) -> int:
        return len(self.order) - 1

    def reduces(self, step: int) -> bool:
        return True

    def piece(self, step: int) -> Piece:
        return Piece()

    def messages(self, step: int) -> StepMessages:
        return StepMessages(self.order, np.roll(self.order, -1), np.ones_like(self.order))

    def shard_sends(self, step: int) -> ShardSends:
        return ShardSends(self.order, np.roll(self.order, -1), np.roll(self.order, 1 + step))

    def signature(self, step: int) -> Hashable:
        return "ring"  # every step sends one shard over every hop


@dataclass(frozen=True, slots=True, eq=False)
class MeetingRing:
    """A reduce_scatter in which the sum for a position comes from `ahead` positions before it and `back` behind it.

    The time reversal of BFB on a ring: max(ahead, back) steps. Source: Zhao et al., "Efficient Direct-Connect
    Topologies for Collective Communications", appendix F.1.
    """

    order: NDArray[np.int64]
    ahead: int
    back: int

    @property
    def step_count(self) -> int:
        return max(self.ahead, self.back)

    def reduces(self, step: int) -> bool:
        return True

    def piece(self, step: int) -> Piece:
        return Piece()

    def messages(self, step: int) -> StepMessages:
        src, dst, _ = self.shard_sends(step)
        return StepMessages(src, dst, np.ones_like(src))

    def shard_sends(self, step: int) -> ShardSends:
        distance = self.step_count - step
        signs = [sign for sign, reach in ((1, self.ahead), (-1, self.back)) if distance <= reach]
        src = [np.roll(self.order, -sign * distance) for sign in signs]
        dst = [np.roll(self.order, -sign * (distance - 1)) for sign in signs]
        return ShardSends(np.concatenate(src), np.concatenate(dst), np.tile(self.order, len(signs)))

    def signature(self, step: int) -> Hashable:
        distance = self.step_count - step
        return distance <= self.ahead, distance <= self.back


def ring_subcollective(order: NDArray[np.int64], collective: Collective, method: str) -> SubCollective:
    """Return the subcollective that makes `collective` around `order` in its direction only."""
    around = np.asarray(order, dtype=np.int64)
    gather = TimeReversed(Ring(around[::-1].copy()))
    return _of_parts(Ring(around), gather, collective, method)


def meeting_subcollective(
    order: NDArray[np.int64], ahead: int, back: int, collective: Collective, method: str
) -> SubCollective:
    """Return the subcollective that makes `collective` around `order` in both directions, meeting half-way."""
    ring = MeetingRing(np.asarray(order, dtype=np.int64), ahead, back)
    return _of_parts(ring, TimeReversed(ring), collective, method)


def _of_parts(scatter: SubCollective, gather: SubCollective, collective: Collective, method: str) -> SubCollective:
    parts: dict[CollectiveName, SubCollective] = {
        CollectiveName.ALLGATHER: gather,
        CollectiveName.REDUCE_SCATTER: scatter,
        CollectiveName.ALLREDUCE: InSequence(scatter, gather),
    }
    require_collective(method, collective, parts)
    return parts[collective.name]


def hamiltonian_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around every cycle of `disjoint_cycles`, in both directions.

    N - 1 steps each way; every direction of every cycle carries an equal part of the data, so it is bandwidth-optimal.
    On shiftedring:m this is the baseline ShiftedRing of Zhao et al., section 8.2. Source: Swing paper, section 2.3.1.
    """
    parts = [
        ring_subcollective(direction, collective, "hamiltonian-ring")
        for order in disjoint_cycles(topology)
        for direction in (order, order[::-1])
    ]
    return CollectivePattern(topology, collective, "hamiltonian-ring", {}, tuple(parts))


def bfb_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return BFB on every single cycle of `disjoint_cycles`: floor(N / 2) steps each way, bandwidth-optimal.

    On shiftedring:m this is the baseline ShiftedBFBRing. An even cycle has one rank opposite each: half of the data
    comes to it one way, half the other. Source: Zhao et al., appendix F.1.
    """
    half = topology.compute_count // 2
    reaches = [(half, half)] if topology.compute_count % 2 else [(half, half - 1), (half - 1, half)]
    parts: list[SubCollective] = [
        meeting_subcollective(order, ahead, back, collective, "bfb-ring")
        for order in disjoint_cycles(topology)
        for ahead, back in reaches
    ]
    return CollectivePattern(topology, collective, "bfb-ring", {}, tuple(parts))


def count_boxes(topology: Topology) -> int:
    """Return into how many boxes of equal size the ranks fall, 1 where there are none.

    A rank's id says its box: all before the last dot, as in "2.5" (GPU 5 of box 2); a box has consecutive ranks.
    """
    names = [node_id.rpartition(".")[0] for node_id in topology.node_ids[: topology.compute_count]]
    boxes = list(dict.fromkeys(names))
    size = len(names) // len(boxes)
    return len(boxes) if names == [box for box in boxes for _ in range(size)] else 1


def box_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around one ring per rank of a box, each with an equal part.

    Every ring goes through a box along its links between ranks where they make a cycle, else in rank order over the
    box's switch, and then on to the next box. Ring c comes into the first box at the c-th rank of the cycle, so
    that every rank's network port takes in one ring and lets out one; every second box is crossed backwards, so
    that a ring comes in at the same place where it left the box before (the same rail; with an odd number of
    boxes not between the last and the first). N - 1 steps each way. Meant for `count_boxes` >= 2.
    """
    boxes = count_boxes(topology)
    size = topology.compute_count // boxes
    inside = _order_in_box(topology, size)
    starts = np.arange(boxes)[:, None] * size
    parts = []
    for channel in range(size):
        order = starts + np.roll(inside, -channel)
        order[1::2] = order[1::2, ::-1]
        parts.append(ring_subcollective(order.ravel(), collective, "ring"))
    return CollectivePattern(topology, collective, "ring", {"channels": size}, tuple(parts))


def _order_in_box(topology: Topology, size: int) -> NDArray[np.int64]:
    links = [Link(link.src, link.dst) for link in topology.links if link.src < size and link.dst < size]
    box = Topology("box", tuple(map(str, range(size))), size, Links.build(links))
    cycle = hamiltonian_cycle(box) if links else None
    return np.arange(size) if cycle is None else cycle.astype(np.int64)
