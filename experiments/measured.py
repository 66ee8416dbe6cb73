"""What a network and a method really reach: a schedule that was made and verified, and all-to-all between bounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.experiments.verdict import Interval
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.distance import diameter, hop_distances
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import Cost


@dataclass(frozen=True, slots=True)
class MeasuredSchedule:
    """The exact cost of a verified allgather on `topology`, and its diameter."""

    topology: Topology
    cost: Cost
    diameter: int

    @property
    def factor(self) -> Fraction:
        """T_B in M/B, B = bandwidth out of a node; on networks of unequal nodes, out of the busiest."""
        factor = self.cost.bandwidth_factor
        return self.cost.time_per_byte * self.max_out_links if factor is None else factor

    @property
    def max_out_links(self) -> int:
        """Links out of the node that has most."""
        return int(np.bincount(self.topology.links.src).max())


def measure_schedule(spec: str, method: str, collective: Collective = ALLGATHER) -> MeasuredSchedule:
    """Make, verify and cost the schedule of `method` on `spec`."""
    topology = parse_topology(spec)
    verified = synthesize(method, topology, collective, None, SerialExecutor())
    return MeasuredSchedule(topology, verified.cost, diameter(topology))


def alltoall_interval(topology: Topology, gap: Fraction) -> Interval:
    """Return exact bounds on the all-to-all rate, at most the part `gap` apart unless that takes too long."""
    rate = alltoall_rate(topology, gap)
    return Interval(rate.lower, rate.upper)


def distance_bound(topology: Topology) -> Fraction:
    """Return links / sum of hop distances: no all-to-all rate is higher, as every unit uses a link for each hop.

    The simplest certificate there is; self-loops do not count. Unit capacity. O(N L).
    """
    usable = int(np.count_nonzero(topology.links.src != topology.links.dst))
    return Fraction(usable, int(hop_distances(topology).sum(dtype=np.int64)))


def moore_rate(nodes: int, degree: int) -> Fraction:
    """Return the distance bound of a network in which degree^t nodes are t hops away, as long as there are so many."""
    left, ring, hops, total = nodes - 1, degree, 1, 0
    while left > 0:
        total += hops * min(ring, left)
        left, ring, hops = left - ring, ring * degree, hops + 1
    return Fraction(degree, total)
