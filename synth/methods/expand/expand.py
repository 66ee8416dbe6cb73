"""Expansion: derives a large network's schedule from the schedule of the small network from which it was built.

A topology spec consists of expansions of a base. The base's allgather is a schedule stored in the database, its mirror
image, or a breadth-first broadcast. Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective
Communications", section 5, appendices A.6, D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.methods.expand.schedules import (
    allgather_from_columns,
    bidirectional_schedule,
    degree_schedule,
    line_schedule,
    power_schedule,
    require_size,
)
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.schedule.transforms import renamed_schedule
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph, line_order
from chorale.synth.topology.families.bases import base_entry, base_topology, load_bases
from chorale.synth.topology.grammar import FileCall, FunctionCall, Number, SpecTree, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import isomorphism
from chorale.synth.topology.topology import Topology, transpose, transpose_with_links


def base_schedule(name: str, topology: Topology | None = None, *, transposed: bool = False) -> Schedule:
    """Return the allgather that the database stores for the base `name`. Not verified.

    Args:
        topology: the result's network, which must equal the base but may have another spec, such as diamond; None for
            base:NAME or its transpose.
        transposed: return the schedule for the transpose. Only bases that have a stored schedule and are not
            reverse-symmetric have one; on other bases, the same schedule runs with renamed nodes.

    Raises:
        InvalidInput: for an unknown base, a base without such a schedule, and a different network.
    """
    entry = base_entry(name)
    sends = entry.transposed_schedule if transposed else entry.schedule
    if sends is None and transposed:
        rule = "the transpose of the base has no stored schedule: {}"
        advice = "use the method expand, which makes one from the stored schedule or by bfb"
        raise InvalidInput(rule, name, advice)
    if sends is None:
        rule = "the base {} has no schedule that could be expanded"
        raise InvalidInput(rule, name, f"use the method bfb, which reaches {entry.claim.steps} steps")
    base, what = base_topology(entry, f"base:{name}"), f"that of the base {name}"
    if transposed:
        base, what = transpose(base), f"the transpose of the base {name}"
    if topology is not None and topology.id != base.id:
        raise InvalidInput(f"the topology must be {what}", topology.spec, f"use {base.spec}")
    network = topology or base
    columns = np.array(sends.rows, dtype=np.int64).T
    steps = int(columns[0].max()) + 1
    bounds = ColumnBounds(steps, len(network.links), network.compute_count, sends.chunks_per_shard)
    return Schedule(
        topology=network,
        collective=ALLGATHER,
        kind="stepped",
        steps=steps,
        chunks_per_shard=sends.chunks_per_shard,
        transfers=bounds.pack((*columns, np.zeros(columns.shape[1], dtype=np.int64))),
        routes=Routes.direct(len(network.links)),
        method="expand",
        parameters={"base": name},
    )


Origin = Literal["own", "mirrored", "bfb"]


def base_allgather(topology: Topology, executor: Executor, progress: Progress | None) -> Schedule:
    """Return the allgather of a base. Its `parameters` name the base and the origin of its schedule.

    The origin is "own" if the database stores a schedule for this network, whatever its spec; "mirrored" if it stores a
    schedule for the transpose only and the network is reverse-symmetric (found by search), so that the same schedule
    runs with renamed nodes; otherwise "bfb".
    """
    schedule = stored_allgather(topology)
    if schedule is not None:
        return _with_origin(schedule, topology, "own")
    mirrored = transpose(topology)
    schedule = stored_allgather(mirrored)
    image = None if schedule is None else isomorphism(mirrored, topology)
    if schedule is None or image is None:
        return _with_origin(bfb_allgather(topology, executor, None, progress), topology, "bfb")
    return _with_origin(renamed_schedule(schedule, image, topology), topology, "mirrored")


def stored_allgather(topology: Topology) -> Schedule | None:
    """Return the allgather that is stored for this base or transposed base, or None if none is stored."""
    for name, entry in load_bases().items():
        if not entry.has_stored_schedule or not entry.nodes == topology.compute_count == topology.node_count:
            continue
        base = base_topology(entry, f"base:{name}")
        if base.id == topology.id:
            return base_schedule(name, topology)
        if entry.transposed_schedule is not None and transpose(base).id == topology.id:
            return base_schedule(name, topology, transposed=True)
    return None


def _with_origin(schedule: Schedule, topology: Topology, origin: Origin) -> Schedule:
    parameters = {"base": topology.spec, "base_method": origin}
    return replace(schedule, method="expand", parameters=parameters, certificate={})


@dataclass(frozen=True, slots=True)
class BaseNetwork:
    """A network that is not built from another one. `transposed` means the transpose of the network `spec`."""

    spec: str
    transposed: bool


@dataclass(frozen=True, slots=True)
class LineGraph:
    """Line graph of `inner`. If `transposed`, ranks are ordered as in the transposed line graph of the transpose."""

    inner: ExpansionPlan
    transposed: bool


@dataclass(frozen=True, slots=True)
class DegreeExpansion:
    """Degree expansion of `inner`, with `copies` copies of every node."""

    inner: ExpansionPlan
    copies: int


@dataclass(frozen=True, slots=True)
class CartesianPower:
    """Cartesian product of `times` copies of `inner`."""

    inner: ExpansionPlan
    times: int


@dataclass(frozen=True, slots=True)
class BidirectionalUnion:
    """Union of `forwards` and its transpose `backwards`."""

    forwards: ExpansionPlan
    backwards: ExpansionPlan


ExpansionPlan: TypeAlias = BaseNetwork | LineGraph | DegreeExpansion | CartesianPower | BidirectionalUnion


def expansion_plan(tree: SpecTree, transposed: bool = False) -> ExpansionPlan:
    """Return the plan of the network that `tree` describes, or of its transpose if `transposed`.

    A product of identical factors is a power. Any other product is a base, because the paper only defines BFB for it
    (theorem 13); all other specs are bases too. Raises InvalidInput for a base in a file and for malformed arguments.
    """
    if isinstance(tree, FileCall):
        raise InvalidInput(
            "expand needs a base of the database, not {}", str(tree), "use bfb, or a base of the database"
        )
    if isinstance(tree, FunctionCall):
        if tree.name == "transpose":
            return expansion_plan(_inner(tree), not transposed)
        if tree.name == "bidirectional":
            return BidirectionalUnion(expansion_plan(_inner(tree)), expansion_plan(_inner(tree), transposed=True))
        if tree.name == "line":
            plan = expansion_plan(_inner(tree), transposed)
            for _ in range(_number(tree) if len(tree.arguments) > 1 else 1):
                plan = LineGraph(plan, transposed)
            return plan
        if tree.name == "degree":
            return DegreeExpansion(expansion_plan(_inner(tree), transposed), _number(tree))
        if tree.name == "power":
            return CartesianPower(expansion_plan(_inner(tree), transposed), _number(tree))
        if tree.name == "product" and len(set(map(str, tree.arguments))) == 1:
            return CartesianPower(expansion_plan(_inner(tree), transposed), len(tree.arguments))
    return BaseNetwork(str(tree), transposed)


def is_expansion(plan: ExpansionPlan) -> bool:
    """Return whether `plan` expands a base. A product of different factors also counts as an expansion."""
    return not isinstance(plan, BaseNetwork) or plan.spec.startswith("product(")


def _inner(call: FunctionCall) -> SpecTree:
    first = call.arguments[0]
    if not isinstance(first, SpecTree):
        raise InvalidInput(f"the first argument of {call.name} must be a topology spec", str(first), "write one")
    return first


def _number(call: FunctionCall) -> int:
    last = call.arguments[-1]
    if not isinstance(last, Number):
        raise InvalidInput(f"the last argument of {call.name} must be a whole number", str(last), "write one")
    return int(last.text)


ScheduleOfBase: TypeAlias = Callable[[BaseNetwork], Schedule]


def expand_allgather(
    topology: Topology, executor: Executor, chunks: int | None = None, progress: Progress | None = None
) -> Schedule:
    """Return the allgather obtained by expanding the schedule of the base in `topology.spec` step by step.

    The base uses its stored schedule if there is one, otherwise BFB (see `base_allgather`). O(transfers).

    chunks: chunks per shard, a multiple of the number that the expansions need; None for that number
    Raises InvalidInput for a spec without expansion if its network has no stored schedule, and for a base in a file.
    """
    plan = expansion_plan(parse_spec(topology.spec))
    if not is_expansion(plan) and stored_allgather(topology) is None and stored_allgather(transpose(topology)) is None:
        rule = "expand needs an expansion or a base with a schedule, not {}"
        raise InvalidInput(rule, topology.spec, "use bfb, or line(…), degree(…;n), power(…;n), bidirectional(…)")
    require_size(topology.compute_count * (topology.compute_count - 1), topology)
    schedule = expanded_schedule(plan, base_schedule_builder(executor, progress))
    if schedule.topology.id != topology.id:
        rule = "the network is not what its spec says: {}"
        raise InvalidInput(rule, topology.spec, "make it with parse_topology")
    needed = schedule.chunks_per_shard
    parameters = {"chunks": chunks, **schedule.parameters}
    schedule = replace(schedule, topology=topology, parameters=parameters)
    if chunks is None or chunks == needed:
        return schedule
    if chunks < 1 or chunks % needed:
        rule = f"chunks per shard must be a multiple of {needed} for this expansion"
        raise InvalidInput(rule, chunks, f"choose {needed}, or leave it out")
    rows, factor = schedule.transfers, chunks // needed
    lo, hi = rows.lo.astype(np.int64) * factor, rows.hi.astype(np.int64) * factor
    columns = (rows.step, rows.route, rows.shard, lo, hi)
    return allgather_from_columns(schedule, topology, schedule.steps, chunks, columns)


def base_schedule_builder(executor: Executor, progress: Progress | None = None) -> ScheduleOfBase:
    """Return a function that makes the allgather of a BaseNetwork."""

    def make(base: BaseNetwork) -> Schedule:
        network = parse_topology(base.spec)
        return base_allgather(transpose(network) if base.transposed else network, executor, progress)

    return make


def expanded_schedule(plan: ExpansionPlan, schedule_of_base: ScheduleOfBase) -> Schedule:
    """Return the allgather on the network described by `plan`. `schedule_of_base` makes the schedule of its base."""
    if isinstance(plan, BaseNetwork):
        return schedule_of_base(plan)
    if isinstance(plan, BidirectionalUnion):
        forwards = expanded_schedule(plan.forwards, schedule_of_base)
        backwards = expanded_schedule(plan.backwards, schedule_of_base)
        both = bidirectional(forwards.topology, f"bidirectional({forwards.topology.spec})")
        joined = bidirectional_schedule(forwards, backwards, both)
        other = backwards.parameters.get("base_method")
        return replace(joined, parameters={**joined.parameters, "transposed_base_method": other})
    inner = expanded_schedule(plan.inner, schedule_of_base)
    network = inner.topology
    if isinstance(plan, DegreeExpansion):
        spec = f"degree({network.spec};{plan.copies})"
        return degree_schedule(inner, plan.copies, degree_expansion(network, plan.copies, spec))
    if isinstance(plan, CartesianPower):
        spec = f"power({network.spec};{plan.times})"
        return power_schedule(inner, plan.times, cartesian_product([network] * plan.times, spec, "power"))
    lined = line_schedule(inner, line_graph(network, f"line({network.spec})"))
    if not plan.transposed:
        return lined
    # The transpose of the line graph of the transpose is the same network, but its ranks are links in another order.
    turned, origin = transpose_with_links(network)
    target = transpose(line_graph(turned, f"line({turned.spec})"))
    new_rank: NDArray[np.int64] = np.empty(len(origin), dtype=np.int64)
    new_rank[origin[line_order(turned)]] = np.arange(len(origin))
    return renamed_schedule(lined, new_rank[line_order(network)], target)
