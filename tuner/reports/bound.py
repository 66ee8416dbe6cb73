"""Bounds of collectives with their proofs, alone, on several sets of nodes, and after every single failure."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rich.table import Table

from chorale.synth.bounds.certificate import check_certificate, check_pair_certificate
from chorale.synth.bounds.lower_bound import (
    bound_of_schedule,
    in_network_bound,
    lower_bound,
    reduce_scatter_allgather_time,
    require_reach,
    stronger,
)
from chorale.synth.bounds.optimum import Bound, Optimum, fixed_k_optimum, optimum
from chorale.synth.bounds.tree_pairs import TreePairs, pairs_if_countable
from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.identity import rational_text
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.failures import Failure, single_failures
from chorale.synth.topology.topology import Topology
from chorale.tuner.reports import tables

_SHOWN_NODES = 12
_WITHOUT_TREES = (CollectiveName.ALLREDUCE, CollectiveName.ALLTOALL)


@dataclass(frozen=True, slots=True)
class BoundReport:
    """A checked bound; for collectives of trees also the optimum for the given k, and for any k.

    two_phases: for allreduce, the time per byte of the best reduce_scatter followed by the best allgather.
    pairs: for allreduce where that is not known to be optimal, the best pairs of trees, on fabrics up to some size.
    in_network: the bound where switches multicast and add, None where none can.
    """

    topology: Topology
    collective: Collective
    bound: Bound
    best: Optimum | None
    unrestricted: Optimum | None
    two_phases: Fraction | None = None
    pairs: TreePairs | None = None
    in_network: Bound | None = None


def bound_report(topology: Topology, collective: Collective, k: int | None) -> BoundReport:
    """Return the bound on `collective`, checked by separate code. `k` is for collectives of trees only."""
    require_reach(topology)
    if collective.name in _WITHOUT_TREES:
        if k is not None:
            rule = "--k is for allgather, reduce_scatter, broadcast and reduce"
            raise InvalidInput(rule, collective.name, "add --collective allgather")
        report = _without_trees(topology, collective)
    else:
        unrestricted = optimum(topology, collective)
        best = unrestricted if k is None else fixed_k_optimum(topology, collective, k)
        report = BoundReport(topology, collective, best.bound, best, unrestricted)
    in_network = in_network_bound(topology, collective)
    if in_network is not None:
        check_certificate(topology, collective, in_network.to_json(topology))
        report = replace(report, bound=stronger(report.bound, in_network))  # it holds for ranks alone, too
    check_certificate(topology, collective, report.bound.to_json(topology))
    return replace(report, in_network=in_network)


def _without_trees(topology: Topology, collective: Collective) -> BoundReport:
    if collective.name != CollectiveName.ALLREDUCE:
        return BoundReport(topology, collective, lower_bound(topology, collective), None, None)
    both = reduce_scatter_allgather_time(topology)
    bound = lower_bound(topology, collective, both)
    pairs = pairs_if_countable(topology) if bound.value < both else None
    if pairs is not None:
        check_pair_certificate(topology, pairs.certificate)
    return BoundReport(topology, collective, bound, None, None, both, pairs)


def assumption_facts(topology: Topology) -> dict[str, Any]:
    """Return the member `assumptions` of a document about a network from a machine; nothing for others."""
    return {"assumptions": [fact.to_json() for fact in topology.assumptions]} if topology.assumptions else {}


def expected_facts(topology: Topology, collective: Collective) -> dict[str, Any] | None:
    """Return the bound at the rates that the machine's library reckons with, None if these are not known."""
    expected = topology.expected
    if expected is None:
        return None
    report = bound_report(expected, collective, None)
    return {
        "time_per_byte": str(report.bound.value),
        "algbw": float(1 / report.bound.value),
        "in_network": bound_facts(expected, report.in_network),
    }


def bound_document(report: BoundReport) -> dict[str, Any]:
    """Return the JSON document of `chorale bound`."""
    topology, bound, best = report.topology, report.bound, report.best
    document = {
        "topology": {
            "spec": topology.spec,
            "nodes": topology.compute_count,
            "switches": topology.switch_count,
            "id": topology.id,
        },
        "collective": report.collective.name.value,
        "root": report.collective.root,
        "time_per_byte": rational_text(bound.value),
        "algbw": float(1 / bound.value),
        "bottleneck_cut": [topology.node_ids[node] for node in _bottleneck(report)],
        "k_optimal": report.unrestricted.k if report.unrestricted else None,
        "certificate": dict(bound.to_json(topology)),
        "in_network": bound_facts(topology, report.in_network),
        **assumption_facts(topology),
    }
    if topology.assumptions:
        document["expected"] = expected_facts(topology, report.collective)
    if best is not None and report.unrestricted is not None:
        document["k"] = best.k
        document["k_is_fewest"] = best.is_fewest
        document["trees_per_bandwidth"] = rational_text(best.trees_per_bandwidth)
        document["gap_to_any_k"] = rational_text(best.time_per_byte / report.unrestricted.time_per_byte - 1)
        document["reached_by_trees"] = best.is_reached_by_trees(topology)
    if report.two_phases is not None:
        document["reduce_scatter_allgather"] = rational_text(report.two_phases)
        document["gap_to_reduce_scatter_allgather"] = rational_text(report.two_phases / bound.value - 1)
    if report.pairs is not None:
        parts = [root / report.pairs.split.rate for root in report.pairs.split.roots]
        document["tree_pairs"] = {
            "time_per_byte": rational_text(report.pairs.time_per_byte),
            "lower_bound": rational_text(report.pairs.bound),
            "gap": rational_text(report.pairs.gap),
            "roots": {topology.node_ids[rank]: rational_text(part) for rank, part in enumerate(parts) if part},
            "certificate": dict(report.pairs.certificate),
        }
    return document


def _bottleneck(report: BoundReport) -> tuple[int, ...]:
    return bottleneck_of(report.topology, report.bound)


def bound_table(report: BoundReport) -> Table:
    """Return the table for the terminal, which says why nothing can be faster."""
    topology, bound, best = report.topology, report.bound, report.best
    unit = _unit(topology)
    table = tables.facts_table(f"bound of {report.collective} on {topology.spec}")
    table.add_row("in short", in_short(report))
    table.add_row("network", f"{_count(topology.compute_count, 'rank')}, {_count(topology.switch_count, 'switch')}")
    table.add_row("time per byte", f"at least {tables.time_per_byte_text(bound.value, topology.bandwidth_unit)}")
    table.add_row("algbw", f"at most {tables.algbw_text(bound.value, topology.bandwidth_unit)}")
    if bound.kind != "alltoall-prices":
        nodes = _bottleneck(report)
        names = [topology.node_ids[node] for node in nodes]
        ranks = sum(1 for node in nodes if node < topology.compute_count)
        shown = " ".join(names[:_SHOWN_NODES]) + (" …" if len(names) > _SHOWN_NODES else "")
        table.add_row(
            "bottleneck", f"{_count(ranks, 'rank')} and {_count(len(nodes) - ranks, 'switch')} inside: {shown}"
        )
    table.add_row("because", reason(report, bound))
    if report.collective.name == CollectiveName.ALLTOALL:
        table.add_row("by prices of links", f"`chorale alltoall {topology.spec}` proves as much or more")
    if best is not None and report.unrestricted is not None:
        _add_trees(table, report, best, report.unrestricted)
    if report.two_phases is not None:
        gap = report.two_phases / bound.value - 1
        verdict = "optimal" if gap == 0 else f"{float(gap):.2%} above the bound"
        text = tables.time_per_byte_text(report.two_phases, topology.bandwidth_unit)
        table.add_row("reduce_scatter, allgather", f"{text}: {verdict}")
    if report.pairs is not None:
        _add_pairs(table, report.pairs, bound.value, topology.bandwidth_unit)
    if report.in_network is not None:
        _add_in_network(table, report, report.in_network, unit)
    table.add_row("certificate", "checked by separate code")
    return table


def in_short(report: BoundReport) -> str:
    """Return the bound in a sentence: what a GiB takes at least, and between which ranks the links limit it."""
    topology, bound = report.topology, report.bound
    what = f"{report.collective} of 1GiB takes at least"
    if topology.bandwidth_unit in tables.BYTES_PER_S:
        seconds = bound.value * 2**30 / tables.BYTES_PER_S[topology.bandwidth_unit]
        what = f"{what} {tables.seconds_text(seconds)}"
    else:
        what = f"{report.collective} takes at least {tables.decimal(bound.value)} × the time of its size on one link"
    if bound.kind == "alltoall-prices":
        return f"{what}: all links together limit it"
    inside = sum(1 for node in _bottleneck(report) if node < topology.compute_count)
    outside = topology.compute_count - inside
    if not outside or not inside:
        return f"{what}: the links between all ranks limit it"
    return f"{what}: the links between {_count(inside, 'rank')} and the other {outside} limit it"


def _add_in_network(table: Table, report: BoundReport, bound: Bound, unit: str) -> None:
    able = _count(len(report.topology.abilities), "switch")
    gain = report.bound.value / bound.value - 1
    verdict = f"{float(gain):.2%} more" if gain else "no more than ranks alone"
    table.add_row(f"{able} that can do more", f"at most {float(1 / bound.value):.6g} {unit} ({verdict})")
    table.add_row("because", reason(report, bound))


def _add_trees(table: Table, report: BoundReport, best: Optimum, unrestricted: Optimum) -> None:
    table.add_row("trees per shard", f"k = {best.k}, {_choice_of_k(best)}")
    table.add_row("trees per bandwidth", f"U = {best.trees_per_bandwidth}: a link of b carries floor(U b) trees")
    if best.is_k_fixed:
        gap = best.time_per_byte / unrestricted.time_per_byte - 1
        least = tables.time_per_byte_text(unrestricted.time_per_byte, report.topology.bandwidth_unit)
        any_k = f"{least} with k = {unrestricted.k}"
        table.add_row("any k", f"{any_k}; the given k takes {float(gap):.2%} longer")
    reached = best.is_reached_by_trees(report.topology)
    table.add_row("trees reach it", "yes" if reached else "not for sure: one-way links leave a switch less in than out")


def _choice_of_k(best: Optimum) -> str:
    if best.is_k_fixed:
        return "as given"
    return "the fewest" if best.is_fewest else "enough; the search for fewer was given up"


def _add_pairs(table: Table, pairs: TreePairs, bound: Fraction, unit: str) -> None:
    gap = pairs.time_per_byte / bound - 1
    verdict = (
        "optimal" if gap == 0 else f"{float(gap):.2%} above the bound, {float(pairs.gap):.2g} above the best pairs"
    )
    roots = sum(1 for root in pairs.split.roots if root)
    table.add_row(
        "pairs of trees",
        f"{tables.time_per_byte_text(pairs.time_per_byte, unit)} from {_count(roots, 'root')}: {verdict}",
    )


def reason(report: BoundReport, bound: Bound) -> str:
    """Say what must cross where, over how much bandwidth."""
    unit = _unit(report.topology)
    topology, name = report.topology, report.collective.name
    if bound.kind in ("received", "sent"):
        groups = (
            len(bound.parts)
            + topology.compute_count
            - sum(1 for part in bound.parts for node in part if node < topology.compute_count)
        )
        moved = Fraction(2 * (groups - 1))
        grouped = {node for part in bound.parts for node in part}
        limited = [ability.reduce_bandwidth for node, ability in topology.abilities.items() if node not in grouped]
        if bound.in_network and any(limited):
            what = f"{groups} groups of ranks must have {bound.kind} {moved} × size in all"
            return f"{what}, less of what an adder outside adds, at most its rate"
        what = f"{groups} groups of ranks must have {bound.kind} {moved} × size in all"
        return f"{what}, over {_rate(moved / bound.value)} {unit}"
    if bound.kind == "alltoall-prices":
        ranks, capacity = topology.compute_count, sum(link.bandwidth for link in topology.links)
        hops = bound.value * capacity / (ranks - 1)
        amount = tables.with_fraction(f"{float(hops):.3g} links on average", hops)
        return f"what a rank sends to another crosses {amount}, over {_rate(Fraction(capacity))} {unit} in all"
    way = "in" if bound.kind == "into" else "out"
    inside = sum(1 for node in bound.nodes if node < topology.compute_count)
    moved = Fraction(1)
    if name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        moved = Fraction(topology.compute_count - inside, topology.compute_count)
    elif name == CollectiveName.ALLTOALL:
        moved = Fraction(inside * (topology.compute_count - inside), topology.compute_count)
    if bound.k is not None and report.best is not None:
        trees = rational_text(moved * report.best.shards * bound.k)
        return f"{trees} trees must get {way}, and with any smaller U fewer fit on the links"
    amount = tables.with_fraction(f"{float(moved):.3g} × size", moved)
    return f"{amount} must get {way}, over {_rate(moved / bound.value)} {unit}"


def _rate(value: Fraction) -> str:
    return tables.with_fraction(f"{float(value):.6g}", value)


def _unit(topology: Topology) -> str:
    return "links" if topology.bandwidth_unit == "link" else topology.bandwidth_unit


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def bound_facts(topology: Topology, bound: Bound | None) -> dict[str, Any] | None:
    """Return a bound as JSON; None where there is none."""
    if bound is None:
        return None
    return {
        "time_per_byte": rational_text(bound.value),
        "algbw": float(1 / bound.value),
        "bottleneck_cut": [topology.node_ids[node] for node in bottleneck_of(topology, bound)],
        "certificate": dict(bound.to_json(topology)),
    }


def bottleneck_of(topology: Topology, bound: Bound) -> tuple[int, ...]:
    """Return the nodes that a bound is about; of ranks by themselves, the bottleneck of allgather."""
    if bound.nodes or bound.parts:
        return bound.nodes or bound.parts[0]
    return optimum(topology, ALLGATHER).cut


def in_network_note(topology: Topology) -> str:
    """Return what runs a schedule in which the switches of `topology` add."""
    able = len(topology.abilities)
    if able == 1:
        return "lower --target mscclpp-json makes a plan for one box; in NCCL its NVLS does it"
    return f"no GPU target runs it over {able} switches; NCCL's NVLSTree or SHARP add there, oneccl-xml emulates it"


@dataclass(frozen=True, slots=True)
class BoundOnNodes:
    """Nodes in the order of their ranks, and the bound of a collective on them."""

    name: str
    hosts: tuple[str, ...]
    report: BoundReport

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches between nodes, not those within them."""
        names = self.report.topology.node_ids[self.report.topology.compute_count :]
        return tuple(name for name in names if ":" not in name)


def placement_result(placements: Sequence[BoundOnNodes]) -> tables.Result:
    """Return documents and rows; `ratio` is the time of the first over that of the last, per byte."""
    first, last = placements[0], placements[-1]
    collective, ratio = first.report.collective, first.report.bound.value / last.report.bound.value
    table = tables.ruled_table(
        "", "hosts", "ranks", "switches", "algbw", title=f"bounds of {collective}", title_justify="left"
    )
    documents = []
    for each in placements:
        topology, bound = each.report.topology, each.report.bound
        documents.append(
            {
                "name": each.name,
                "hosts": list(each.hosts),
                "ranks": topology.compute_count,
                "switches": list(each.switches),
                "time_per_byte": rational_text(bound.value),
                "algbw": float(1 / bound.value),
                "certificate": dict(bound.to_json(topology)),
            }
        )
        algbw = f"at most {tables.algbw_text(bound.value, topology.bandwidth_unit)}"
        table.add_row(each.name, ",".join(each.hosts), str(topology.compute_count), ",".join(each.switches), algbw)
    better, worse, times = (last, first, ratio) if ratio > 1 else (first, last, 1 / ratio)
    table.caption = f"{better.name}: {tables.decimal(times)}× the bandwidth of {worse.name}"
    if ratio == 1:
        table.caption = f"both bounds are the same: the switches do not tell {first.name} from {last.name}"
    table.caption_justify = "left"
    document = {"collective": collective.name.value, "placements": documents, "ratio": rational_text(ratio)}
    return tables.Result(document, table)


@dataclass(frozen=True, slots=True)
class FailurePlan:
    """A verified schedule of the network after a failure: T_B / M and its bound in 1 / bandwidth_unit, seconds taken.

    `failure` is None for the fabric as it is.
    """

    failure: Failure | None
    spec: str
    time_per_byte: Fraction
    lower_bound: Fraction
    chunks_per_shard: int
    height: int
    schedule_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NoPlan:
    """A failure without a schedule, and why in one line: the remaining network may be cut in two."""

    failure: Failure | None
    spec: str
    reason: str


_START_OF_PROCESSES_S = 0.5


@dataclass(frozen=True, slots=True)
class _Job:
    topology: Topology
    method: str
    collective: Collective
    options: Options


def plan_failures(
    topology: Topology,
    method: str,
    collective: Collective,
    options: Options,
    executor: Executor,
    progress: Progress | None = None,
    parts: Iterable[str | Fraction] = (),
) -> list[FailurePlan | NoPlan]:
    """Return a plan for `topology` as it is, then one for every single failure up to symmetry.

    One task of `executor` each, but for the network as it is; each verifies its schedule and checks its bound. Where
    that tells that processes would start for longer than they work, none are started.
    """
    job, failures = _Job(topology, method, collective, options), list(single_failures(topology, parts))
    whole = _plan(job, None)
    is_quick = isinstance(whole, FailurePlan) and whole.seconds * len(failures) < _START_OF_PROCESSES_S
    at_work = SerialExecutor() if is_quick and executor.name == "processes" else executor
    return [whole, *at_work.map(_plan, failures, job, progress)]


def _plan(job: _Job, failure: Failure | None) -> FailurePlan | NoPlan:
    started_s = time.perf_counter()
    spec = failure.spec(job.topology) if failure else job.topology.spec
    try:
        topology = failure.survivor(job.topology) if failure else job.topology
        verified = synthesize(job.method, topology, job.collective, job.options, SerialExecutor())
        bound = bound_of_schedule(verified.schedule, verified.cost.time_per_byte)
        check_certificate(topology, job.collective, bound.to_json(topology))
    except ChoraleError as error:  # one failure without a plan must not hide the plans of the others
        return NoPlan(failure, spec, str(error))
    return FailurePlan(
        failure, spec, verified.cost.time_per_byte, bound.value, verified.schedule.chunks_per_shard,
        verified.schedule.steps, verified.schedule.id, time.perf_counter() - started_s,
    )  # fmt: skip


COLUMNS = (
    "failure", "alike", "spec", "time_per_byte", "algbw", "lower_bound", "gap", "slowdown", "chunks_per_shard",
    "height", "schedule_id", "seconds", "reason",
)  # fmt: skip

_WORST = 20
"""So many failures are shown to people; the JSON document has all of them."""


def failures_document(plans: Sequence[FailurePlan | NoPlan], method: str, collective: Collective) -> dict[str, Any]:
    """Return the fabric as it is, all failures in order, and how many have no plan."""
    whole, rows = plans[0], plans[1:]
    intact = whole.time_per_byte if isinstance(whole, FailurePlan) else None
    return {
        "title": f"{collective} by {method} on {whole.spec}",
        "intact": _row(whole, intact),
        "failures": [_row(plan, intact) for plan in rows],
        "without_plan": sum(isinstance(plan, NoPlan) for plan in rows),
    }


def failures_table(document: Mapping[str, Any], unit: str) -> Table:
    """Return the table of the failures that cost most, those without a plan first."""
    ranked = sorted(document["failures"], key=lambda row: -float(Fraction(row["slowdown"] or 10**9)))
    lost = sum(row["alike"] for row in ranked)
    title = f"{document['title']}\n{lost} single failures, {document['without_plan'] or 'none'} without a plan"
    table = tables.ruled_table(title=title)
    table.add_column("failure", overflow="fold", min_width=9)
    for name in ("alike", f"algbw\n({unit})", "time\nfactor", "over\noptimum", "chunks", "height", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*_cells(document["intact"]))
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in ranked:  # the same kind of failure at the same cost, though no symmetry is known that maps them
        kind = str(row["failure"]).partition("=")[0]
        groups.setdefault((kind, row.get("reason", ""), *_cells(row)[2:-1]), []).append(row)
    shown = list(groups.values())
    for rows in shown[:_WORST]:
        name, _, *cells = _cells(rows[0])
        more = f" +{len(rows) - 1}" if len(rows) > 1 else ""
        table.add_row(name + more, str(sum(row["alike"] for row in rows)), *cells)
    table.caption = "alike: failures with the same plan or the same cost; time factor: against the fabric as it is"
    if len(shown) > _WORST:
        table.caption += f"; the {_WORST} kinds that cost most, --json has all"
    return table


def failures_csv(document: Mapping[str, Any]) -> str:
    """Return the fabric as it is and all failures as a table of comma-separated values, one line each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([document["intact"], *document["failures"]])
    return text.getvalue()


def _row(plan: FailurePlan | NoPlan, intact: Fraction | None) -> dict[str, Any]:
    failure = plan.failure
    row: dict[str, Any] = {
        "failure": str(failure) if failure else None,
        "alike": failure.copies if failure else 1,
        "spec": plan.spec,
    }
    if isinstance(plan, NoPlan):
        return row | {"reason": plan.reason, "slowdown": None}
    return row | {
        "time_per_byte": str(plan.time_per_byte),
        "algbw": float(1 / plan.time_per_byte),
        "lower_bound": str(plan.lower_bound),
        "gap": str(plan.time_per_byte / plan.lower_bound - 1),
        "slowdown": None if intact is None else str(plan.time_per_byte / intact),
        "chunks_per_shard": plan.chunks_per_shard,
        "height": plan.height,
        "schedule_id": plan.schedule_id,
        "seconds": plan.seconds,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    name = row["failure"] or "none: as it is"
    if "reason" in row:
        return [f"{name}: {row['reason']}", str(row["alike"]), *["-"] * 6]
    slowdown = "-" if row["slowdown"] is None else f"{float(Fraction(row['slowdown'])):.3f}"
    gap = f"{100 * float(Fraction(row['gap'])):.2f} %"
    counts = [str(row["chunks_per_shard"]), str(row["height"]), f"{row['seconds']:.2f}"]
    return [name, str(row["alike"]), f"{row['algbw']:.2f}", slowdown, gap, *counts]
