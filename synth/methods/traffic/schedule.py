"""Schedules of planned traffic: one transfer per path, all of them streaming at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.methods.alltoall.schedule import flow_paths_of
from chorale.synth.methods.traffic.planner import TrafficPlan
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule


def traffic_schedule(plan: TrafficPlan) -> Schedule:
    """Return the alltoallv of `plan`: shard source * N + target has as many chunks as the plan gives that pair.

    `steps` is the number of links of the longest path. The certificate holds the prices that prove the bound on the
    time; `chorale.synth.methods.traffic.certificate` checks it. Not verified. O(rows * longest path).
    """
    topology, ranks = plan.topology, plan.topology.compute_count
    paths = flow_paths_of(plan.problem, slice(0, ranks), plan.flows)
    routes = Routes(paths.offsets.astype(np.int64), plan.problem.link_ids[paths.links])
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
    prices = np.zeros(len(plan.topology.links), dtype=np.int64)
    prices[plan.problem.link_ids] = plan.bound.prices
    return {
        "kind": "traffic-prices",
        "time_lower": str(plan.bound.time),
        "prices": prices.tolist(),
        "amounts": plan.matrix.sent.tolist(),
    }
