"""Rings: in every step, each rank sends the data that it received in the previous step along a Hamiltonian cycle.

Cycles are found by merging cycle covers; sets of cycles without a common link use every port. Patterns run along one
cycle, along edge-disjoint cycles of a torus, and over boxes as in NCCL. Source: Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", 2009; the baseline of every library.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import (
    ALLGATHER,
    ALLREDUCE,
    REDUCE_SCATTER,
    Collective,
    CollectiveName,
    require_collective,
)
from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import Columns, SendStep, SubCollective, backwards, of_parts
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Routes, Schedule
from chorale.synth.schedule.traffic import Traffic, TrafficStep, merged_step
from chorale.synth.topology.families.grids import shifted_stride
from chorale.synth.topology.grammar import FamilyCall, parse_spec
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology, transpose_with_links


def hamiltonian_cycle(topology: Topology) -> NDArray[np.int32] | None:
    """Return the ranks in the order of a Hamiltonian cycle, or None if none is found.

    Rank order is used if it is such a cycle. Otherwise a cover of all ranks by cycles (a bipartite matching of ranks
    to successors) is merged by swapping the successors of two cycles, a -> b and c -> d into a -> d and c -> b, until
    one is left. If all links go both ways, a cycle may be reversed first. Only links between ranks count.
    Deterministic, about O(links * merges). It may miss a cycle that exists, because the problem is NP-complete.
    """
    ranks = topology.compute_count
    links = topology.links
    usable = (links.src < ranks) & (links.dst < ranks) & (links.src != links.dst)
    neighbours: list[set[int]] = [set() for _ in range(ranks)]
    for src, dst in zip(links.src[usable].tolist(), links.dst[usable].tolist(), strict=True):
        neighbours[src].add(dst)
    if all((rank + 1) % ranks in neighbours[rank] for rank in range(ranks)):
        return np.arange(ranks, dtype=np.int32)
    successor = _cycle_cover(neighbours)
    return None if successor is None else _patched(neighbours, successor)


def _cycle_cover(neighbours: list[set[int]]) -> list[int] | None:
    ends = [(rank, target) for rank, following in enumerate(neighbours) for target in sorted(following)]
    rank, target = np.array(ends, dtype=np.int32).reshape(-1, 2).T
    count = len(neighbours)
    graph = sparse.csr_array((np.ones(len(rank), dtype=np.int8), (rank, target)), shape=(count, count))
    matched = csgraph.maximum_bipartite_matching(graph, perm_type="column")
    return None if np.any(matched < 0) else [int(target) for target in matched]


@dataclass(slots=True)
class _Cover:
    """A cover of all ranks by cycles that is merged into one cycle."""

    neighbours: list[set[int]]
    successor: list[int]
    predecessor: list[int]
    cycle_of: list[int]
    members: dict[int, list[int]]

    def merge_at(self, first: int, reversible: bool) -> bool:
        """Insert another cycle between `first` and its successor if two links allow it; return whether they do."""
        for target in sorted(self.neighbours[first]):
            if self.cycle_of[target] == self.cycle_of[first]:
                continue
            following = self.successor[first]
            if reversible and following in self.neighbours[self.successor[target]]:
                self._reverse(self.cycle_of[target])
            other = self.predecessor[target]
            if following in self.neighbours[other]:
                self._splice(first, target, other, following)
                return True
        return False

    def _splice(self, first: int, target: int, other: int, following: int) -> None:
        self.successor[first], self.successor[other] = target, following
        self.predecessor[target], self.predecessor[following] = first, other
        pair = (self.cycle_of[first], self.cycle_of[target])
        small, large = sorted(pair, key=lambda label: (len(self.members[label]), label))
        for rank in self.members[small]:
            self.cycle_of[rank] = large
        self.members[large] += self.members.pop(small)

    def _reverse(self, label: int) -> None:
        for rank in self.members[label]:
            self.successor[rank], self.predecessor[rank] = self.predecessor[rank], self.successor[rank]


def _patched(neighbours: list[set[int]], successor: list[int]) -> NDArray[np.int32] | None:
    """Return the cycle that results from merging all cycles, or None if several are left that cannot be merged."""
    ranks = range(len(neighbours))
    cycle_of = [-1] * len(neighbours)
    for start in ranks:
        rank = start
        while cycle_of[rank] < 0:
            cycle_of[rank] = start
            rank = successor[rank]
    members = {label: [rank for rank in ranks if cycle_of[rank] == label] for label in sorted(set(cycle_of))}
    predecessor = [0] * len(neighbours)
    for rank, following in enumerate(successor):
        predecessor[following] = rank
    cover = _Cover(neighbours, successor, predecessor, cycle_of, members)
    reversible = all(src in neighbours[dst] for src in ranks for dst in neighbours[src])
    merged = True
    while merged and len(members) > 1:
        merged = any([cover.merge_at(first, reversible) for first in ranks])
    if len(members) > 1:
        return None
    order = [0]
    while successor[order[-1]] != 0:
        order.append(successor[order[-1]])
    return np.array(order, dtype=np.int32)


Order = NDArray[np.int64]


def disjoint_cycles(topology: Topology) -> list[Order]:
    """Return edge-disjoint Hamiltonian cycles as orders of ranks. They share no link in either direction. O(links).

    Two on a torus of r x c nodes (r, c >= 3) if r = c k for a whole k and gcd(r, c - 1) = 1, or with r and c exchanged
    (the condition of the Swing paper, section 2.3.1); also on grids with more links, such as HyperX, or whose rows and
    columns close over switches, as in HammingMesh. Two on shiftedring:m, one on networks of degree 2 such as rings.
    Raises InvalidInput for other networks.
    """
    shape = grid_shape(topology)
    if len(shape) == 2 and min(shape) >= 3:
        cycles = _of_torus(topology, shape[0], shape[1])
        return cycles if topology.switch_count or _are_linked(topology, cycles) else _refuse(topology)
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
    """Return whether the construction for a torus works: rows = columns k and gcd(rows, columns - 1) = 1."""
    return rows % columns == 0 and gcd(rows, columns - 1) == 1


def _of_torus(topology: Topology, rows: int, columns: int) -> list[Order]:
    if torus_has_disjoint_cycles(rows, columns):
        return [along * columns + across for along, across in _pair(rows, columns)]
    if torus_has_disjoint_cycles(columns, rows):
        return [across * columns + along for along, across in _pair(columns, rows)]
    return _refuse(topology)


def _are_linked(topology: Topology, cycles: list[Order]) -> bool:
    """Return whether all hops of `cycles` are links."""
    ranks = topology.compute_count
    hops = np.concatenate([cycle * ranks + np.roll(cycle, -1) for cycle in cycles])
    return bool(np.isin(hops, topology.links.src.astype(np.int64) * ranks + topology.links.dst).all())


def _pair(rows: int, columns: int) -> list[tuple[Order, Order]]:
    """Return two cycles as (row, column) of each node in turn.

    The first runs through a row except its last hop, then down to the next row. The second runs down a column as far
    as it is free, columns - 1 hops, and takes the hop of the row that the first left out: it moves columns - 1 rows
    down and one column to the right, so it meets every row before it returns if gcd(rows, columns - 1) = 1.
    """
    turn, position = np.divmod(np.arange(rows * columns), columns)
    return [(turn, (position - turn) % columns), ((turn * (columns - 1) + position) % rows, turn % columns)]


def _refuse(topology: Topology) -> list[Order]:
    rule = "edge-disjoint Hamiltonian rings need a torus of r x c nodes (r, c >= 3) with r = c k and gcd(r, c - 1) = 1"
    raise InvalidInput(rule, topology.spec, "use biring or bucket")


def ring_reduce_scatter(order: NDArray[np.int64]) -> list[SendStep]:
    """Return the reduce_scatter in which position p forwards the sum of the shard of position p - 1 - t in step t."""
    following, one = np.roll(order, -1), np.ones_like(order)

    def sends(step: int) -> Columns:
        return order, following, np.roll(order, 1 + step)

    return [  # every step sends one shard over every hop
        SendStep(lambda: (order, following, one), partial(sends, step), lambda: "ring")
        for step in range(len(order) - 1)
    ]


def meeting_reduce_scatter(order: NDArray[np.int64], ahead: int, back: int) -> list[SendStep]:
    """Return a reduce_scatter in which the sum for a position comes from `ahead` positions before and `back` after it.

    BFB on a ring, run backwards in time, in max(ahead, back) steps. Source: Zhao et al., "Efficient Direct-Connect
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
        SendStep(partial(messages, distance), partial(sends, distance), partial(signature, distance))
        for distance in range(max(ahead, back), 0, -1)
    ]


def ring_subcollective(order: NDArray[np.integer], collective: Collective, method: str) -> SubCollective:
    """Return the steps of `collective` around the cycle `order`, in one direction."""
    around = np.asarray(order, dtype=np.int64)
    gather = backwards(ring_reduce_scatter(around[::-1].copy()))
    return of_parts(ring_reduce_scatter(around), gather, collective, method)


def hamiltonian_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around every cycle of `disjoint_cycles`, in both directions.

    N - 1 steps per phase. Every direction of every cycle carries an equal part of the data: bandwidth-optimal.
    On shiftedring:m this is the baseline ShiftedRing of Zhao et al., section 8.2. Source: Swing paper, section 2.3.1.
    """
    parts = [
        ring_subcollective(direction, collective, "hamiltonian-ring")
        for order in disjoint_cycles(topology)
        for direction in (order, order[::-1])
    ]
    return CollectivePattern(topology, collective, "hamiltonian-ring", {}, tuple(parts))


def bfb_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return BFB on every cycle of `disjoint_cycles`: floor(N / 2) steps per phase, bandwidth-optimal.

    On shiftedring:m this is the baseline ShiftedBFBRing. On an even cycle, the data of the opposite rank come half from
    either side. Source: Zhao et al., appendix F.1.
    """
    half = topology.compute_count // 2
    reaches = [(half, half)] if topology.compute_count % 2 else [(half, half - 1), (half - 1, half)]
    scatters = [
        meeting_reduce_scatter(order, ahead, back) for order in disjoint_cycles(topology) for ahead, back in reaches
    ]
    parts = [of_parts(scatter, backwards(scatter), collective, "bfb-ring") for scatter in scatters]
    return CollectivePattern(topology, collective, "bfb-ring", {}, tuple(parts))


def count_boxes(topology: Topology) -> int:
    """Return the number of boxes of equal size, 1 if there are none.

    The box is the part of a rank's id before the last dot, as in "2.5" (GPU 5 of box 2). Its ranks are consecutive.
    """
    names = [node_id.rpartition(".")[0] for node_id in topology.node_ids[: topology.compute_count]]
    boxes = list(dict.fromkeys(names))
    size = len(names) // len(boxes)
    return len(boxes) if names == [box for box in boxes for _ in range(size)] else 1


def box_ring(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return reduce_scatter, allgather or allreduce around one ring per rank of a box, each with an equal part.

    Every ring crosses a box along a cycle of links between its ranks, or else in rank order over the box's switch, and
    continues in the next box. Ring c enters the first box at the c-th rank of the cycle, so that every network port
    receives one ring and sends one. Every second box is crossed backwards, so that a ring enters a box on the rail on
    which it left the last one (except between the last and the first of an odd number of boxes). N - 1 steps per
    phase. For `count_boxes` >= 2.
    """
    boxes = count_boxes(topology)
    size = topology.compute_count // boxes
    links = [Link(link.src, link.dst) for link in topology.links if link.src < size and link.dst < size]
    box = Topology("box", tuple(map(str, range(size))), size, Links.build(links))
    cycle = hamiltonian_cycle(box) if links else None
    inside = np.arange(size) if cycle is None else cycle.astype(np.int64)
    starts = np.arange(boxes)[:, None] * size
    parts = []
    for channel in range(size):
        order = starts + np.roll(inside, -channel)
        order[1::2] = order[1::2, ::-1]
        parts.append(ring_subcollective(order.ravel(), collective, "ring"))
    return CollectivePattern(topology, collective, "ring", {"channels": size}, tuple(parts))


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """One ring: `order` of the ranks and, for each position, the route to the next rank."""

    order: NDArray[np.int32]
    routes: NDArray[np.int64]


def ring_allgather(topology: Topology, bidirectional: bool, chunks: int | None = None) -> Schedule:
    """Return the ring allgather of `topology`, with N - 1 steps.

    It runs along a Hamiltonian cycle if one is found, otherwise in rank order over shortest routes. If every hop of
    the cycle has parallel links, shards are spread over them.

    Args:
        bidirectional: send half of every shard in either direction (biring).
        chunks: chunks per shard; None for the smallest number that balances directions and parallel links.
    """
    _check_size(topology, 1)  # before a cycle is looked for
    cycle = hamiltonian_cycle(topology)
    lanes, paths = _all_lanes(topology, cycle, bidirectional)
    chunk_count = len(lanes) if chunks is None else chunks
    if chunk_count < 1:
        raise InvalidInput("chunks per shard must be at least 1", chunks, "choose a larger number")
    _check_size(topology, len(lanes))
    if _are_links(topology, paths):
        routes, new_route = Routes.direct(len(topology.links)), np.array([path[0] for path in paths])
    else:
        routes, new_route = Routes.of_paths(paths), np.arange(len(paths))
    parts = [
        _lane_rows(lane, new_route, chunk_count * index // len(lanes), chunk_count * (index + 1) // len(lanes))
        for index, lane in enumerate(lanes)
    ]
    rows = np.concatenate([part for part in parts if part.size])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    steps = topology.compute_count - 1
    bounds = ColumnBounds(steps, len(routes), topology.compute_count, chunk_count)
    method = "biring" if bidirectional else "ring"
    parameters = {"chunks": chunks, "hamiltonian": cycle is not None}
    return Schedule(
        topology, ALLGATHER, "stepped", steps, chunk_count, bounds.pack(list(rows.T)), routes, method, parameters
    )


def ring_paths(topology: Topology, bidirectional: bool) -> list[list[int]]:
    """Return the links of every hop of these rings, lane after lane: N paths per lane."""
    return _all_lanes(topology, hamiltonian_cycle(topology), bidirectional)[1]


def _all_lanes(
    topology: Topology, cycle: NDArray[np.int32] | None, both_ways: bool
) -> tuple[list[_Lane], list[list[int]]]:
    order = np.arange(topology.compute_count, dtype=np.int32) if cycle is None else cycle
    directions = [order, order[::-1].copy()] if both_ways else [order]
    paths: list[list[int]] = []
    return [lane for direction in directions for lane in _lanes(topology, direction, paths)], paths


def _check_size(topology: Topology, lanes: int) -> None:
    transfers = topology.compute_count * (topology.compute_count - 1) * lanes
    if transfers > MAX_TRANSFERS:
        rule = f"a ring schedule holds at most {MAX_TRANSFERS} transfers"
        raise InvalidInput(rule, f"{transfers} for {topology.spec}", "use fewer nodes")


def _lanes(topology: Topology, order: NDArray[np.int32], paths: list[list[int]]) -> list[_Lane]:
    """Return one lane per parallel link of all hops, or one if hops need longer routes. Appends to `paths`."""
    hops = list(zip(order.tolist(), np.roll(order, -1).tolist(), strict=True))
    direct = [_parallel_links(topology, src, dst) for src, dst in hops]
    width = min(len(links) for links in direct)
    if width == 0:
        following = _followers(topology)
        table = [
            [links[0]] if links else _shortest_path(topology, following, *hop)
            for hop, links in zip(hops, direct, strict=True)
        ]
        paths.extend(table)
        return [_Lane(order, np.arange(len(paths) - len(table), len(paths)))]
    lanes = []
    for index in range(width):
        paths.extend([links[index]] for links in direct)
        lanes.append(_Lane(order, np.arange(len(paths) - len(direct), len(paths))))
    return lanes


def _parallel_links(topology: Topology, src: int, dst: int) -> list[int]:
    first, last = np.searchsorted(topology.links.dst, (dst, dst + 1))
    return [int(link) for link in range(first, last) if topology.links.src[link] == src]


def _shortest_path(topology: Topology, following: Sequence[Sequence[int]], src: int, dst: int) -> list[int]:
    """Return the links of a shortest path, by breadth-first search in which lower node ids come first."""
    before, reached = {src: src}, [src]
    for node in reached:  # grows
        for target in following[node]:
            if target not in before:
                before[target] = node
                reached.append(target)
        if dst in before:
            break
    path: list[int] = []
    while dst != src:
        path.append(_parallel_links(topology, before[dst], dst)[0])
        dst = before[dst]
    return path[::-1]


def _followers(topology: Topology) -> list[list[int]]:
    """Return the nodes that each node has links to, ascending."""
    order = np.lexsort((topology.links.dst, topology.links.src))
    first = np.searchsorted(topology.links.src[order], np.arange(topology.node_count + 1)).tolist()
    ends = topology.links.dst[order].tolist()
    return [ends[begin:end] for begin, end in pairwise(first)]


def _are_links(topology: Topology, paths: list[list[int]]) -> bool:
    """Return whether all paths are single links, and no link of the network ends at a switch."""
    return topology.switch_count == 0 and all(len(path) == 1 for path in paths)


def _lane_rows(lane: _Lane, new_route: NDArray[np.int64], lo: int, hi: int) -> NDArray[np.int64]:
    """Return rows (step, route, shard, lo, hi, reduce): in step t position i sends the shard of position i - t."""
    if lo == hi:
        return np.zeros((0, 6), dtype=np.int64)
    ranks = len(lane.order)
    step, position = np.divmod(np.arange(ranks * (ranks - 1)), ranks)
    shard = lane.order[(position - step) % ranks]
    route = new_route[lane.routes[position]]
    constant = np.ones_like(step)
    return np.stack([step, route, shard, lo * constant, hi * constant, 0 * constant], axis=1)


def ring_traffic(topology: Topology, collective: Collective, bidirectional: bool) -> Traffic:
    """Return the traffic of method ring (`bidirectional`: biring) with default chunks; equal steps are one object.

    allgather uses the lanes of `ring_allgather`, reduce_scatter those of the transpose backwards, allreduce both. O(N),
    and the search for a cycle. Raises InvalidInput for other collectives.
    """
    parts = _parts(topology, collective, bidirectional)
    paths = [path for part in parts for path in part]
    is_direct = _are_links(topology, paths)
    routes = Routes.direct(len(topology.links)) if is_direct else Routes.of_paths(paths)
    ranks = topology.compute_count
    lanes = [len(part) // ranks for part in parts]
    chunks = lcm(*lanes)
    steps: list[TrafficStep] = []
    first = 0
    for part, lane_count in zip(parts, lanes, strict=True):
        route = np.array([path[0] for path in part]) if is_direct else first + np.arange(len(part))
        steps += [merged_step(route, np.full(len(part), chunks // lane_count))] * (ranks - 1)
        first += len(part)
    return Traffic(topology, collective, "stepped", tuple(steps), ranks * chunks, routes)


def _parts(topology: Topology, collective: Collective, both_ways: bool) -> list[list[list[int]]]:
    """Return the paths of all hops of the reduce_scatter, of the allgather, or of both."""
    require_collective("a ring", collective, (ALLGATHER.name, REDUCE_SCATTER.name, ALLREDUCE.name))
    parts = []
    if collective.name in (CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE):
        transposed, original_link = transpose_with_links(topology)
        parts.append([original_link[path[::-1]].tolist() for path in ring_paths(transposed, both_ways)])
    if collective.name in (CollectiveName.ALLGATHER, CollectiveName.ALLREDUCE):
        parts.append(ring_paths(topology, both_ways))
    return parts
