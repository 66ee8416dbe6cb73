"""Exact time of a stepped schedule at one size of the vector, latencies and bandwidths of links together.

A step takes as long as its slowest transfer: the latency along its route, plus what the most loaded link of the route
carries in the step over that link's bandwidth (full paper, appendix E.3; a route of one link is the paper's case).
That is at most, and often less than, the step's share of `CollectiveTime.latency_s` plus its share of
`CollectiveTime.time_per_byte`.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.units import bytes_per_second

Loads = NDArray[np.int64]


def stepped_time_s(schedule: Schedule, loads: Loads, size_bytes: int) -> Fraction:
    """Return the seconds that `schedule` takes for `size_bytes`, from its loads in chunks per step and link.

    O(steps * links + rows log rows). Raises InvalidInput where bandwidths count links.
    """
    topology = schedule.topology
    byte_s = Fraction(1, bytes_per_second(topology))
    chunk_s = size_bytes * byte_s / (schedule.chunks_per_shard * topology.compute_count)
    of_step = _direct_time_s if schedule.routes.is_direct(len(topology.links)) else _routed_time_s
    return sum((of_step(schedule, step, loads[step], chunk_s) for step in range(schedule.steps)), Fraction(0))


def _direct_time_s(schedule: Schedule, _step: int, loads: Loads, chunk_s: Fraction) -> Fraction:
    links = schedule.topology.links
    kinds = links.bandwidth_class * len(links.latencies_s) + links.latency_class
    most = np.zeros(len(links.bandwidths) * len(links.latencies_s), dtype=np.int64)
    np.maximum.at(most, kinds, loads)
    times = []
    for kind in np.flatnonzero(most):
        bandwidth, latency = divmod(int(kind), len(links.latencies_s))
        times.append(links.latencies_s[latency] + int(most[kind]) * chunk_s / links.bandwidths[bandwidth])
    return max(times, default=Fraction(0))


def _routed_time_s(schedule: Schedule, step: int, loads: Loads, chunk_s: Fraction) -> Fraction:
    links, routes = schedule.topology.links, schedule.routes
    latencies = np.array(links.latencies_s, dtype=object)[links.latency_class[routes.link_ids]]
    carried = loads.astype(object) / np.array(links.bandwidths, dtype=object)[links.bandwidth_class]
    starts = routes.offsets[:-1]
    times = np.add.reduceat(latencies, starts) + np.maximum.reduceat(carried[routes.link_ids], starts) * chunk_s
    used = np.unique(schedule.transfers.route[schedule.transfers.step == step])
    return max(times[used], default=Fraction(0))
