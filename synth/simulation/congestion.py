"""The congestion model: steps one after the other, each as long as its slowest message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
    """Largest load of a link on the routes of a step that have this number of hops and this latency.

    time_per_byte: load as a fraction of the vector, over the link's bandwidth in the topology's unit
    hops, latency_s: number of links of the route, and the sum of the topology's latencies along it
    """

    time_per_byte: Fraction
    hops: int
    latency_s: Fraction


LinkLoads = frozenset[LinkLoad]


@dataclass(frozen=True, slots=True)
class Congestion:
    """Costs of the steps of a traffic pattern, from which the time follows for any rate, latencies and size.

    steps:  loads of a step (without those that another load of the step exceeds in every field) -> number of such steps
    stream: time per byte of all steps together if they stream (kind "pipelined"), None if they follow one another
    """

    topology: Topology
    steps: Mapping[LinkLoads, int]
    stream: Fraction | None

    @property
    def time_per_byte(self) -> Fraction:
        """Time per byte of the vector without latencies, in 1 / bandwidth_unit."""
        if self.stream is not None:
            return self.stream
        largest = (
            (max((load.time_per_byte for load in loads), default=Fraction(0)), n) for loads, n in self.steps.items()
        )
        return sum((time * count for time, count in largest), Fraction(0))

    def seconds(self, model: NetworkModel, size_bytes: int, pipeline_chunks: int | None = None) -> Fraction:
        """Return the seconds for a vector of `size_bytes`.

        Stepped: a step ends when every message has had its share of the busiest link on its route and has travelled
        the whole route, so it takes alpha + max over messages of (load / bandwidth + latency). Exact if the
        messages of a step start together and each meets equal loads.

        Pipelined: P chunks flow through h levels in P + h - 1 rounds, all links at once; P is `pipeline_chunks`, or
        the best number.
        """
        scale = size_bytes / model.unit_bytes_per_s(self.topology)
        if self.stream is None:
            return sum((count * _step_s(loads, model, scale) for loads, count in self.steps.items()), Fraction(0))
        levels = sum(self.steps.values())
        first_byte_s = sum(
            (count * _step_s(loads, model, Fraction(0)) for loads, count in self.steps.items()), Fraction(0)
        )
        return first_byte_s + _stream_s(self.stream * scale, levels, model.alpha_s, pipeline_chunks)


def _step_s(loads: LinkLoads, model: NetworkModel, scale: Fraction) -> Fraction:
    seconds = (load.time_per_byte * scale + load.hops * model.per_hop_s + load.latency_s for load in loads)
    return model.alpha_s + max(seconds) if loads else Fraction(0)


def _stream_s(transfer_s: Fraction, levels: int, alpha_s: Fraction, chunks: int | None) -> Fraction:
    """Return the seconds after the first byte arrived: filling h - 1 levels, and alpha for every further chunk."""
    filling_s = max(0, levels - 1) * transfer_s
    if chunks is None and alpha_s == 0:
        return transfer_s
    root = isqrt(int(filling_s / alpha_s)) if chunks is None else 0
    candidates = (max(1, root), root + 1) if chunks is None else (chunks,)
    return transfer_s + min(filling_s / count + (count - 1) * alpha_s for count in candidates)


def congestion_of(traffic: Traffic) -> Congestion:
    """Return the exact costs of the steps of `traffic`. O(links of the routes of all different steps).

    A path through switches that act is as long as its routes together. The longest route of every round of switches is
    counted, so the sum may be too long if paths differ.
    """
    distances = _RouteDistances.of(traffic)
    if traffic.kind == "pipelined":
        loads = sum((traffic.link_amounts(step) for step in traffic.steps), np.zeros(len(traffic.topology.links), int))
        slowest = traffic.topology.links.longest_time(loads) / traffic.denominator
        return Congestion(traffic.topology, _step_counts(traffic, distances), slowest)
    return Congestion(traffic.topology, _step_counts(traffic, distances), None)


def _step_counts(traffic: Traffic, distances: _RouteDistances) -> Counter[LinkLoads]:
    by_step: dict[int, LinkLoads] = {}  # the same step object may occur many times
    counts: Counter[LinkLoads] = Counter()
    for step in traffic.steps:
        if len(step.route):
            loads = by_step.get(id(step))
            if loads is None:
                loads = by_step[id(step)] = _loads(traffic, distances, step) | _through_switches(
                    traffic, distances, step
                )
            counts[loads] += 1
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _RouteDistances:
    """The different lengths of routes: `kinds[of_route[r]]` is (hops, latency_s) of route r."""

    of_route: NDArray[np.int64]
    kinds: list[tuple[int, Fraction]]

    @staticmethod
    def of(traffic: Traffic) -> _RouteDistances:
        links, routes = traffic.topology.links, traffic.routes
        hops = np.diff(routes.offsets)
        if len(links.latencies_s) < 2:
            latency_s = links.latencies_s[0] if links.latencies_s else Fraction(0)
            lengths, of_route = np.unique(hops, return_inverse=True)
            return _RouteDistances(of_route, [(length, length * latency_s) for length in lengths.tolist()])
        along, parts = routes.latencies(links)
        pairs = list(zip(hops.tolist(), along.tolist(), strict=True))
        kinds = sorted(set(pairs))
        kind_of = {pair: index for index, pair in enumerate(kinds)}
        of_route = np.array([kind_of[pair] for pair in pairs], dtype=np.int64)
        return _RouteDistances(of_route, [(length, Fraction(latency, parts)) for length, latency in kinds])


def _loads(traffic: Traffic, distances: _RouteDistances, step: TrafficStep) -> LinkLoads:
    links, routes = traffic.topology.links, traffic.routes
    worst = np.zeros((len(links.bandwidths), len(distances.kinds)), dtype=np.int64)
    loads = np.zeros(len(links), dtype=np.int64)
    native.largest_loads(
        step.route,
        step.amount,
        routes.offsets,
        routes.link_ids,
        links.bandwidth_class,
        distances.of_route,
        loads,
        worst,
    )
    largest = [
        LinkLoad(
            Fraction(int(worst[index, kind]), traffic.denominator) / links.bandwidths[index], *distances.kinds[kind]
        )
        for index, kind in zip(*(axis.tolist() for axis in np.nonzero(worst)), strict=True)
    ]
    return _undominated(largest)


def _through_switches(traffic: Traffic, distances: _RouteDistances, step: TrafficStep) -> LinkLoads:
    """Return the longest path through switches that act, as a load of zero; empty if no switch acts."""
    if not traffic.is_in_network:
        return frozenset()
    ranks, src, dst = traffic.topology.compute_count, traffic.src(step), traffic.dst(step)
    hops, latency_s = 0, Fraction(0)
    reached = {int(node) for node in src if node < ranks}
    rows = list(zip(src.tolist(), dst.tolist(), distances.of_route[step.route].tolist(), strict=True))
    waiting = rows
    while now := [row for row in waiting if row[0] in reached]:
        lengths = [distances.kinds[kind] for _, _, kind in now]
        hops, latency_s = hops + max(hop for hop, _ in lengths), latency_s + max(late for _, late in lengths)
        waiting = [row for row in waiting if row[0] not in reached]
        reached = {dst for _, dst, _ in now if dst >= ranks}
    return frozenset({LinkLoad(Fraction(0), hops, latency_s)})


def _undominated(loads: list[LinkLoad]) -> LinkLoads:
    undominated: list[LinkLoad] = []
    for load in sorted(loads, reverse=True):
        if not any(other.hops >= load.hops and other.latency_s >= load.latency_s for other in undominated):
            undominated.append(load)
    return frozenset(undominated)
