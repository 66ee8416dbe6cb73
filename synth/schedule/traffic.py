"""Traffic: how much of the vector crosses which route in which step, without saying which part of it.

A schedule names every shard of every transfer, N (N - 1) rows and more; a simulator of links needs only their
sums. Methods that know their sums make traffic without ever making the rows: 16,384 nodes take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import AnySchedule, Kind, Schedule
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose_with_links


@dataclass(frozen=True, slots=True, eq=False)
class TrafficStep:
    """The messages of one step: `amount[i]` is sent over `route[i]`, as a numerator over `Traffic.denominator`.

    route is int32, sorted, each route at most once; amount is int64, positive. Steps that are equal may be one
    object, so that thousands of them cost the memory and, for who remembers by identity, the time of one.
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
    if isinstance(schedule, SymmetricSchedule):
        return _symmetric_traffic(schedule)
    return _column_traffic(schedule.expand())


def _column_traffic(schedule: Schedule) -> Traffic:
    rows = schedule.transfers
    key = rows.step.astype(np.int64) * len(schedule.routes) + rows.route
    size = rows.hi.astype(np.int64) - rows.lo
    return Traffic(
        schedule.topology, schedule.collective, schedule.kind, tuple(_steps(schedule, key, size)),
        schedule.chunks_per_shard * schedule.topology.compute_count, schedule.routes, schedule.barriers,
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


def _symmetric_traffic(schedule: SymmetricSchedule) -> Traffic:
    """Return what rank 0 receives over each in-link, on all images of that link."""
    links = schedule.topology.links
    steps: list[TrafficStep] = []
    if schedule.scatter is not None:
        scale = schedule.chunks_per_shard // schedule.scatter.chunks_per_shard
        _, original_link = transpose_with_links(schedule.topology)
        backwards = reversed(list(_link_amounts(schedule.scatter)))
        steps += [merged_step(original_link[link], amount * scale) for link, amount in backwards]
    if schedule.gather is not None:
        scale = schedule.chunks_per_shard // schedule.gather.chunks_per_shard
        steps += [merged_step(link, amount * scale) for link, amount in _link_amounts(schedule.gather)]
    denominator = schedule.chunks_per_shard * schedule.topology.compute_count
    routes = Routes.direct(len(links))
    return Traffic(schedule.topology, schedule.collective, schedule.kind, tuple(steps), denominator, routes)


def _link_amounts(part: SymmetricGather) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield for each step the links that carry anything, and how many chunks each carries."""
    base_link = part.base_links()
    for load in part.loads():
        of_link = load[base_link]
        used = np.flatnonzero(of_link)
        yield used, of_link[used]
