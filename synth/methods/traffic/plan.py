"""Defines plans for given traffic: the paths of all data, the time, and a proven lower bound on the time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.methods.alltoall.linear_program import Commodities
from chorale.synth.methods.alltoall.rate import distances_by
from chorale.synth.methods.alltoall.schedule import FlowPaths, schedule_of_paths
from chorale.synth.methods.traffic.matrix import Amounts, ChunkCounts, TrafficMatrix, require_traffic
from chorale.synth.schedule.schedule import Parameter, Schedule
from chorale.synth.topology.topology import Topology

Prices = NDArray[np.int64]


class PriceBound(NamedTuple):
    """A lower bound on the time of any plan, in data / bandwidth, and link prices (int64[links]) that prove it."""

    time: Fraction
    prices: Prices


def proven_time(problem: Commodities, sent: Amounts, prices: Prices) -> Fraction:
    """Return the lower bound on the time that `prices` prove; it may be 0. O(sources * links * log links).

    prices: one price for each link of `problem`, in which all ranks are sources
    """
    distances = distances_by(problem, prices)[:, : len(sent)].astype(np.int64)  # whole numbers below 2^53
    paid = sum(int(row @ amounts) for row, amounts in zip(distances.astype(object), sent.astype(object), strict=True))
    widths = problem.class_capacity[problem.link_class]
    earned = sum(int(price) * int(width) for price, width in zip(prices, widths, strict=True) if price)
    return Fraction(paid * problem.scale, earned) if paid else Fraction(0)


@dataclass(frozen=True, slots=True, eq=False)
class TrafficPlan(ABC):
    """A plan to send the traffic `matrix` through `topology`. Times are in units of data / bandwidth.

    chunks: number of chunks between each pair of ranks
    time:   time that the busiest link needs
    fluid:  best known time if flows may split chunks; at most `time`
    bound:  lower bound on the time of any plan
    method: how the plan was found: "lp", "prices", "moves" (starts from the usual paths), "warm" (starts from an
            earlier plan) or "two level"; for a plan that is a baseline, its name: "direct", "sender rail" or
            "receiver rail"
    """

    topology: Topology
    matrix: TrafficMatrix
    chunks: ChunkCounts
    time: Fraction
    fluid: Fraction
    bound: PriceBound
    method: str

    @property
    def gap(self) -> Fraction:
        """Time above the bound, relative to the bound: 0 is optimal."""
        return self.time / self.bound.time - 1 if self.time else Fraction(0)

    @abstractmethod
    def paths(self) -> FlowPaths:
        """Return the paths of all chunks over the topology's links."""


def traffic_schedule(plan: TrafficPlan) -> Schedule:
    """Return the unverified alltoallv that follows `plan`: shard source * N + target has the chunks of that pair.

    Ranks on a path receive the data and send them again, so that programs use the planned paths; `steps` is the largest
    number of consecutive sends on a path. The certificate contains the prices that prove the bound on the time;
    `chorale.synth.methods.traffic.certificate` checks it. O(rows * longest path). Raises InvalidInput if the plan sends
    nothing.
    """
    require_traffic(plan.matrix)
    counts = plan.chunks.counts
    most = int(counts.max())
    collective = uneven_collective(CollectiveName.ALLTOALLV, counts.ravel().tolist())
    parameters: dict[str, Parameter] = {"chunks": most, "solver": plan.method, "traffic": plan.matrix.name}
    return schedule_of_paths(
        plan.topology, collective, [plan.paths()], most, parameters, certificate_of(plan), relays=True
    )


def certificate_of(plan: TrafficPlan) -> Mapping[str, Any]:
    """Return the certificate that no plan for the same traffic takes less time than `plan.bound`."""
    return {
        "kind": "traffic-prices",
        "time_lower": str(plan.bound.time),
        "prices": plan.bound.prices.tolist(),
        "amounts": plan.matrix.sent.tolist(),
        **({"under": "assumptions"} if plan.topology.is_guessed() else {}),
    }
