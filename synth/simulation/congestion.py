"""The congestion model: steps one after the other, each as long as its slowest message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt, lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled
from chorale.synth.schedule.traffic import Traffic, TrafficStep
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology


class LinkLoad(NamedTuple):
    """The heaviest burden of a message of a kind: the load of a link on its route, and how far it goes.

    time_per_byte: load as a part of the vector, over the link's bandwidth in the topology's unit
    hops, latency_s: links of the route, and the topology's own latencies along it
    """

    time_per_byte: Fraction
    hops: int
    latency_s: Fraction


LinkLoads = frozenset[LinkLoad]


@dataclass(frozen=True, slots=True)
class Congestion:
    """What the steps of a traffic pattern cost, for any rate, latencies and size.

    steps:  the burdens of a step that no other burden of it exceeds in everything -> number of such steps
    stream: burden of all steps together where they stream (kind "pipelined"), None where they follow one another
    """

    topology: Topology
    steps: Mapping[LinkLoads, int]
    stream: Fraction | None

    def seconds(self, model: NetworkModel, size_bytes: int, pipeline_chunks: int | None = None) -> Fraction:
        """Return the seconds for a vector of `size_bytes`.

        Stepped: a step ends when every message has had its part of the busiest link on its route and has come all
        the way, so it takes alpha + max over messages of (load / bandwidth + latency). Exact where the messages of
        a step start together and each meets equal loads.

        Pipelined: P chunks flow through h levels in P + h - 1 rounds, all links at once; P is `pipeline_chunks`, or
        the best number.
        """
        pace = size_bytes / model.unit_bytes_per_s(self.topology)
        if self.stream is None:
            return sum((count * _step_s(burdens, model, pace) for burdens, count in self.steps.items()), Fraction(0))
        levels = sum(self.steps.values())
        way = sum((count * _step_s(burdens, model, Fraction(0)) for burdens, count in self.steps.items()), Fraction(0))
        return way + _stream_s(self.stream * pace, levels, model.alpha_s, pipeline_chunks)


def _step_s(burdens: LinkLoads, model: NetworkModel, pace: Fraction) -> Fraction:
    longest = (one.time_per_byte * pace + one.hops * model.per_hop_s + one.latency_s for one in burdens)
    return model.alpha_s + max(longest) if burdens else Fraction(0)


def _stream_s(transfer_s: Fraction, levels: int, alpha_s: Fraction, chunks: int | None) -> Fraction:
    """Return the seconds besides the way of the first byte: filling h - 1 levels, and alpha of every further chunk."""
    filling_s = max(0, levels - 1) * transfer_s
    if chunks is None and alpha_s == 0:
        return transfer_s
    root = isqrt(int(filling_s / alpha_s)) if chunks is None else 0
    candidates = (max(1, root), root + 1) if chunks is None else (chunks,)
    return transfer_s + min(filling_s / count + (count - 1) * alpha_s for count in candidates)


def congestion_of(traffic: Traffic) -> Congestion:
    """Return what the steps of `traffic` cost, exactly. O(links of the routes of all different steps)."""
    ways = _Ways.of(traffic)
    if traffic.kind == "pipelined":
        loads = sum((traffic.link_amounts(step) for step in traffic.steps), np.zeros(len(traffic.topology.links), int))
        slowest = traffic.topology.links.longest_time(loads) / traffic.denominator
        return Congestion(traffic.topology, _counted(traffic, ways), slowest)
    return Congestion(traffic.topology, _counted(traffic, ways), None)


def _counted(traffic: Traffic, ways: _Ways) -> Counter[LinkLoads]:
    seen: dict[int, LinkLoads] = {}
    counts: Counter[LinkLoads] = Counter()
    for step in traffic.steps:
        if len(step.route):
            burdens = seen.get(id(step))
            if burdens is None:
                burdens = seen[id(step)] = _burdens(traffic, ways, step)
            counts[burdens] += 1
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Routes by how far they go: `kinds[of_route[r]]` is (hops, latency_s) of route r."""

    of_route: NDArray[np.int64]
    kinds: list[tuple[int, Fraction]]

    @staticmethod
    def of(traffic: Traffic) -> _Ways:
        links, routes = traffic.topology.links, traffic.routes
        hops = np.diff(routes.offsets)
        if len(links.latencies_s) < 2:
            latency_s = links.latencies_s[0] if links.latencies_s else Fraction(0)
            lengths, of_route = np.unique(hops, return_inverse=True)
            return _Ways(of_route, [(length, length * latency_s) for length in lengths.tolist()])
        scale = lcm(*(latency.denominator for latency in links.latencies_s))
        table = np.array([int(latency * scale) for latency in links.latencies_s], dtype=object)
        along = np.add.reduceat(table[links.latency_class[routes.link_ids]], routes.offsets[:-1])
        pairs = list(zip(hops.tolist(), along.tolist(), strict=True))
        kinds = sorted(set(pairs))
        place = {pair: index for index, pair in enumerate(kinds)}
        of_route = np.array([place[pair] for pair in pairs], dtype=np.int64)
        return _Ways(of_route, [(length, Fraction(latency, scale)) for length, latency in kinds])


def _burdens(traffic: Traffic, ways: _Ways, step: TrafficStep) -> LinkLoads:
    links, routes = traffic.topology.links, traffic.routes
    worst = np.zeros((len(links.bandwidths), len(ways.kinds)), dtype=np.int64)
    loads = np.zeros(len(links), dtype=np.int64)
    _find_worst(
        step.route, step.amount, routes.offsets, routes.link_ids, links.bandwidth_class, ways.of_route, loads, worst
    )
    found = [
        LinkLoad(Fraction(int(worst[index, kind]), traffic.denominator) / links.bandwidths[index], *ways.kinds[kind])
        for index, kind in zip(*(axis.tolist() for axis in np.nonzero(worst)), strict=True)
    ]
    return _undominated(found)


def _undominated(burdens: list[LinkLoad]) -> LinkLoads:
    kept: list[LinkLoad] = []
    for burden in sorted(burdens, reverse=True):
        if not any(other.hops >= burden.hops and other.latency_s >= burden.latency_s for other in kept):
            kept.append(burden)
    return frozenset(kept)


@compiled
def _find_worst(
    route: NDArray[np.int32],
    amount: NDArray[np.int64],
    offsets: NDArray[np.int64],
    link_ids: NDArray[np.int32],
    link_class: NDArray[np.int32],
    way_of_route: NDArray[np.int64],
    loads: NDArray[np.int64],
    worst: NDArray[np.int64],
) -> None:
    """Add up the loads of links, then note for each (class of link, way) the largest that a message meets."""
    for index in range(len(route)):
        for position in range(offsets[route[index]], offsets[route[index] + 1]):
            loads[link_ids[position]] += amount[index]
    for index in range(len(route)):
        way = way_of_route[route[index]]
        for position in range(offsets[route[index]], offsets[route[index] + 1]):
            link = link_ids[position]
            worst[link_class[link], way] = max(worst[link_class[link], way], loads[link])
