"""Rings over boxes of GPUs, as NCCL lays them: each channel enters and leaves a box by other network ports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.grid.pattern import CollectivePattern
from chorale.synth.rings.cycle import hamiltonian_cycle
from chorale.synth.rings.port import ring_subcollective
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology


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
    boxes not between the last and the first). N - 1 steps each way. Made for `boxes_of` >= 2.
    """
    boxes = count_boxes(topology)
    size = topology.compute_count // boxes
    inside = _order_in_box(topology, size)
    starts = np.arange(boxes)[:, None] * size
    ports = []
    for channel in range(size):
        order = starts + np.roll(inside, -channel)
        order[1::2] = order[1::2, ::-1]
        ports.append(ring_subcollective(order.ravel(), collective, "ring"))
    return CollectivePattern(topology, collective, "ring", {"channels": size}, tuple(ports))


def _order_in_box(topology: Topology, size: int) -> NDArray[np.int64]:
    links = [Link(link.src, link.dst) for link in topology.links if link.src < size and link.dst < size]
    box = Topology("box", tuple(map(str, range(size))), size, Links.build(links))
    cycle = hamiltonian_cycle(box) if links else None
    return np.arange(size) if cycle is None else cycle.astype(np.int64)
