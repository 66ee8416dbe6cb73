"""Exact cost of a schedule from its link loads."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.units import bytes_per_second
from chorale.synth.verify.timing import stepped_time_s
from chorale.synth.verify.verified import Cost, LoadSummary

Loads = NDArray[np.int64]


def cost_of(schedule: Schedule, loads: Loads, size_bytes: int | None = None) -> Cost:
    """Return the exact cost, with the time at `size_bytes` if given.

    Stepped: steps follow one another, each as long as its slowest link. Pipelined: all links stream at once, as long
    as the slowest one, from one barrier to the next.
    """
    periods = np.add.reduceat(loads, (0, *schedule.barriers)) if schedule.kind == "pipelined" else loads
    chunk = Fraction(1, schedule.chunks_per_shard * schedule.topology.compute_count)
    time_per_byte = sum((schedule.topology.links.longest_time(period) for period in periods), Fraction(0)) * chunk
    bandwidth = schedule.topology.node_bandwidth
    factor = None if bandwidth is None else time_per_byte * bandwidth
    latency_s = _latency_s(schedule, loads)
    if size_bytes is None:
        return Cost(schedule.steps, time_per_byte, factor, latency_s)
    if schedule.kind == "stepped":
        time_s = stepped_time_s(schedule, loads, size_bytes)
    else:
        time_s = latency_s + time_per_byte * size_bytes / bytes_per_second(schedule.topology)
    return Cost(schedule.steps, time_per_byte, factor, latency_s, time_s)


def summarize(schedule: Schedule, loads: Loads, duplicates: int) -> LoadSummary:
    """Return the link loads over the whole schedule, as fractions of the vector M."""
    chunk = Fraction(1, schedule.chunks_per_shard * schedule.topology.compute_count)
    total = loads.sum(axis=0)
    largest, smallest = int(total.max()) * chunk, int(total.min()) * chunk
    return LoadSummary(largest, smallest, int(total.sum()) * chunk, int((total == 0).sum()), duplicates)


def _latency_s(schedule: Schedule, loads: Loads) -> Fraction:
    links = schedule.topology.links
    if links.latencies_s == (Fraction(0),):
        return Fraction(0)
    if not schedule.routes.is_direct(len(links)):
        return _route_latency_s(schedule)
    total = Fraction(0)
    for period in loads:
        used = np.unique(links.latency_class[period > 0])
        total += max((links.latencies_s[index] for index in used), default=Fraction(0))
    return total


def _route_latency_s(schedule: Schedule) -> Fraction:
    """Like `_latency_s` where transfers cross several links one after the other. O(rows log rows + links of routes)."""
    links, routes = schedule.topology.links, schedule.routes
    scale = lcm(*(latency.denominator for latency in links.latencies_s))
    table = np.array([int(latency * scale) for latency in links.latencies_s], dtype=object)
    of_route = np.add.reduceat(table[links.latency_class[routes.link_ids]], routes.offsets[:-1])
    used = np.unique(schedule.transfers.step.astype(np.int64) * len(routes) + schedule.transfers.route)
    longest = np.zeros(max(1, schedule.steps), dtype=object)
    np.maximum.at(longest, used // len(routes), of_route[used % len(routes)])
    return Fraction(sum(longest), scale)
