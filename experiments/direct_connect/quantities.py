"""Our values of printed quantities: costs of verified schedules, all-to-all rates between bounds, and Moore bounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.experiments.framework.comparison import Interval, Quantity, short_text
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps
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
        return self.cost.time_per_byte * int(np.bincount(self.topology.links.src).max()) if factor is None else factor


def measure_schedule(spec: str, method: str, collective: Collective = ALLGATHER) -> MeasuredSchedule:
    """Return the cost of the verified schedule of `method` on `spec`."""
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
    remaining, ring, hops, total = nodes - 1, degree, 1, 0
    while remaining > 0:
        total += hops * min(ring, remaining)
        remaining, ring, hops = remaining - ring, ring * degree, hops + 1
    return Fraction(degree, total)


DEGREE = 4


def schedule_quantities(measured: MeasuredSchedule) -> list[Quantity]:
    """Return steps, T_B in M/B and diameter of a verified allgather; the first two with what no schedule can beat."""
    least = least_bandwidth_factor(measured.topology.compute_count)
    return [
        Quantity("steps", Interval.exactly(measured.cost.steps), measured.diameter, "the network has that diameter"),
        Quantity("bandwidth_factor", Interval.exactly(measured.factor), least, f"{least} is least on any network"),
        Quantity("diameter", Interval.exactly(measured.diameter), measured.diameter, "distances were counted"),
    ]


def bound_quantities(nodes: int) -> list[Quantity]:
    """Return the same for what no network can beat, and the bound on the all-to-all rate."""
    steps = Interval.exactly(least_steps(nodes, DEGREE))
    return [
        Quantity("steps", steps),
        Quantity("bandwidth_factor", Interval.exactly(least_bandwidth_factor(nodes))),
        Quantity("diameter", steps),
        Quantity("rate", Interval.exactly(moore_rate(nodes, DEGREE)), smaller_is_better=False),
    ]


def rate_quantity(measured: MeasuredSchedule, gap: Fraction) -> Quantity:
    """Return the all-to-all rate between certified bounds; what proves the upper one, and a simpler proof beside it."""
    ours = alltoall_interval(measured.topology, gap)
    bound = distance_bound(measured.topology)
    proof = f"prices on links prove that no rate is above {short_text(ours.high)}, links / sum of distances = {bound} "
    proof += f"that none is above {short_text(bound)}"
    return Quantity("rate", ours, ours.high, proof, smaller_is_better=False)
