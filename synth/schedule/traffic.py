"""Traffic: how much of the vector crosses which route in which step, without saying which part of it.

A schedule has a row for every shard of every transfer, N (N - 1) and more; a simulator of links needs only the sums,
which some methods know without the rows: 16,384 nodes take seconds. Also the deficiencies of a collective by its
traffic. Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", 2024, section 2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import log2

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.schedule.schedule import AnySchedule, Kind, Routes, Schedule, Transfers
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule
from chorale.synth.topology.topology import Topology, transpose_with_links


@dataclass(frozen=True, slots=True, eq=False)
class TrafficStep:
    """The messages of one step: `amount[i]` is sent over `route[i]`, as a numerator over `Traffic.denominator`.

    route is int32, sorted, each route at most once; amount is int64, positive. Steps that are equal may be one
    object, so that thousands of them cost the memory and, for a caller that caches by identity, the time of one.
    """

    route: NDArray[np.int32]
    amount: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What a collective on a topology sends, step by step.

    kind:        "stepped": a rank sends in step t what it held before t; "pipelined": trees that stream, `steps` by
                 depth
    steps:       one entry per step (or level of the trees); an entry may be empty
    denominator: an amount a is a / denominator of the vector M
    barriers:    steps at which a new stream begins, see `Schedule.barriers`
    routes:      the paths of links that `TrafficStep.route` names; their ends are the sender and the receiver
    """

    topology: Topology
    collective: Collective
    kind: Kind
    steps: tuple[TrafficStep, ...]
    denominator: int
    routes: Routes
    barriers: tuple[int, ...] = ()

    def streams(self) -> Iterator[Traffic]:
        """Yield what runs one after the other: the streams of pipelined traffic, a stepped pattern as a whole."""
        for first, last in pairwise((0, *self.barriers, len(self.steps))):
            yield replace(self, steps=self.steps[first:last], barriers=())

    @property
    def is_in_network(self) -> bool:
        """Whether switches act, which send in the step in which they receive. O(routes)."""
        links, ranks = self.topology.links, self.topology.compute_count
        ends = (self.routes.sources(links), self.routes.destinations(links)) if len(self.routes) else ()
        return any(bool((end >= ranks).any()) for end in ends)

    def src(self, step: TrafficStep) -> NDArray[np.int32]:
        """Return the sending rank of each message of `step`."""
        return self.routes.sources(self.topology.links)[step.route]

    def dst(self, step: TrafficStep) -> NDArray[np.int32]:
        """Return the receiving rank of each message of `step`."""
        return self.routes.destinations(self.topology.links)[step.route]

    def link_amounts(self, step: TrafficStep) -> NDArray[np.int64]:
        """Return int64[links]: the sum of amounts of `step` that cross each link. O(links + hops)."""
        starts = self.routes.offsets[step.route]
        hops = self.routes.offsets[step.route + 1] - starts
        first_hop = np.cumsum(hops) - hops
        position = np.arange(hops.sum()) + np.repeat(starts - first_hop, hops)
        amounts = np.zeros(len(self.topology.links), dtype=np.int64)
        np.add.at(amounts, self.routes.link_ids[position], np.repeat(step.amount, hops))
        return amounts


def merged_step(route: NDArray[np.integer], amount: NDArray[np.integer]) -> TrafficStep:
    """Return the step in which messages over the same route are added up. O(messages log messages)."""
    order = np.argsort(route, kind="stable")
    ordered = np.asarray(route)[order].astype(np.int32)
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    sums = np.add.reduceat(np.asarray(amount)[order].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
    return TrafficStep(ordered[first], sums)


def traffic_of(schedule: AnySchedule) -> Traffic:
    """Return the traffic of any schedule.

    Its rows are added up per step and route, O(rows log rows); in symmetric form without writing them out,
    O(steps * links).
    """
    if isinstance(schedule, SymmetricSchedule) and schedule.kind == "stepped":
        # What rank 0 receives over each in-link, on all images of that link.
        links = schedule.topology.links
        steps: list[TrafficStep] = []
        if isinstance(schedule.scatter, SymmetricGather):
            scale = schedule.chunks_per_shard // schedule.scatter.chunks_per_shard
            _, original_link = transpose_with_links(schedule.topology)
            backwards = reversed(list(_link_amounts(schedule.scatter)))
            steps += [merged_step(original_link[link], amount * scale) for link, amount in backwards]
        if isinstance(schedule.gather, SymmetricGather):
            scale = schedule.chunks_per_shard // schedule.gather.chunks_per_shard
            steps += [merged_step(link, amount * scale) for link, amount in _link_amounts(schedule.gather)]
        denominator = schedule.chunks_per_shard * schedule.topology.compute_count
        routes = Routes.direct(len(links))
        return Traffic(schedule.topology, schedule.collective, schedule.kind, tuple(steps), denominator, routes)
    return _column_traffic(schedule.expand())


def _column_traffic(schedule: Schedule) -> Traffic:
    rows = schedule.transfers
    key = rows.step.astype(np.int64) * len(schedule.routes) + rows.route
    part = schedule.chunk_part
    size = (rows.hi.astype(np.int64) - rows.lo) * part.numerator
    return Traffic(
        schedule.topology, schedule.collective, schedule.kind, tuple(_steps(schedule, key, size)),
        part.denominator, schedule.routes, schedule.barriers,
    )  # fmt: skip


def _steps(schedule: Schedule, key: NDArray[np.int64], size: NDArray[np.int64]) -> Iterator[TrafficStep]:
    order = np.argsort(key, kind="stable")
    ordered, ordered_size = key[order], size[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    step, route = np.divmod(ordered[first], max(1, len(schedule.routes)))
    sums = np.add.reduceat(ordered_size, first) if len(first) else np.zeros(0, dtype=np.int64)
    bounds = np.searchsorted(step, np.arange(schedule.steps + 1))
    for low, high in pairwise(bounds.tolist()):
        yield TrafficStep(route[low:high].astype(np.int32), sums[low:high])


def _link_amounts(part: SymmetricGather) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield for each step the links that carry anything, and how many chunks each carries."""
    base_link = part.base_links()
    for load in part.loads():
        of_link = load[base_link]
        used = np.flatnonzero(of_link)
        yield used, of_link[used]


@dataclass(frozen=True, slots=True)
class Deficiencies:
    """Factors over the ideal, so that a collective takes alpha log2 N latency + optimum bandwidth congestion.

    steps, ranks: what `latency` is made of
    bandwidth:    Psi: time of the bytes that ranks send over their busiest port, as if nobody shared links, over the
                  least possible time (2 (N - 1) / N of the vector over all ports of a rank for allreduce)
    congestion:   Xi: how much longer the bytes take because messages share links, over all steps
    congestion_sum: the factors by which sharing slows down single steps, added up; what table 2 lists as the
                  congestion of latency-optimal algorithms (whose steps are equally large)
    """

    steps: int
    ranks: int
    bandwidth: Fraction
    congestion: Fraction
    congestion_sum: Fraction

    @property
    def latency(self) -> float:
        """Lambda: steps over log2 N, the least number in which data of N ranks can meet one port at a time."""
        return self.steps / log2(self.ranks)


def deficiencies(traffic: Traffic) -> Deficiencies:
    """Return the deficiencies of `traffic` on its topology, exact. O(messages and hops of different steps).

    Where every rank uses all its ports equally and no link is shared, bandwidth and congestion are 1. Their
    product is the byte time over the least possible one, on any topology; N >= 2. A stream of trees counts as one
    step, in which all levels send at once.
    """
    steps = (
        traffic.steps if traffic.kind == "stepped" else tuple(_together(stream.steps) for stream in traffic.streams())
    )
    times_of: dict[int, tuple[Fraction, Fraction]] = {}
    for step in steps:
        if id(step) not in times_of:
            times_of[id(step)] = _times(traffic, step)
    times = [times_of[id(step)] for step in steps]
    alone, shared = (sum(column, Fraction(0)) for column in zip(*times, strict=True))
    slowdowns = sum((slow / fast for fast, slow in times if fast), Fraction(0))
    return Deficiencies(
        len(traffic.steps), traffic.topology.compute_count, alone / _least_time(traffic), shared / alone, slowdowns
    )


_VECTORS: Mapping[CollectiveName, int] = {CollectiveName.ALLREDUCE: 2}


def _least_time(traffic: Traffic) -> Fraction:
    """Return a time per byte that no algorithm beats: what a rank must send or receive over all its links."""
    topology, name = traffic.topology, traffic.collective.name
    bandwidth, scale = topology.links.integer_bandwidths()
    usable = topology.links.src != topology.links.dst
    out = np.zeros(topology.node_count, dtype=np.int64)
    np.add.at(out, topology.links.src[usable], bandwidth[usable])
    ports = Fraction(int(out[: topology.compute_count].min()), scale)
    if traffic.collective.is_rooted:
        return 1 / ports
    return _VECTORS.get(name, 1) * Fraction(topology.compute_count - 1, topology.compute_count) / ports


def _together(steps: tuple[TrafficStep, ...]) -> TrafficStep:
    return merged_step(np.concatenate([step.route for step in steps]), np.concatenate([step.amount for step in steps]))


def _times(traffic: Traffic, step: TrafficStep) -> tuple[Fraction, Fraction]:
    """Return (time of the busiest port by what its own rank sends, time of the busiest link) per byte of the vector."""
    first_link = traffic.routes.link_ids[traffic.routes.offsets[step.route]]
    first_hop_loads = np.zeros(len(traffic.topology.links), dtype=np.int64)
    np.add.at(first_hop_loads, first_link, step.amount)
    links = traffic.topology.links
    times = links.longest_time(first_hop_loads), links.longest_time(traffic.link_amounts(step))
    return times[0] / traffic.denominator, times[1] / traffic.denominator


Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DataPath:
    """A path or tree that some of the data of a rank take.

    share:   the fraction of the data on this path; 1 where chunks are not distinguished
    reduces: whether its transfers add to sums, or copy
    step, route: of each of its edges, by step (in trees: by depth)
    """

    share: Fraction
    reduces: bool
    step: Indices
    route: Indices


def data_paths(schedule: Schedule, rank: int) -> tuple[DataPath, ...]:
    """Return the paths of the data of `rank` (or, where the collective has a root, of its vector): sums first.

    Trees that stream are distinguished, the largest share first; chunks that cross the same nodes at the same depths
    are one tree, so there may be fewer than `trees_per_root`. In stepped schedules and in an alltoall all chunks
    make one path, two with sums. O(rows + chunks of a shard * rows of a shard).
    """
    rows = schedule.transfers.select(np.flatnonzero(_is_of(schedule, rank)))
    own = schedule.collective.is_alltoall or schedule.collective.members is not None
    streams = schedule.kind == "pipelined" and not own
    sizes = schedule.collective.sizes
    whole = schedule.chunks_per_shard if sizes is None or own else sizes[rank]
    route, counts = _one_for_each_path(schedule)[rows.route], Counter[tuple[bool, tuple[int, ...]]]()
    edge = rows.step.astype(np.int64) * len(schedule.routes) + route
    for first, last in _runs(rows) if streams else [(0, whole)]:
        covers = (rows.lo < last) & (rows.hi > first)
        for reduces in (True, False):
            if len(edges := np.unique(edge[covers & (rows.reduce == reduces)])):
                counts[reduces, tuple(edges.tolist())] += last - first
    ordered = sorted(counts.items(), key=lambda path: (not path[0][0], -path[1], path[0][1]))
    return tuple(
        DataPath(Fraction(chunks, whole), reduces, *np.divmod(np.array(edges), len(schedule.routes)))
        for (reduces, edges), chunks in ordered
    )


def _is_of(schedule: Schedule, rank: int) -> NDArray[np.bool_]:
    shard = schedule.transfers.shard
    if schedule.collective.is_alltoall:
        return np.asarray(shard // schedule.topology.compute_count == rank)
    if (members := schedule.collective.members) is not None:
        return np.asarray(np.array([ranks[0] for ranks in members])[shard] == rank)
    return np.asarray(shard == (0 if schedule.collective.is_rooted else rank))


def _runs(rows: Transfers) -> Iterator[tuple[int, int]]:
    """Yield the intervals of chunks that all rows treat alike."""
    borders = np.unique(np.concatenate([rows.lo, rows.hi])).tolist()
    yield from pairwise(borders)


def _one_for_each_path(schedule: Schedule) -> Indices:
    """Return for each route the first one that crosses the same nodes: parallel links make no other path."""
    links, routes = schedule.topology.links, schedule.routes
    first: dict[tuple[int, ...], int] = {}
    same = np.zeros(len(routes), dtype=np.int64)
    for route in range(len(routes)):
        path = routes.path(route)
        same[route] = first.setdefault((int(links.src[path[0]]), *links.dst[path].tolist()), route)
    return same
