"""What every plan of given traffic has: a time, a bound with its proof, and paths, which make a schedule."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.methods.alltoall.schedule import FlowPaths
from chorale.synth.methods.traffic.matrix import ChunkCounts, TrafficMatrix
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule
from chorale.synth.topology.topology import Topology

Prices = NDArray[np.int64]


class PriceBound(NamedTuple):
    """time: no plan is faster, in amount / bandwidth;  prices: int64 per link of the topology, which prove it."""

    time: Fraction
    prices: Prices


@dataclass(frozen=True, slots=True, eq=False)
class TrafficPlan(ABC):
    """Ways of `matrix` through `topology`.

    chunks: how many there are for each pair
    time:   the busiest link needs it, in units of amount / bandwidth;  bound: no plan needs less
    fluid:  the time of flows that need not be whole chunks, as far as it is known: at most `time`
    method: how it was found: "lp", "prices", "warm" (along the flows of an earlier plan) or "two level"; "direct",
            "sender rail" or "receiver rail" if that is no slower
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
        """By how much the plan is behind the bound: 0 when it is optimal."""
        return self.time / self.bound.time - 1

    @abstractmethod
    def paths(self) -> FlowPaths:
        """Return the path of all chunks, with links of the topology."""


def traffic_schedule(plan: TrafficPlan) -> Schedule:
    """Return the alltoallv of `plan`: shard source * N + target has as many chunks as the plan gives that pair.

    `steps` is the number of links of the longest path. The certificate holds the prices that prove the bound on the
    time; `chorale.synth.methods.traffic.certificate` checks it. Not verified. O(rows * longest path).
    """
    topology, ranks = plan.topology, plan.topology.compute_count
    paths = plan.paths()
    routes = Routes(paths.offsets.astype(np.int64), paths.links.astype(np.int32))
    counts = plan.chunks.counts
    steps, most = int(np.diff(paths.offsets).max()), int(counts.max())
    at_once = np.zeros(len(paths.source), dtype=np.uint8)
    bounds = ColumnBounds(steps, len(routes), ranks * ranks, most)
    shard = paths.source * ranks + paths.target
    transfers = bounds.pack((at_once, np.arange(len(shard)), shard, paths.lo, paths.lo + paths.amount, at_once))
    collective = uneven_collective(CollectiveName.ALLTOALLV, counts.ravel().tolist())
    parameters: dict[str, Parameter] = {"chunks": most, "solver": plan.method, "traffic": plan.matrix.name}
    return Schedule(
        topology, collective, "pipelined", steps, most, transfers, routes, "alltoall", parameters, certificate_of(plan)
    )


def certificate_of(plan: TrafficPlan) -> Mapping[str, Any]:
    """Return the claim that no plan of the matrix needs less time than the bound of `plan`."""
    return {
        "kind": "traffic-prices",
        "time_lower": str(plan.bound.time),
        "prices": plan.bound.prices.tolist(),
        "amounts": plan.matrix.sent.tolist(),
    }
