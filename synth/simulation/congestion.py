"""Congestion model: steps run one after another, and each step takes as long as its slowest message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.schedule.traffic import Traffic, TrafficStep
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.topology import Topology


class LinkLoad(NamedTuple):
    """Largest link load on those routes of a step that have the given number of hops and latency.

    time_per_byte: load as a fraction of the vector, divided by the link's bandwidth in the topology's unit
    hops:          number of links of these routes
    latency_s:     sum of the link latencies along these routes, in seconds
    """

    time_per_byte: Fraction
    hops: int
    latency_s: Fraction


LinkLoads = frozenset[LinkLoad]


@dataclass(frozen=True, slots=True)
class Congestion:
    """Costs of the steps of a traffic pattern, from which the time for any network model and vector size is computed.

    steps:  maps each set of loads to the number of steps with these loads; loads smaller in every field are left out
    stream: time per byte of all steps together if the traffic is pipelined; None if steps run one after another
    """

    topology: Topology
    steps: Mapping[LinkLoads, int]
    stream: Fraction | None

    @property
    def time_per_byte(self) -> Fraction:
        """Time per byte of the vector without latencies, in 1 / bandwidth_unit of the topology."""
        if self.stream is not None:
            return self.stream
        largest = (
            (max((load.time_per_byte for load in loads), default=Fraction(0)), n) for loads, n in self.steps.items()
        )
        return sum((time * count for time, count in largest), Fraction(0))

    def seconds(self, model: NetworkModel, size_bytes: int, pipeline_chunks: int | None = None) -> Fraction:
        """Return the predicted time in seconds for a vector of `size_bytes`.

        Stepped traffic: a step takes alpha + max over messages of (load / bandwidth + latency), with the busiest link's
        load and the latency of each message's complete route. This is exact if all messages of a step start together
        and have equally loaded links.
        Pipelined traffic: P chunks pass h levels in P + h - 1 rounds, in which all links are busy at the same time. P
        is `pipeline_chunks`, or the number that gives the shortest time.
        """
        scale = size_bytes / model.unit_bytes_per_s(self.topology)

        def seconds_of_steps(scale: Fraction) -> Fraction:
            total = Fraction(0)
            for loads, count in self.steps.items():
                longest = [load.time_per_byte * scale + load.hops * model.per_hop_s + load.latency_s for load in loads]
                total += count * (model.alpha_s + max(longest)) if loads else 0
            return total

        if self.stream is None:
            return seconds_of_steps(scale)
        transfer_s = self.stream * scale
        first_byte_s = seconds_of_steps(Fraction(0))
        # Time in addition to `first_byte_s`: time to fill h - 1 levels, and alpha for every further chunk.
        filling_s = max(0, sum(self.steps.values()) - 1) * transfer_s
        if pipeline_chunks is None and model.alpha_s == 0:
            return first_byte_s + transfer_s
        root = isqrt(int(filling_s / model.alpha_s)) if pipeline_chunks is None else 0
        candidates = (max(1, root), root + 1) if pipeline_chunks is None else (pipeline_chunks,)
        return first_byte_s + transfer_s + min(filling_s / n + (n - 1) * model.alpha_s for n in candidates)


def congestion_of(traffic: Traffic) -> Congestion:
    """Return the exact costs of the traffic's steps. O(links on the routes of all distinct steps).

    If switches add or multicast, a path from rank to rank consists of several routes. The longest route to each level
    of switches is counted, so latencies may be overestimated if paths differ.
    """
    links, routes = traffic.topology.links, traffic.routes
    if len(routes):
        along, parts = routes.latencies(links)
    else:
        along, parts = np.zeros(0, dtype=object), 1
    pairs = list(zip(np.diff(routes.offsets).tolist(), along.tolist(), strict=True))
    kinds = sorted(set(pairs))
    distances = [(hops, Fraction(latency, parts)) for hops, latency in kinds]
    kind_of = {pair: index for index, pair in enumerate(kinds)}
    of_route = np.array([kind_of[pair] for pair in pairs], dtype=np.int64)
    by_step: dict[int, LinkLoads] = {}  # the same step object may occur many times
    counts: Counter[LinkLoads] = Counter()
    for step in traffic.steps:
        if len(step.route):
            if id(step) not in by_step:
                by_step[id(step)] = _loads(traffic, step, of_route, distances)
            counts[by_step[id(step)]] += 1
    slowest = None
    if traffic.kind == "pipelined":
        loads = sum((traffic.link_amounts(step) for step in traffic.steps), np.zeros(len(links), dtype=np.int64))
        slowest = links.longest_time(loads) / traffic.denominator
    return Congestion(traffic.topology, counts, slowest)


def _loads(
    traffic: Traffic, step: TrafficStep, of_route: NDArray[np.int64], distances: Sequence[tuple[int, Fraction]]
) -> LinkLoads:
    """Return the link loads of a step.

    of_route:  for each route, its index into `distances`
    distances: (hops, latency in seconds), one entry per kind of route
    """
    links, routes = traffic.topology.links, traffic.routes
    worst = np.zeros((len(links.bandwidths), len(distances)), dtype=np.int64)
    native.largest_loads(
        step.route, step.amount, routes.offsets, routes.link_ids, links.bandwidth_class, of_route,
        np.zeros(len(links), dtype=np.int64), worst,
    )  # fmt: skip
    largest = [
        LinkLoad(Fraction(int(worst[index, kind]), traffic.denominator) / links.bandwidths[index], *distances[kind])
        for index, kind in np.argwhere(worst).tolist()
    ]
    kept: list[LinkLoad] = []
    for load in sorted(largest, reverse=True):
        if not any(other.hops >= load.hops and other.latency_s >= load.latency_s for other in kept):
            kept.append(load)
    if traffic.is_in_network:  # a load of zero represents the longest path through switches that add or multicast
        ranks, src, dst = traffic.topology.compute_count, traffic.src(step), traffic.dst(step)
        hops, latency_s = 0, Fraction(0)
        reached = {int(node) for node in src if node < ranks}
        waiting = list(zip(src.tolist(), dst.tolist(), of_route[step.route].tolist(), strict=True))
        while now := [row for row in waiting if row[0] in reached]:
            hops += max(distances[kind][0] for _, _, kind in now)
            latency_s += max(distances[kind][1] for _, _, kind in now)
            waiting = [row for row in waiting if row[0] not in reached]
            reached = {target for _, target, _ in now if target >= ranks}
        kept.append(LinkLoad(Fraction(0), hops, latency_s))
    return frozenset(kept)
