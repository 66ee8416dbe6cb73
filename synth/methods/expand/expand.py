"""Expansion: the schedule of a large network from the schedule of the small network that it is expanded from.

Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 5, appendices A.6, D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.expand.base_allgather import base_allgather, stored_allgather
from chorale.synth.methods.expand.expansion_plan import (
    BaseNetwork,
    BidirectionalUnion,
    CartesianPower,
    DegreeExpansion,
    ExpansionPlan,
    LineGraph,
    expansion_plan,
    is_expansion,
)
from chorale.synth.methods.expand.line_graph import line_schedule
from chorale.synth.methods.expand.schedules import (
    allgather_from_columns,
    bidirectional_schedule,
    degree_schedule,
    power_schedule,
    require_size,
)
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.transforms import renamed_schedule
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph, line_order
from chorale.synth.topology.grammar import parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose, transpose_with_links

ScheduleOfBase: TypeAlias = Callable[[BaseNetwork], Schedule]


def expand_allgather(
    topology: Topology, executor: Executor, chunks: int | None = None, progress: Progress | None = None
) -> Schedule:
    """Return the allgather that grows, expansion by expansion, from the schedule of the base in `topology.spec`.

    The base uses its own schedule from the database, else BFB (`base_allgather`). `chunks` per shard must be a multiple
    of what the expansions need; without it, exactly that. O(transfers).
    Raises InvalidInput for a spec without expansion whose network has no schedule of its own, and for a base in a file.
    """
    plan = expansion_plan(parse_spec(topology.spec))
    if not is_expansion(plan) and stored_allgather(topology) is None and stored_allgather(transpose(topology)) is None:
        rule = "expand must be given an expansion, or a base with a schedule of its own"
        raise InvalidInput(rule, topology.spec, "use bfb, or line(…), degree(…;n), power(…;n), bidirectional(…)")
    require_size(topology.compute_count * (topology.compute_count - 1), topology)
    schedule = expanded_schedule(plan, base_schedule_builder(executor, progress))
    if schedule.topology.id != topology.id:
        rule = "the network to expand must be what its spec says"
        raise InvalidInput(rule, topology.spec, "make it with parse_topology")
    needed = schedule.chunks_per_shard
    parameters = {"chunks": chunks, **schedule.parameters}
    schedule = replace(schedule, topology=topology, parameters=parameters)
    if chunks is None or chunks == needed:
        return schedule
    if chunks < 1 or chunks % needed:
        rule = f"chunks per shard must be a multiple of {needed} for this expansion"
        raise InvalidInput(rule, chunks, f"choose {needed}, or leave it out")
    return _cut(schedule, chunks // needed)


def base_schedule_builder(executor: Executor, progress: Progress | None = None) -> ScheduleOfBase:
    """Return the function that makes the allgather of a base, or of its transpose."""

    def make(base: BaseNetwork) -> Schedule:
        network = parse_topology(base.spec)
        return base_allgather(transpose(network) if base.transposed else network, executor, progress)

    return make


def expanded_schedule(plan: ExpansionPlan, schedule_of_base: ScheduleOfBase) -> Schedule:
    """Return the allgather of the network that `plan` describes, on that network."""
    if isinstance(plan, BaseNetwork):
        return schedule_of_base(plan)
    if isinstance(plan, BidirectionalUnion):
        forwards = expanded_schedule(plan.forwards, schedule_of_base)
        backwards = expanded_schedule(plan.backwards, schedule_of_base)
        both = bidirectional(forwards.topology, f"bidirectional({forwards.topology.spec})")
        joined = bidirectional_schedule(forwards, backwards, both)
        other = backwards.parameters.get("base_method")
        return replace(joined, parameters={**joined.parameters, "transposed_base_method": other})
    return _expanded(plan, expanded_schedule(plan.inner, schedule_of_base))


def _expanded(plan: LineGraph | DegreeExpansion | CartesianPower, inner: Schedule) -> Schedule:
    network = inner.topology
    if isinstance(plan, DegreeExpansion):
        spec = f"degree({network.spec};{plan.copies})"
        return degree_schedule(inner, plan.copies, degree_expansion(network, plan.copies, spec))
    if isinstance(plan, CartesianPower):
        spec = f"power({network.spec};{plan.times})"
        return power_schedule(inner, plan.times, cartesian_product([network] * plan.times, spec, "power"))
    lined = line_schedule(inner, line_graph(network, f"line({network.spec})"))
    return _transposed_ranks(lined, network) if plan.transposed else lined


def _transposed_ranks(lined: Schedule, network: Topology) -> Schedule:
    """Return `lined`, on the line graph of `network`, on the transpose of the line graph of its transpose instead.

    That is the same network. A rank is a link there too, but of the transpose, where links are in another order.
    """
    turned, origin = transpose_with_links(network)
    target = transpose(line_graph(turned, f"line({turned.spec})"))
    new_rank: NDArray[np.int64] = np.empty(len(origin), dtype=np.int64)
    new_rank[origin[line_order(turned)]] = np.arange(len(origin))
    return renamed_schedule(lined, new_rank[line_order(network)], target)


def _cut(schedule: Schedule, factor: int) -> Schedule:
    """Return `schedule` with every chunk cut into `factor`."""
    rows = schedule.transfers
    lo, hi = rows.lo.astype(np.int64) * factor, rows.hi.astype(np.int64) * factor
    columns = (rows.step, rows.route, rows.shard, lo, hi)
    chunks = schedule.chunks_per_shard * factor
    return allgather_from_columns(schedule, schedule.topology, schedule.steps, chunks, columns)
