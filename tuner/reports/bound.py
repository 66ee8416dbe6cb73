"""Creates reports on bounds for collectives (with proofs and assumptions) and on schedules after single failures."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from rich.table import Table

from chorale.synth import ChoraleError, Collective, InvalidInput, ScheduleRequest, SerialExecutor, Topology
from chorale.synth.bounds import lower_bound as lower_bounds
from chorale.synth.bounds.certificate import check_certificate, check_pair_certificate
from chorale.synth.bounds.optimum import Bound, Optimum, fixed_k_optimum, optimum
from chorale.synth.bounds.switch_limits import switch_bound
from chorale.synth.bounds.tree_pairs import TreePairs, pairs_if_countable
from chorale.synth.build.build import verified_schedule
from chorale.synth.collective import ALLGATHER, ALLREDUCE, CollectiveName
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.identity import rational_text
from chorale.synth.topology.failures import Failure, single_failures
from chorale.tuner.reports import tables

_SHOWN_NODES = 12
MOST_RANKS = 128
"""Maximum number of ranks for which a machine's bounds are shown; on larger machines, computing them takes long."""
_START_OF_PROCESSES_S = 0.5
_WORST = 20
"""Number of rows in the table of failures; the JSON document contains all failures."""


@dataclass(frozen=True, slots=True)
class BoundReport:
    """A checked lower bound on the time of a collective, and what is known about reaching it.

    best:         for collectives that use trees, the optimum for the requested number of trees per root
    unrestricted: the optimum for any number of trees per root
    two_phases:   for allreduce, the time per byte of the best reduce_scatter followed by the best allgather
    pairs:        for allreduce, the best pairs of a reduce tree and a broadcast tree; computed only on small fabrics,
                  and only if two phases might not be optimal
    in_network:   the bound if switches multicast and reduce data; None if no switch can do so
    """

    topology: Topology
    collective: Collective
    bound: Bound
    best: Optimum | None = None
    unrestricted: Optimum | None = None
    two_phases: Fraction | None = None
    pairs: TreePairs | None = None
    in_network: Bound | None = None


def checked(topology: Topology, collective: Collective, bound: Bound) -> Bound:
    """Check the certificate of `bound` with independent code, and return `bound`."""
    check_certificate(topology, collective, bound.to_json(topology))
    return bound


def bound_report(topology: Topology, collective: Collective, k: int | None) -> BoundReport:
    """Return the checked bound on `collective` and, if it uses trees, the optimum for `k` trees per root."""
    lower_bounds.require_reach(topology)
    if collective.name in (CollectiveName.ALLREDUCE, CollectiveName.ALLTOALL):
        if k is not None:
            rule = "--k works with allgather, reduce_scatter, broadcast and reduce, not with {}"
            raise InvalidInput(rule, collective.name, "add --collective allgather")
        report = BoundReport(topology, collective, lower_bounds.lower_bound(topology, collective))
        if collective.name == CollectiveName.ALLREDUCE:
            both = lower_bounds.reduce_scatter_allgather_time(topology)
            bound = lower_bounds.lower_bound(topology, collective, both)
            pairs = pairs_if_countable(topology) if bound.value < both else None
            if pairs is not None:
                check_pair_certificate(topology, pairs.certificate)
            report = BoundReport(topology, collective, bound, two_phases=both, pairs=pairs)
    else:
        unrestricted = optimum(topology, collective)
        best = unrestricted if k is None else fixed_k_optimum(topology, collective, k)
        report = BoundReport(topology, collective, best.bound, best, unrestricted)
        limited = switch_bound(topology, collective)
        if limited is not None and limited.value > best.time_per_byte:
            report = replace(report, bound=limited)
    in_network = lower_bounds.in_network_bound(topology, collective)
    if in_network is not None:
        checked(topology, collective, in_network)
        report = replace(
            report, bound=lower_bounds.stronger(report.bound, in_network)
        )  # a bound with the switches' help also holds without it
    checked(topology, collective, report.bound)
    return replace(report, in_network=in_network)


def assumption_facts(topology: Topology) -> dict[str, Any]:
    """Return {"assumptions": …} for a document; {} if the network was not read from a machine."""
    return {"assumptions": [asdict(fact) for fact in topology.assumptions]} if topology.assumptions else {}


def network_facts(topology: Topology) -> dict[str, Any]:
    """Return a document's key `topology` and, if the network was read from a machine, also its key `assumptions`."""
    network = {"spec": topology.spec, "nodes": topology.compute_count, "switches": topology.switch_count}
    network |= {"bandwidth_unit": topology.bandwidth_unit, "id": topology.id}
    return {"topology": network, **assumption_facts(topology)}


def assumption_rows(document: Mapping[str, Any], *sources: str) -> Iterator[tuple[str, str]]:
    """Yield a table row for each assumption in a document; if `sources` are given, only for assumptions from these."""
    for fact in document.get("assumptions", ()):
        if fact["source"] in (sources or (fact["source"],)):
            yield f"assumed ({fact['source']})", f"{fact['what']}: {fact['value']} ({fact['reference']})"


def expected_facts(topology: Topology, collective: Collective) -> dict[str, Any] | None:
    """Return the bound at the link rates that the machine's NCCL or RCCL assumes, or None if these are unknown."""
    expected = topology.expected
    if expected is None:
        return None
    report = bound_report(expected, collective, None)
    in_network = report.in_network and bound_facts(expected, report.in_network)
    return bound_facts(expected, report.bound) | {"in_network": in_network}


def machine_bounds(topology: Topology) -> dict[str, Any]:
    """Return the keys `bound` and `expected` for an allreduce if the network was read from a machine, otherwise {}."""
    if not topology.assumptions or topology.compute_count > MOST_RANKS:
        return {}
    bound = bound_facts(topology, bound_report(topology, ALLREDUCE, None).bound)
    return {"bound": {"collective": "allreduce"} | bound, "expected": expected_facts(topology, ALLREDUCE)}


def bound_label(certificate: Mapping[str, Any]) -> str:
    """Return how tables label a bound; the label says whether the bound depends on assumptions."""
    return "bound under these assumptions" if certificate.get("under") else "proven bound"


def proof(topology: Topology) -> str:
    """Return a label for bounds that use all links: "proven", or "under these assumptions" if rates are guessed."""
    return "under these assumptions" if topology.is_guessed() else "proven"


def gap_verdict(gap: Fraction, certificate: Mapping[str, Any]) -> str:
    """Return a text such as "optimal, proven" about a schedule's relative `gap` to the bound with `certificate`."""
    label = bound_label(certificate)
    if gap:
        return f"{float(gap):.2%} above the {label}"
    return "optimal under these assumptions" if certificate.get("under") else "optimal, proven"


def bound_document(report: BoundReport) -> dict[str, Any]:
    topology, bound, best = report.topology, report.bound, report.best
    document = {
        **network_facts(topology),
        "collective": report.collective.name.value,
        "root": report.collective.root,
        **bound_facts(topology, bound),
        "k_optimal": report.unrestricted.k if report.unrestricted else None,
        "in_network": report.in_network and bound_facts(topology, report.in_network),
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


def bound_table(report: BoundReport, document: Mapping[str, Any]) -> Table:
    """Return a table for the terminal that explains why no schedule can be faster than the bound.

    document: result of `bound_document` for `report`
    """
    table = tables.facts_table(f"bound of {report.collective} on {report.topology.spec}", _bound_rows(report))
    if (expected := document.get("expected")) is not None:
        text = tables.algbw_text(Fraction(expected["time_per_byte"]), report.topology.bandwidth_unit)
        table.add_row("expected from the library", text)
    for row in assumption_rows(document, "guess"):
        table.add_row(*row)
    return table


def _bound_rows(report: BoundReport) -> Iterator[tuple[str, str]]:
    topology, bound, best, pairs = report.topology, report.bound, report.best, report.pairs
    unit = topology.bandwidth_unit
    yield "in short", _in_short(report)
    yield "network", f"{_count(topology.compute_count, 'rank')}, {_count(topology.switch_count, 'switch')}"
    yield "time per byte", f"at least {tables.time_per_byte_text(bound.value, unit)}"
    yield "algbw", f"at most {tables.algbw_text(bound.value, unit)}"
    if bound.kind != "alltoall-prices":
        names = _bottleneck_names(topology, bound)
        ranks = sum(node < topology.compute_count for node in bottleneck_of(topology, bound))
        shown = " ".join(names[:_SHOWN_NODES]) + (" …" if len(names) > _SHOWN_NODES else "")
        yield "bottleneck", f"{_count(ranks, 'rank')} and {_count(len(names) - ranks, 'switch')} inside: {shown}"
    yield "because", reason(report, bound)
    if report.collective.name == CollectiveName.ALLTOALL:
        yield "by prices of links", f"`chorale alltoall {topology.spec}` proves as much or more"
    if best is not None and report.unrestricted is not None:
        choice = "the fewest" if best.is_fewest else "enough; the search for fewer was given up"
        per = "shard" if report.collective.sizes is None else "unit of a shard"
        yield f"trees per {per}", f"k = {best.k}, {'as given' if best.is_k_fixed else choice}"
        yield "trees per bandwidth", f"U = {best.trees_per_bandwidth}: a link of bandwidth b carries floor(U b) trees"
        if best.is_k_fixed:
            least, k = report.unrestricted.time_per_byte, report.unrestricted.k
            longer = f"the given k takes {float(best.time_per_byte / least - 1):.2%} longer"
            yield "any k", f"{tables.time_per_byte_text(least, unit)} with k = {k}; {longer}"
        unsure = "not certain: one-way links give a switch less incoming than outgoing bandwidth"
        if bound.kind not in (best.bound.kind, "received"):
            unsure = "no: a switch would have to send more than it receives"
        yield "trees reach it", "yes" if best.is_reached_by_trees(topology) else unsure
    if report.two_phases is not None:
        verdict = _above(report.two_phases / bound.value - 1)
        yield "reduce_scatter, allgather", f"{tables.time_per_byte_text(report.two_phases, unit)}: {verdict}"
    if pairs is not None:
        gap, roots = pairs.time_per_byte / bound.value - 1, _count(sum(map(bool, pairs.split.roots)), "root")
        verdict = _above(gap) + (f", {float(pairs.gap):.2g} above the best pairs" if gap else "")
        yield "pairs of trees", f"{tables.time_per_byte_text(pairs.time_per_byte, unit)} from {roots}: {verdict}"
    if (acting := report.in_network) is not None:
        gain = bound.value / acting.value - 1
        verdict = f"{float(gain):.2%} more" if gain else "no more than ranks alone"
        able = _count(len(topology.abilities), "switch")
        yield f"{able} that can do more", f"at most {float(1 / acting.value):.6g} {_unit(topology)} ({verdict})"
        yield "because", reason(report, acting)
    yield "certificate", "checked by separate code"


def _above(gap: Fraction) -> str:
    return "optimal" if gap == 0 else f"{float(gap):.2%} above the bound"


def _in_short(report: BoundReport) -> str:
    """Return the bound in a sentence: the shortest time for 1 GiB, and the groups of ranks whose links limit it."""
    topology, bound = report.topology, report.bound
    if topology.bandwidth_unit in tables.BYTES_PER_S:
        seconds = bound.value * 2**30 / tables.BYTES_PER_S[topology.bandwidth_unit]
        what = f"{report.collective} of 1GiB takes at least {tables.seconds_text(seconds)}"
    else:
        what = f"{report.collective} takes at least {tables.decimal(bound.value)} × the time of its size on one link"
    if bound.kind == "alltoall-prices":
        return f"{what}: all links together limit it"
    if bound.kind in ("cuts-into", "cuts-out-of"):
        return f"{what}: switches that cannot {'copy' if bound.kind == 'cuts-into' else 'add'} limit it"
    inside = sum(node < topology.compute_count for node in bottleneck_of(topology, bound))
    outside = topology.compute_count - inside
    if not outside or not inside:
        return f"{what}: the links between all ranks limit it"
    return f"{what}: the links between {_count(inside, 'rank')} and the other {outside} limit it"


def reason(report: BoundReport, bound: Bound) -> str:
    """Explain a bound: the data that must cross a cut, and the bandwidth of that cut."""
    topology, name, unit = report.topology, report.collective.name, _unit(report.topology)
    ranks = topology.compute_count
    if bound.kind in ("received", "sent"):
        groups = len(bound.parts) + ranks - sum(node < ranks for part in bound.parts for node in part)
        moved = Fraction(2 * (groups - 1))
        what = f"{groups} groups of ranks must have {bound.kind} {moved} × size in all"
        grouped = {node for part in bound.parts for node in part}
        limited = [ability.reduce_bandwidth for node, ability in topology.abilities.items() if node not in grouped]
        if bound.in_network and any(limited):
            return f"{what}, but less of the part that a switch outside adds, at most its rate"
        return f"{what}, over {_rate(moved / bound.value)} {unit}"
    if bound.kind == "alltoall-prices":
        capacity = sum(link.bandwidth for link in topology.links)
        hops = bound.value * capacity / (ranks - 1)
        amount = tables.with_fraction(f"{float(hops):.3g} links on average", hops)
        return f"what a rank sends to another crosses {amount}, over {_rate(Fraction(capacity))} {unit} in all"
    if bound.kind in ("cuts-into", "cuts-out-of"):
        rule = (
            "copy sends no more than it receives" if bound.kind == "cuts-into" else "add receives no more than it sends"
        )
        nodes = ", ".join(topology.node_ids[node] for node, _ in bound.worth)
        return f"{len(bound.parts)} cuts together, as a switch that cannot {rule}: {nodes}"
    way = "in" if bound.kind == "into" else "out"
    inside = sum(node < ranks for node in bound.nodes)
    moved = Fraction(1)
    if (sizes := report.collective.sizes) is not None:
        moved -= Fraction(sum(sizes[node] for node in bound.nodes if node < ranks), sum(sizes))
    elif name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        moved = Fraction(ranks - inside, ranks)
    elif name == CollectiveName.ALLTOALL:
        moved = Fraction(inside * (ranks - inside), ranks)
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


def bound_facts(topology: Topology, bound: Bound) -> dict[str, Any]:
    return {
        "time_per_byte": rational_text(bound.value),
        "algbw": float(1 / bound.value),
        "bottleneck_cut": _bottleneck_names(topology, bound),
        "certificate": dict(bound.to_json(topology)),
    }


def bottleneck_of(topology: Topology, bound: Bound) -> tuple[int, ...]:
    """Return the nodes inside the bound's cut or, if it has no cut, inside the cut that limits an allgather."""
    if bound.nodes or bound.parts:
        return bound.nodes or bound.parts[0]
    return optimum(topology, ALLGATHER).cut


def _bottleneck_names(topology: Topology, bound: Bound) -> list[str]:
    return [topology.node_ids[node] for node in bottleneck_of(topology, bound)]


def in_network_note(topology: Topology) -> str:
    """Return a sentence that says how to run a schedule in which the switches of `topology` reduce data."""
    able = len(topology.abilities)
    if able == 1:
        return "NCCL's NVLS, or a plan for one box: chorale lower --target mscclpp-json"
    return f"NCCL's NVLSTree or SHARP over {able} switches; no GPU target can, oneccl-xml emulates it"


def plan_failures(
    request: ScheduleRequest, executor: Executor, progress: Progress | None = None, parts: Iterable[str | Fraction] = ()
) -> dict[str, Any]:
    """Return the JSON document about the schedule for `request` and about one schedule for each single failure.

    Failures that a symmetry maps to each other are planned once. Each plan is a task for `executor`, which verifies the
    schedule and checks the bound. If the tasks would take less time than starting processes, no processes are started.
    If a failure leaves no schedule, for example because it cuts the network in two, its row states the reason. Raises
    ChoraleError if there is no schedule for the intact network.

    parts: parts of links that may also fail: a kind of link such as "nvlink", or a fraction of the bandwidth
    """
    failures = list(single_failures(request.topology, parts))
    intact = _failure_row(request, None)
    is_quick = intact["seconds"] * len(failures) < _START_OF_PROCESSES_S
    at_work = SerialExecutor() if is_quick and executor.name == "processes" else executor
    rows = list(at_work.map(_failure_row, failures, request, progress))
    for row in (intact, *rows):
        if "reason" not in row:
            row["slowdown"] = str(Fraction(row["time_per_byte"]) / Fraction(intact["time_per_byte"]))
    return {
        "title": f"{request.collective} by {request.method} on {request.topology.spec}",
        "intact": intact,
        "failures": rows,
        "without_plan": sum("reason" in row for row in rows),
    }


def _failure_row(request: ScheduleRequest, failure: Failure | None) -> dict[str, Any]:
    """Return the row for `failure` (None: no failure). Time per byte and bound are in units of 1 / bandwidth_unit."""
    started_s, topology = time.perf_counter(), request.topology
    row: dict[str, Any] = {
        "failure": str(failure) if failure else None,
        "alike": failure.copies if failure else 1,
        "spec": failure.spec(topology) if failure else topology.spec,
    }
    try:
        if failure is not None:
            request = replace(request, topology=failure.survivor(topology))
        verified = verified_schedule(request)
        schedule, achieved = verified.schedule, verified.cost.time_per_byte
        bound = checked(request.topology, request.collective, lower_bounds.bound_of_schedule(schedule, achieved))
    except ChoraleError as error:  # one failure without a plan must not hide the other plans
        if failure is None:
            raise
        return row | {"reason": str(error), "slowdown": None}
    return row | {
        "time_per_byte": str(achieved),
        "algbw": float(1 / achieved),
        "lower_bound": str(bound.value),
        "gap": str(achieved / bound.value - 1),
        "slowdown": None,
        "chunks_per_shard": schedule.chunks_per_shard,
        "height": schedule.steps,
        "schedule_id": schedule.id,
        "seconds": time.perf_counter() - started_s,
    }


def failures_table(document: Mapping[str, Any], unit: str) -> Table:
    """Return the table of the most costly failures. Failures without a plan come first."""
    ranked = sorted(document["failures"], key=lambda row: -float(Fraction(row["slowdown"] or 10**9)))
    lost = sum(row["alike"] for row in ranked)
    title = f"{document['title']}\n{lost} single failures, {document['without_plan'] or 'none'} without a plan"
    table = tables.ruled_table(title=title)
    table.add_column("failure", overflow="fold", min_width=9)
    for name in ("alike", f"algbw\n({unit})", "time\nfactor", "over\noptimum", "chunks", "height", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*_cells(document["intact"]))
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in ranked:  # group failures of the same kind and cost, even if no symmetry maps them to each other
        kind = str(row["failure"]).partition("=")[0]
        groups.setdefault((kind, row.get("reason", ""), *_cells(row)[2:-1]), []).append(row)
    shown = list(groups.values())
    for rows in shown[:_WORST]:
        name, _, *cells = _cells(rows[0])
        more = f" +{len(rows) - 1}" if len(rows) > 1 else ""
        table.add_row(name + more, str(sum(row["alike"] for row in rows)), *cells)
    table.caption = (
        "alike: failures with the same plan or the same cost; time factor: relative to the fabric without failures"
    )
    if len(shown) > _WORST:
        table.caption += f"; the {_WORST} kinds that cost most, --json has all"
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    name = row["failure"] or "none: as it is"
    if "reason" in row:
        return [f"{name}: {row['reason']}", str(row["alike"]), *["-"] * 6]
    slowdown = "-" if row["slowdown"] is None else f"{float(Fraction(row['slowdown'])):.3f}"
    gap = f"{100 * float(Fraction(row['gap'])):.2f} %"
    counts = [str(row["chunks_per_shard"]), str(row["height"]), f"{row['seconds']:.2f}"]
    return [name, str(row["alike"]), f"{row['algbw']:.2f}", slowdown, gap, *counts]
