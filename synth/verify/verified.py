"""Defines the results of verification: violated rules, or a schedule with its exact cost and link loads.

A step takes as long as its slowest transfer. A transfer takes the latency of its route plus the largest value of load /
bandwidth on its links (full paper, appendix E.3, for single-link routes). The sum over steps is at most
`Cost.latency_s` plus the vector size times `Cost.time_per_byte`, and often less.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import AnySchedule, Schedule


@dataclass(frozen=True, slots=True)
class ScheduleViolation:
    """A violated rule. `rule` is a stable key for scripts, and `message` is a sentence for people."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Cost:
    """The exact cost of a schedule.

    steps:            number of steps, or height of the trees; the latency T_L is this number times the latency of a hop
    time_per_byte:    bandwidth time per byte, T_B / M; its unit is 1 / (bandwidth unit of the topology)
    bandwidth_factor: T_B / (M / B), with B the outgoing bandwidth of a node; None unless the topology is regular and
                      direct-connect with links of unit capacity
    latency_s:        sum over steps of the largest latency of a route that the step uses, in seconds
    """

    steps: int
    time_per_byte: Fraction
    bandwidth_factor: Fraction | None
    latency_s: Fraction


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Link loads over the complete schedule, as fractions of the vector M.

    largest, smallest: load of the busiest link and of the least busy link
    total:             sum over all links
    idle_links:        number of links without load
    duplicate_deliveries: number of chunks that ranks received although they already had them
    """

    largest: Fraction
    smallest: Fraction
    total: Fraction
    idle_links: int
    duplicate_deliveries: int


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedSchedule:
    """A schedule that has passed verification. Only `chorale.synth.verify.verify` creates objects of this class."""

    schedule: AnySchedule
    cost: Cost
    link_loads: LoadSummary

    def __repr__(self) -> str:
        schedule, cost = self.schedule, self.cost
        made = f"{schedule.method} {schedule.collective} on {schedule.topology.spec}"
        return f"<{made}, verified: {cost.steps} steps, time per byte {cost.time_per_byte}>"


Loads = NDArray[np.int64]


def cost_of(schedule: Schedule, loads: Loads) -> Cost:
    """Return the exact cost of `schedule`.

    The steps of a stepped schedule follow one another, and each takes as long as its slowest link. In a pipelined
    schedule, all links are busy at the same time between two barriers, and the slowest link determines the time.
    `loads` contains the number of chunks on each link in each step, as int64[steps, links].
    """
    topology = schedule.topology
    periods = np.add.reduceat(loads, (0, *schedule.barriers)) if schedule.kind == "pipelined" else loads
    time_per_byte = sum((topology.links.longest_time(period) for period in periods), Fraction(0)) * schedule.chunk_part
    bandwidth = topology.node_bandwidth
    factor = None if bandwidth is None else time_per_byte * bandwidth
    return Cost(schedule.steps, time_per_byte, factor, period_latency_s(schedule))


def period_latency_s(schedule: Schedule) -> Fraction:
    """Return the sum over steps of the largest latency of a route that the step uses, in seconds.

    O(rows log rows + links of routes).
    """
    routes = schedule.routes
    if schedule.topology.links.latencies_s == (Fraction(0),):
        return Fraction(0)
    of_route, parts = routes.latencies(schedule.topology.links)
    used = np.unique(schedule.transfers.step.astype(np.int64) * len(routes) + schedule.transfers.route)
    longest = np.zeros(max(1, schedule.steps), dtype=object)
    np.maximum.at(longest, used // len(routes), of_route[used % len(routes)])
    return Fraction(sum(longest), parts)


def summarize(total: Loads, chunk: Fraction, duplicates: int) -> LoadSummary:
    """Return a summary of the `total` load of each link (int64, in chunks). `chunk` is a fraction of the vector."""
    largest, smallest = int(total.max()) * chunk, int(total.min()) * chunk
    return LoadSummary(largest, smallest, int(total.sum()) * chunk, int((total == 0).sum()), duplicates)
