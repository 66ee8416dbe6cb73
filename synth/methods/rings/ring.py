"""Ring allgather: every rank passes on, around a cycle, what it received in the step before; schedule and traffic.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; the
baseline of every library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

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
from chorale.synth.methods.rings.cycles import hamiltonian_cycle
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Routes, Schedule
from chorale.synth.schedule.traffic import Traffic, TrafficStep, merged_step
from chorale.synth.topology.topology import Topology, transpose_with_links


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """One way around: `order` of the ranks and, for each position, the route to the next one."""

    order: NDArray[np.int32]
    routes: NDArray[np.int64]


def ring_allgather(topology: Topology, bidirectional: bool, chunks: int | None = None) -> Schedule:
    """Return the ring allgather of `topology`, N - 1 steps.

    It runs along a Hamiltonian cycle where one is found, else in rank order over shortest routes. `both_ways`
    sends half of every shard each way around (biring). Where every hop of the cycle has parallel links, the
    shard is spread over them. Without `chunks`, the smallest number that balances these lanes.
    """
    cycle = hamiltonian_cycle(topology)
    lanes, paths = _all_lanes(topology, cycle, bidirectional)
    chunk_count = len(lanes) if chunks is None else chunks
    if chunk_count < 1:
        raise InvalidInput("chunks per shard must be at least 1", chunks, "choose a larger number")
    _check_size(topology, len(lanes))
    routes, new_route = _compact(topology, paths)
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
    """Return the links of every hop of the same rings, lane after lane: N paths for each lane."""
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
    """Return one lane per parallel link that all hops have (one where hops need longer routes); append to `paths`."""
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
    before = _searched(following, src, dst)
    path: list[int] = []
    node = dst
    while node != src:
        path.append(_parallel_links(topology, before[node], node)[0])
        node = before[node]
    return path[::-1]


def _searched(following: Sequence[Sequence[int]], src: int, dst: int) -> dict[int, int]:
    """Return the node from which breadth-first search came to each node first, up to `dst`; lower ids go first."""
    before, reached = {src: src}, [src]
    for node in reached:  # grows
        for target in following[node]:
            if target not in before:
                before[target] = node
                reached.append(target)
        if dst in before:
            break
    return before


def _followers(topology: Topology) -> list[list[int]]:
    """Return the nodes that each node has links to, in order."""
    order = np.lexsort((topology.links.dst, topology.links.src))
    first = np.searchsorted(topology.links.src[order], np.arange(topology.node_count + 1)).tolist()
    ends = topology.links.dst[order].tolist()
    return [ends[begin:end] for begin, end in pairwise(first)]


def _compact(topology: Topology, paths: list[list[int]]) -> tuple[Routes, NDArray[np.int64]]:
    """Return the route table and the route id of each path: link ids themselves where all links join ranks."""
    if _are_links(topology, paths):
        return Routes.direct(len(topology.links)), np.array([path[0] for path in paths])
    return Routes.of_paths(paths), np.arange(len(paths))


def _are_links(topology: Topology, paths: list[list[int]]) -> bool:
    """Whether all paths are single links, and the table of all links has none that ends at a switch."""
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
    """Return the traffic of method ring (`both_ways`: biring) with its default chunks, equal steps as one object.

    allgather goes along the lanes of `chorale.synth.methods.rings.ring`, reduce_scatter backwards along those of the
    transpose, allreduce does both. O(N) besides the cycle. Raises InvalidInput for other collectives.
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
    """Return the paths of all hops of the reduce_scatter, of the allgather, or of one after the other."""
    require_collective("a ring", collective, (ALLGATHER.name, REDUCE_SCATTER.name, ALLREDUCE.name))
    parts = []
    if collective.name in (CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE):
        transposed, original_link = transpose_with_links(topology)
        parts.append([original_link[path[::-1]].tolist() for path in ring_paths(transposed, both_ways)])
    if collective.name in (CollectiveName.ALLGATHER, CollectiveName.ALLREDUCE):
        parts.append(ring_paths(topology, both_ways))
    return parts
