"""Makes ring algorithms: each rank sends what it received in the previous step to the next rank on a Hamiltonian cycle.

Rings run along a single Hamiltonian cycle, along several edge-disjoint cycles of a torus to use every port, or from box
to box as in NCCL. A single cycle is found by covering the ranks with cycles and merging these. Most libraries use ring
algorithms, so other algorithms are compared with them. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import Columns, SendStep, SubCollective, backwards, grid_shape, of_parts
from chorale.synth.topology.families.grids import shifted_stride
from chorale.synth.topology.registry import FamilyCall, parse_spec
from chorale.synth.topology.topology import Link, Links, Topology


def hamiltonian_cycle(topology: Topology) -> NDArray[np.int32] | None:
    """Return the ranks in the order of a Hamiltonian cycle, or None if no cycle is found.

    If the rank order is a Hamiltonian cycle, it is used. Otherwise, all ranks are covered with cycles (by a bipartite
    matching of ranks to successors), and cycles are merged until one is left: hops a -> b and c -> d of two cycles
    become a -> d and c -> b. If all links go both ways, a cycle may be reversed first. Only links between ranks are
    used. Deterministic, about O(links * merges). The problem is NP-complete, so the search may fail even if a cycle
    exists.
    """
    ranks = topology.compute_count
    links = topology.links
    usable = (links.src < ranks) & (links.dst < ranks) & (links.src != links.dst)
    neighbours: list[set[int]] = [set() for _ in range(ranks)]
    for src, dst in zip(links.src[usable].tolist(), links.dst[usable].tolist(), strict=True):
        neighbours[src].add(dst)
    if all((rank + 1) % ranks in neighbours[rank] for rank in range(ranks)):
        return np.arange(ranks, dtype=np.int32)
    ends = [(rank, target) for rank, following in enumerate(neighbours) for target in sorted(following)]
    rank, target = np.array(ends, dtype=np.int32).reshape(-1, 2).T
    graph = sparse.csr_array((np.ones(len(rank), dtype=np.int8), (rank, target)), shape=(ranks, ranks))
    matched = csgraph.maximum_bipartite_matching(graph, perm_type="column")
    return None if np.any(matched < 0) else _Cover(neighbours, matched.tolist()).merged()


class _Cover:
    """Cycles that together visit every rank, to be merged into a single cycle. `successor[r]` is the rank after r."""

    def __init__(self, neighbours: list[set[int]], successor: list[int]) -> None:
        self.neighbours, self.successor = neighbours, successor
        self.predecessor = [0] * len(neighbours)
        for rank, following in enumerate(successor):
            self.predecessor[following] = rank
        self.cycle_of = [-1] * len(neighbours)
        self.members: dict[int, list[int]] = {}
        for start in range(len(neighbours)):
            rank = start
            while self.cycle_of[rank] < 0:
                self.cycle_of[rank] = start
                self.members.setdefault(start, []).append(rank)
                rank = successor[rank]

    def merged(self) -> NDArray[np.int32] | None:
        """Return the ranks in the order of the cycle that results from merging all cycles, or None if this fails."""
        ranks = range(len(self.neighbours))
        reversible = all(src in self.neighbours[dst] for src in ranks for dst in self.neighbours[src])
        changed = True
        while changed and len(self.members) > 1:
            changed = any([self._merge_at(first, reversible) for first in ranks])
        if len(self.members) > 1:
            return None
        order = [0]
        while self.successor[order[-1]] != 0:
            order.append(self.successor[order[-1]])
        return np.array(order, dtype=np.int32)

    def _merge_at(self, first: int, reversible: bool) -> bool:
        """Insert another cycle between `first` and its successor if links allow it. Return whether that worked."""
        for target in sorted(self.neighbours[first]):
            if self.cycle_of[target] == self.cycle_of[first]:
                continue
            following = self.successor[first]
            if reversible and following in self.neighbours[self.successor[target]]:
                for rank in self.members[self.cycle_of[target]]:  # reverse the cycle
                    self.successor[rank], self.predecessor[rank] = self.predecessor[rank], self.successor[rank]
            other = self.predecessor[target]
            if following not in self.neighbours[other]:
                continue
            self.successor[first], self.successor[other] = target, following
            self.predecessor[target], self.predecessor[following] = first, other
            pair = (self.cycle_of[first], self.cycle_of[target])
            small, large = sorted(pair, key=lambda label: (len(self.members[label]), label))
            for rank in self.members[small]:
                self.cycle_of[rank] = large
            self.members[large] += self.members.pop(small)
            return True
        return False


Order = NDArray[np.int64]


def disjoint_cycles(topology: Topology) -> list[Order]:
    """Return Hamiltonian cycles (orders of ranks) that share no link in either direction. O(links).

    Returns two cycles on a torus of r x c nodes (r, c >= 3) if r = c k for an integer k and gcd(r, c - 1) = 1, or the
    same with r and c exchanged (see Swing paper, section 2.3.1). The grid may have additional links, as in HyperX, or
    switches that close its rows and columns, as in HammingMesh. Returns two cycles on shiftedring:m, and one on
    networks of degree 2 such as rings. Raises InvalidInput for other networks.
    """
    shape = grid_shape(topology)
    if len(shape) == 2 and min(shape) >= 3:
        rows, columns = shape
        if torus_has_disjoint_cycles(rows, columns):
            cycles = [along * columns + across for along, across in _pair(rows, columns)]
        elif torus_has_disjoint_cycles(columns, rows):
            cycles = [across * columns + along for along, across in _pair(columns, rows)]
        else:
            return _refuse(topology)
        hops = np.concatenate([cycle * topology.compute_count + np.roll(cycle, -1) for cycle in cycles])
        keys = topology.links.src.astype(np.int64) * topology.compute_count + topology.links.dst
        return cycles if topology.switch_count or np.isin(hops, keys).all() else _refuse(topology)
    try:
        tree = parse_spec(topology.spec)
    except InvalidInput:
        tree = None
    if isinstance(tree, FamilyCall) and tree.name == "shiftedring":
        ranks = topology.compute_count
        return [np.arange(ranks), np.arange(ranks) * shifted_stride(ranks) % ranks]
    cycle = hamiltonian_cycle(topology) if topology.degree in (1, 2) and not topology.switch_count else None
    return _refuse(topology) if cycle is None else [cycle.astype(np.int64)]


def torus_has_disjoint_cycles(rows: int, columns: int) -> bool:
    """Return whether `_pair` finds two cycles: rows = k * columns for an integer k, and gcd(rows, columns - 1) = 1."""
    return rows % columns == 0 and gcd(rows, columns - 1) == 1


def _pair(rows: int, columns: int) -> list[tuple[Order, Order]]:
    """Return two edge-disjoint cycles on a torus, each as (rows, columns) of the nodes in the cycle's order.

    The first cycle takes all hops of a row except the last one, then goes down to the next row. The second cycle goes
    down a column for columns - 1 hops, then takes the row hop that the first cycle left out. Each time, it moves
    columns - 1 rows down and one column to the right, so if gcd(rows, columns - 1) = 1, it visits every row before it
    returns to its start.
    """
    turn, position = np.divmod(np.arange(rows * columns), columns)
    return [(turn, (position - turn) % columns), ((turn * (columns - 1) + position) % rows, turn % columns)]


def _refuse(topology: Topology) -> list[Order]:
    rule = "edge-disjoint Hamiltonian rings need a torus of r x c nodes (r, c >= 3) with r = c k and gcd(r, c - 1) = 1"
    raise InvalidInput(rule, topology.spec, "use biring or bucket")


def ring_reduce_scatter(order: NDArray[np.int64], ahead: int, back: int = 0) -> list[SendStep]:
    """Return a ring reduce_scatter: each rank gets data from `ahead` ranks before it and `back` ranks after it.

    It takes max(ahead, back) steps. With `ahead` = N - 1 and `back` = 0, sums go around the ring: in step t, position p
    forwards the sum for position p - 1 - t. If both are about N / 2, this is BFB on a ring, backwards in time. Source:
    Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix F.1.
    """

    def sends(distance: int) -> Columns:
        signs = [sign for sign, reach in ((1, ahead), (-1, back)) if distance <= reach]
        dst = [np.roll(order, -sign) for sign in signs]
        shard = [np.roll(order, -sign * distance) for sign in signs]
        return np.tile(order, len(signs)), np.concatenate(dst), np.concatenate(shard)

    def messages(distance: int) -> Columns:  # one shard over every hop
        src, dst, _ = sends(distance)
        return src, dst, np.ones_like(src)

    def signature(distance: int) -> Hashable:
        return distance <= ahead, distance <= back

    return [
        SendStep(partial(messages, distance), partial(sends, distance), partial(signature, distance))
        for distance in range(max(ahead, back), 0, -1)
    ]


def ring_subcollective(
    order: NDArray[np.integer], collective: Collective, method: str, is_mirrored: bool = False
) -> SubCollective:
    """Return the steps of `collective` around the cycle `order`. Data move in the direction of this order.

    is_mirrored: whether the reduce_scatter runs in the opposite direction, over the opposite links, so that one chunk's
                 reduce_scatter can overlap with another chunk's allgather
    """
    around = np.asarray(order, dtype=np.int64)
    mirror = ring_reduce_scatter(around[::-1].copy(), len(around) - 1)
    scatter = mirror if is_mirrored else ring_reduce_scatter(around, len(around) - 1)
    return of_parts(scatter, backwards(mirror), collective, method)


def _is_two_way(topology: Topology) -> bool:
    """Return whether every link has a link in the opposite direction."""
    src, dst = topology.links.src.astype(np.int64), topology.links.dst.astype(np.int64)
    return np.array_equal(np.unique(dst * topology.node_count + src), np.unique(src * topology.node_count + dst))


def hamiltonian_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around every cycle of `disjoint_cycles`, in both directions.

    Takes N - 1 steps per phase. Each direction of each cycle carries an equal part of the data, so the algorithm is
    bandwidth-optimal. On shiftedring:m, this is the baseline ShiftedRing of Zhao et al., section 8.2. Source: Swing
    paper, section 2.3.1.
    """
    parts = [
        ring_subcollective(direction, collective, "hamiltonian-ring")
        for order in disjoint_cycles(topology)
        for direction in (order, order[::-1])
    ]
    return CollectivePattern(topology, collective, "hamiltonian-ring", {}, tuple(parts))


def bfb_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return BFB on every cycle of `disjoint_cycles`. Takes floor(N / 2) steps per phase and is bandwidth-optimal.

    On shiftedring:m, this is the baseline ShiftedBFBRing. On a cycle of even length, half of the opposite rank's data
    arrives from each side. Source: Zhao et al., appendix F.1.
    """
    half = topology.compute_count // 2
    reaches = [(half, half)] if topology.compute_count % 2 else [(half, half - 1), (half - 1, half)]
    scatters = [
        ring_reduce_scatter(order, ahead, back) for order in disjoint_cycles(topology) for ahead, back in reaches
    ]
    parts = [of_parts(scatter, backwards(scatter), collective, "bfb-ring") for scatter in scatters]
    return CollectivePattern(topology, collective, "bfb-ring", {}, tuple(parts))


def count_boxes(topology: Topology) -> int:
    """Return the number of boxes of equal size into which the ranks are divided; 1 if there are no boxes.

    The part of a node id before the last dot is the name of its box: "2.5" is GPU 5 in box 2. A box's ranks must be
    consecutive.
    """
    names = [node_id.rpartition(".")[0] for node_id in topology.node_ids[: topology.compute_count]]
    boxes = list(dict.fromkeys(names))
    size = len(names) // len(boxes)
    return len(boxes) if names == [box for box in boxes for _ in range(size)] else 1


def box_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around as many rings as a box has ranks, each with an equal part.

    In each box, a ring follows a cycle of links between the box's ranks or, if there is no such cycle, the rank order
    over the box's switch. Then it continues in the next box. Ring c enters the first box at the cycle's c-th rank, so
    that every network port receives data from one ring and sends data of one ring. Every second box is crossed
    backwards, so that a ring enters a box on the rail on which it left the previous box. If the number of boxes is odd,
    this does not hold for the first box. Takes N - 1 steps per phase. Requires `count_boxes` >= 2.
    """
    boxes = count_boxes(topology)
    size = topology.compute_count // boxes
    links = [Link(link.src, link.dst) for link in topology.links if link.src < size and link.dst < size]
    box = Topology("box", tuple(map(str, range(size))), size, Links.build(links))
    cycle = hamiltonian_cycle(box) if links else None
    inside = np.arange(size) if cycle is None else cycle.astype(np.int64)
    starts, is_two_way = np.arange(boxes)[:, None] * size, _is_two_way(topology)
    parts = []
    for channel in range(size):
        order = starts + np.roll(inside, -channel)
        order[1::2] = order[1::2, ::-1]
        parts.append(ring_subcollective(order.ravel(), collective, "ring", is_two_way))
    return CollectivePattern(topology, collective, "ring", {"channels": size}, tuple(parts))


def ring(topology: Topology, collective: Collective, bidirectional: bool = False) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce along a Hamiltonian cycle, in N - 1 steps per phase.

    If there are switches and several boxes, the ring goes from box to box as in `box_ring`. Otherwise, if no cycle is
    found, it visits the ranks in order over shortest routes. If every hop has parallel links, shards are spread over
    them. If all links go both ways, a reduce_scatter runs in the opposite direction to the allgather, so that one
    chunk's reduce_scatter can overlap with another chunk's allgather.

    Args:
        bidirectional: whether the two halves of every shard travel in opposite directions (method biring). The ring
            then does not go from box to box as in `box_ring`.
    """
    if not bidirectional and topology.switch_count and count_boxes(topology) > 1:
        return box_ring(topology, collective)
    cycle, ranks, links = hamiltonian_cycle(topology), topology.compute_count, topology.links
    order = np.arange(ranks) if cycle is None else cycle.astype(np.int64)
    directions = [order, order[::-1]] if bidirectional else [order]
    is_two_way = _is_two_way(topology)
    used = [order, order[::-1]] if bidirectional or is_two_way else [order]
    keys = links.dst.astype(np.int64) * topology.node_count + links.src
    hops = np.concatenate([np.roll(each, -1) * topology.node_count + each for each in used])
    lanes = int((np.searchsorted(keys, hops, side="right") - np.searchsorted(keys, hops)).min())
    method = "biring" if bidirectional else "ring"
    each_part = [ring_subcollective(each, collective, method, is_two_way) for each in directions]
    parts = [part for part in each_part for _ in range(max(1, lanes))]
    return CollectivePattern(
        topology, collective, method, {"hamiltonian": cycle is not None}, tuple(parts), lanes=lanes
    )
