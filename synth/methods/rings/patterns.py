"""Patterns of rings: along one cycle, along edge-disjoint cycles of a torus, and over boxes as NCCL makes them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import Columns, Step, SubCollective, backwards, of_parts
from chorale.synth.methods.rings.cycles import disjoint_cycles, hamiltonian_cycle
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology


def ring_reduce_scatter(order: NDArray[np.int64]) -> list[Step]:
    """Return the reduce_scatter in which position p hands on the sum of the shard of position p - 1 - t in step t."""
    following, one = np.roll(order, -1), np.ones_like(order)

    def sends(step: int) -> Columns:
        return order, following, np.roll(order, 1 + step)

    return [  # every step sends one shard over every hop
        Step(lambda: (order, following, one), partial(sends, step), lambda: "ring") for step in range(len(order) - 1)
    ]


def meeting_reduce_scatter(order: NDArray[np.int64], ahead: int, back: int) -> list[Step]:
    """Return a reduce_scatter in which the sum for a position comes from `ahead` positions before it and `back` behind.

    The time reversal of BFB on a ring: max(ahead, back) steps. Source: Zhao et al., "Efficient Direct-Connect
    Topologies for Collective Communications", appendix F.1.
    """

    def sends(distance: int) -> Columns:
        signs = [sign for sign, reach in ((1, ahead), (-1, back)) if distance <= reach]
        src = [np.roll(order, -sign * distance) for sign in signs]
        dst = [np.roll(order, -sign * (distance - 1)) for sign in signs]
        return np.concatenate(src), np.concatenate(dst), np.tile(order, len(signs))

    def messages(distance: int) -> Columns:
        src, dst, _ = sends(distance)
        return src, dst, np.ones_like(src)

    def signature(distance: int) -> Hashable:
        return distance <= ahead, distance <= back

    return [
        Step(partial(messages, distance), partial(sends, distance), partial(signature, distance))
        for distance in range(max(ahead, back), 0, -1)
    ]


def ring_subcollective(order: NDArray[np.integer], collective: Collective, method: str) -> SubCollective:
    """Return the subcollective that makes `collective` around `order` in its direction only."""
    around = np.asarray(order, dtype=np.int64)
    gather = backwards(ring_reduce_scatter(around[::-1].copy()))
    return of_parts(ring_reduce_scatter(around), gather, collective, method)


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
    scatters = [
        meeting_reduce_scatter(order, ahead, back) for order in disjoint_cycles(topology) for ahead, back in reaches
    ]
    parts = [of_parts(scatter, backwards(scatter), collective, "bfb-ring") for scatter in scatters]
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
