"""How far a collective is from ideal: latency, bandwidth and congestion deficiency, from what it sends.

Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", 2024, section 2.2 and table 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import log2

import numpy as np

from chorale.synth.collective import CollectiveName
from chorale.synth.schedule.traffic import Traffic, TrafficStep, merged_step


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
    known: dict[int, tuple[Fraction, Fraction]] = {}
    for step in steps:
        if id(step) not in known:
            known[id(step)] = _times(traffic, step)
    times = [known[id(step)] for step in steps]
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
    own = np.zeros(len(traffic.topology.links), dtype=np.int64)
    np.add.at(own, first_link, step.amount)
    links = traffic.topology.links
    times = links.longest_time(own), links.longest_time(traffic.link_amounts(step))
    return times[0] / traffic.denominator, times[1] / traffic.denominator
