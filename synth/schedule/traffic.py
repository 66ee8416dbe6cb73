"""Computes a collective's traffic: how much data is sent over each route in each step, regardless of the content.

Simulators only need these sums. Some methods compute them without creating a schedule, which for N ranks would have
at least N (N - 1) rows. With these methods, 16,384 nodes take only seconds. The deficiencies (overheads compared
with an ideal network) are also computed from the traffic.

Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", 2024, section 2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import log2

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.schedule.schedule import AnySchedule, Kind, Routes, Schedule
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule
from chorale.synth.topology.topology import Topology, transpose_with_links


@dataclass(frozen=True, slots=True, eq=False)
class TrafficStep:
    """The messages of one step: `amount[i]` / `Traffic.denominator` of the vector is sent over `route[i]`.

    route:  int32, ascending, without repetition
    amount: int64, positive

    Identical steps may be the same object, which saves memory and allows callers to cache results per object.
    """

    route: NDArray[np.int32]
    amount: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """A collective's messages on a topology, step by step.

    kind:        "stepped" if a rank sends data in step t that it had before t, "pipelined" if data stream along trees,
                 with one step per depth
    steps:       one entry per step (or per level of the trees); an entry may be empty
    denominator: an amount a means the fraction a / denominator of the vector
    barriers:    steps at which a new stream begins (see `Schedule.barriers`)
    routes:      paths of links to which `TrafficStep.route` refers; they lead from the sender to the receiver
    """

    topology: Topology
    collective: Collective
    kind: Kind
    steps: tuple[TrafficStep, ...]
    denominator: int
    routes: Routes
    barriers: tuple[int, ...] = ()

    def streams(self) -> Iterator[Traffic]:
        """Yield the traffic of each stream in execution order. Stepped traffic is yielded unchanged."""
        for first, last in pairwise((0, *self.barriers, len(self.steps))):
            yield replace(self, steps=self.steps[first:last], barriers=())

    @property
    def is_in_network(self) -> bool:
        """Whether switches multicast or reduce data. These send in the step in which they receive. O(routes)."""
        return self.routes.end_at_switches(self.topology)

    def src(self, step: TrafficStep) -> NDArray[np.int32]:
        return self.routes.sources(self.topology.links)[step.route]

    def dst(self, step: TrafficStep) -> NDArray[np.int32]:
        return self.routes.destinations(self.topology.links)[step.route]

    def link_amounts(self, step: TrafficStep) -> NDArray[np.int64]:
        """Return int64[links]: data on each link in `step`; the unit is vector / `denominator`. O(links + hops)."""
        hops, link_ids = self.routes.hops_of(step.route)
        amounts = np.zeros(len(self.topology.links), dtype=np.int64)
        np.add.at(amounts, link_ids, np.repeat(step.amount, hops))
        return amounts


def merged_step(route: NDArray[np.integer], amount: NDArray[np.integer]) -> TrafficStep:
    """Return a step in which all messages over the same route are combined into one. O(messages log messages)."""
    order = np.argsort(route, kind="stable")
    ordered = np.asarray(route)[order].astype(np.int32)
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    sums = np.add.reduceat(np.asarray(amount)[order].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
    return TrafficStep(ordered[first], sums)


def traffic_of(schedule: AnySchedule) -> Traffic:
    """Return how much data `schedule` sends over each route in each step.

    Takes O(rows log rows), to add up the rows of each step and route. A stepped schedule in symmetric form is not
    expanded; it takes O(steps * links).
    """
    steps: list[TrafficStep] = []
    if isinstance(schedule, SymmetricSchedule) and schedule.kind == "stepped":
        original_link = transpose_with_links(schedule.topology)[1]
        for part in schedule.parts:
            assert isinstance(part, SymmetricGather)
            scale = schedule.chunks_per_shard // part.chunks_per_shard
            loads, base_link = part.loads() * scale, part.base_links()
            for of_rank_0 in loads[::-1] if part is schedule.scatter else loads:
                load = of_rank_0[base_link]  # a link has the same load as the in-link of rank 0 that is mapped to it
                used = np.flatnonzero(load)
                steps.append(merged_step(original_link[used] if part is schedule.scatter else used, load[used]))
        denominator = schedule.chunks_per_shard * schedule.topology.compute_count
        routes = Routes.direct(len(schedule.topology.links))
        return Traffic(schedule.topology, schedule.collective, schedule.kind, tuple(steps), denominator, routes)
    expanded = schedule.expand()
    rows, part_of_vector = expanded.transfers, expanded.chunk_part
    key = rows.step.astype(np.int64) * len(expanded.routes) + rows.route
    order = np.argsort(key, kind="stable")
    ordered, size = key[order], (rows.hi.astype(np.int64) - rows.lo)[order] * part_of_vector.numerator
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    step, route = np.divmod(ordered[first], max(1, len(expanded.routes)))
    sums = np.add.reduceat(size, first) if len(first) else np.zeros(0, dtype=np.int64)
    bounds = np.searchsorted(step, np.arange(expanded.steps + 1))
    for low, high in pairwise(bounds.tolist()):
        steps.append(TrafficStep(route[low:high].astype(np.int32), sums[low:high]))
    return Traffic(
        expanded.topology, expanded.collective, expanded.kind, tuple(steps),
        part_of_vector.denominator, expanded.routes, expanded.barriers,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deficiencies:
    """The factors by which latency, bandwidth and congestion make a collective slower than on an ideal network.

    The collective takes alpha log2 N * latency + T * bandwidth * congestion; T is the least possible bandwidth time.
    steps, ranks: number of steps and of ranks N, from which `latency` is computed
    bandwidth:    Psi, the time that ranks need to send their bytes over their busiest port if no links are shared,
                  divided by the least possible time (for allreduce: to send 2 (N - 1) / N of the vector over all ports)
    congestion:   Xi, the factor by which link sharing increases this time, over all steps
    congestion_sum: sum over steps of the factor by which link sharing slows down the step; the paper's table 2 lists
                  this number as the congestion of latency-optimal algorithms, which have equally large steps
    """

    steps: int
    ranks: int
    bandwidth: Fraction
    congestion: Fraction
    congestion_sum: Fraction

    @property
    def latency(self) -> float:
        """Lambda: steps / log2 N. N ranks with one port each need at least log2 N steps to combine their data."""
        return self.steps / log2(self.ranks)


def deficiencies(traffic: Traffic) -> Deficiencies:
    """Return the exact deficiencies of `traffic` on its topology, for N >= 2 ranks.

    Bandwidth and congestion are 1 if every rank uses all its ports equally and no link is shared. On any topology,
    their product is the time to transmit all bytes, divided by the least possible time. A pipelined stream counts as
    one step, because all tree levels send at the same time. O(messages and hops of all distinct steps).
    """
    links, routes = traffic.topology.links, traffic.routes
    steps = list(traffic.steps)
    if traffic.kind == "pipelined":
        steps = [
            merged_step(
                *(np.concatenate([getattr(step, name) for step in stream.steps]) for name in ("route", "amount"))
            )
            for stream in traffic.streams()
        ]
    times_of: dict[int, tuple[Fraction, Fraction]] = {}  # times: busiest port (own data only), busiest link
    for step in steps:
        if id(step) not in times_of:
            of_first_hops = np.zeros(len(links), dtype=np.int64)
            np.add.at(of_first_hops, routes.link_ids[routes.offsets[step.route]], step.amount)
            loads = of_first_hops, traffic.link_amounts(step)
            times_of[id(step)] = links.longest_time(loads[0]), links.longest_time(loads[1])
    times = [times_of[id(step)] for step in steps]
    alone, shared = (sum(column, Fraction(0)) / traffic.denominator for column in zip(*times, strict=True))
    slowdowns = sum((slow / fast for fast, slow in times if fast), Fraction(0))
    # Every algorithm takes at least as long as the slowest rank needs to send its data over all its links.
    bandwidth, scale = links.integer_bandwidths()
    usable, ranks = links.src != links.dst, traffic.topology.compute_count
    out = np.zeros(traffic.topology.node_count, dtype=np.int64)
    np.add.at(out, links.src[usable], bandwidth[usable])
    least = Fraction(scale, int(out[:ranks].min()))
    if not traffic.collective.is_rooted:
        least *= Fraction(ranks - 1, ranks) * (2 if traffic.collective.name == CollectiveName.ALLREDUCE else 1)
    return Deficiencies(len(traffic.steps), ranks, alone / least, shared / alone, slowdowns)


Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DataPath:
    """A path or tree along which some or all of a rank's data move.

    share:   fraction of the rank's data that take this path; 1 if a path combines the transfers of all chunks
    reduces: whether receivers on this path add the data to their own; if not, they store the data
    step, route: step (or depth in a tree) and route of each edge, ordered by step
    """

    share: Fraction
    reduces: bool
    step: Indices
    route: Indices


def data_paths(schedule: Schedule, rank: int) -> tuple[DataPath, ...]:
    """Return the paths along which the data of `rank` move. If the collective has a root, these are the root's data.

    The result lists paths on which data are reduced, then paths on which they are copied. A pipelined schedule has one
    path per tree, sorted by share. Trees that cross the same nodes at the same depths count as one, so there may be
    fewer than `trees_per_root` paths. A stepped schedule or an alltoall has at most one path of either kind. O(rows +
    chunks of a shard * rows of a shard).
    """
    collective, links, routes = schedule.collective, schedule.topology.links, schedule.routes
    if collective.is_alltoall:
        owner = schedule.transfers.shard // schedule.topology.compute_count
    elif collective.members is not None:
        owner = np.array([ranks[0] for ranks in collective.members])[schedule.transfers.shard]
    else:
        owner = schedule.transfers.shard.astype(np.int64)
        owner += rank if collective.is_rooted else 0  # shard 0 stands for a root's vector
    rows = schedule.transfers.select(owner == rank)
    own = collective.is_alltoall or collective.members is not None
    whole = schedule.chunks_per_shard if collective.sizes is None or own else collective.sizes[rank]
    intervals = [(0, whole)]
    if schedule.kind == "pipelined" and not own:  # chunk intervals that no row splits
        intervals = list(pairwise(np.unique(np.concatenate([rows.lo, rows.hi])).tolist()))
    first_of: dict[tuple[int, ...], int] = {}
    same = np.zeros(len(routes), dtype=np.int64)  # the first route over the same nodes, perhaps over parallel links
    for route in range(len(routes)):
        path = routes.path(route)
        same[route] = first_of.setdefault((int(links.src[path[0]]), *links.dst[path].tolist()), route)
    edge = rows.step.astype(np.int64) * len(routes) + same[rows.route]
    counts = Counter[tuple[bool, tuple[int, ...]]]()
    for first, last in intervals:
        covers = (rows.lo < last) & (rows.hi > first)
        for reduces in (True, False):
            if len(edges := np.unique(edge[covers & (rows.reduce == reduces)])):
                counts[reduces, tuple(edges.tolist())] += last - first
    ordered = sorted(counts.items(), key=lambda path: (not path[0][0], -path[1], path[0][1]))
    return tuple(
        DataPath(Fraction(chunks, whole), reduces, *np.divmod(np.array(edges), len(routes)))
        for (reduces, edges), chunks in ordered
    )
