"""`chorale alltoall`: how fast an all-to-all over any routes can be at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.synth.bounds.certificate import check_alltoall_certificate
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, METHODS, alltoall_rate, parse_method
from chorale.synth.methods.alltoall.rate import AllToAllRate, RateMethod
from chorale.synth.methods.alltoall.schedule import alltoall_schedule, require_schedule_size
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.cli.options import ScheduleOutput, Spec
from chorale.tuner.cli.output import people, status_line, warn
from chorale.tuner.files.schedule_files import require_schedule_suffix, save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.files.traffic_files import load_traffic
from chorale.tuner.reports.stopwatch import Stopwatch, peak_memory_bytes
from chorale.tuner.reports.tables import Result, facts_table
from chorale.tuner.reports.traffic import (
    baseline_of,
    comparison_document,
    plan_document,
    replan_documents,
    schedule_document,
    traffic_table,
    verified_traffic,
    warnings_of,
)


def alltoall(
    spec: Spec,
    gap: Annotated[
        str, typer.Option(help="Stop where the bounds differ by this part; only prices stop early.")
    ] = rational_text(DEFAULT_GAP),
    method: Annotated[
        str | None, typer.Option(help=f"How to solve: {' or '.join(METHODS)}; default: by the size of the problem.")
    ] = None,
    output: ScheduleOutput = None,
    chunks: Annotated[
        int | None,
        typer.Option(
            help="Chunks per shard of the schedule, of the largest with --traffic; default: as few as suffice."
        ),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|zipf:S", help="Amounts of all pairs of ranks: .json, .csv or .npy, or a skew of experts."
        ),
    ] = None,
    following: Annotated[
        list[str] | None,
        typer.Option("--next", metavar="FILE|zipf:S", help="Then plan again for this traffic; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Orders the experts of a skew; that of --next counts on.")] = 0,
    transposed: Annotated[
        bool, typer.Option("--combine", help="Plan the way back of the traffic, as after a dispatch to experts.")
    ] = False,
) -> Result:
    """Bound the rate at which every rank can send to every other at once, over any routes.

    The lower bound is reached by flows that were found, the upper one is proven by prices of links; both are exact.

    With --traffic, plan an all-to-all of given sizes instead, verify its schedule, and compare it with direct sending.

    Example: chorale alltoall torus:4x4 -o alltoall.parquet

    Example: chorale alltoall a100:4 --traffic zipf:1.2 --next zipf:1.2
    """
    if output is not None:
        require_schedule_suffix(output)
    elif chunks is not None and traffic is None:
        raise InvalidInput("--chunks is for a schedule", f"--chunks {chunks} without a file", "add -o alltoall.parquet")
    rate_method, allowed = parse_method(method), parse_rational(gap, "--gap")
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
        if output is not None or traffic is not None:
            require_schedule_size(topology, chunks)
    if traffic is not None:
        request = _TrafficRequest([traffic, *(following or ())], seed, transposed, chunks, allowed, rate_method, output)
        return _traffic_result(topology, request, stages)
    if following or transposed:
        raise InvalidInput("--next and --combine are for given traffic", "no --traffic", "add --traffic zipf:1.2")
    with status_line(f"all-to-all on {spec}") as show, stages.stage("rate"):
        rate = alltoall_rate(topology, allowed, rate_method, lambda lower, upper: show(_bounds_text(lower, upper)))
    if rate.gap > allowed:
        people.print(f"the bounds differ by {float(rate.gap):.3%} still: the largest number of iterations is done")
    document = _alltoall_document(topology, rate)
    if output is not None:
        written = _write_schedule(topology, chunks, rate, rate_method, output, stages)
        # What the schedule reaches and proves is known of the rate too.
        rate = AllToAllRate(max(rate.lower, written.reached), min(rate.upper, written.upper), rate.method)
        document = _alltoall_document(topology, rate) | {"schedule": _schedule_document(written, rate, output)}
        document["warnings"] = _gap_warnings(written, rate, chunks)
        warn(document)
    seconds = stages.report(outside_total=("topology", "schedule", "verification", "writing"))
    document |= {"seconds": seconds.pop("total"), "stages": seconds, "peak_memory_bytes": peak_memory_bytes()}
    return Result(document, _alltoall_table(document, topology.bandwidth_unit))


def _alltoall_document(topology: Topology, rate: AllToAllRate) -> dict[str, Any]:
    return {
        "topology": {"spec": topology.spec, "nodes": topology.compute_count, "id": topology.id},
        "rate": float(rate.rate),
        "lower": float(rate.lower),
        "upper": float(rate.upper),
        "exact": rational_text(rate.rate) if rate.gap == 0 else None,
        "gap": float(rate.gap),
        "method": rate.method,
    }


@dataclass(frozen=True, slots=True)
class _Written:
    """A verified schedule on disk. reached: its rate, exact;  upper: what its certificate proves."""

    schedule: Schedule
    reached: Fraction
    upper: Fraction


def _write_schedule(
    topology: Topology,
    chunks: int | None,
    rate: AllToAllRate,
    method: RateMethod | None,
    output: str,
    stages: Stopwatch,
) -> _Written:
    """Build, verify and save a schedule."""
    with stages.stage("schedule"):
        schedule = alltoall_schedule(topology, chunks, max(rate.gap, DEFAULT_GAP), method)
    with stages.stage("verification"):
        verified = verify(schedule)
        upper = check_alltoall_certificate(topology, schedule.certificate)
    with stages.stage("writing"):
        save_schedule(verified, output)
    return _Written(schedule, 1 / (verified.cost.time_per_byte * topology.compute_count), upper)


def _schedule_document(written: _Written, rate: AllToAllRate, output: str) -> dict[str, Any]:
    schedule = written.schedule
    return {
        "rate": float(written.reached),
        "gap": float(rate.upper / written.reached - 1),
        "transfers": len(schedule.transfers),
        "hops": schedule.steps,
        "chunks_per_shard": schedule.chunks_per_shard,
        "id": schedule.id,
        "output": output,
    }


def _gap_warnings(written: _Written, rate: AllToAllRate, chunks: int | None) -> list[dict[str, str]]:
    """Return a warning, with what was tried, if the schedule is more than 1 % behind the bound."""
    gap = rate.upper / written.reached - 1
    if gap <= Fraction(1, 100):
        return []
    tried = "tried up to 4096 chunks per shard" if chunks is None else f"tried chunks = {chunks} as given"
    message = f"{float(gap):.2%} behind its bound; {tried}"
    return [{"kind": "bandwidth", "gap": str(gap), "tried": tried, "message": message}]


def _bounds_text(lower: Fraction, upper: Fraction) -> str:
    return f"{float(lower):.5g} to {float(upper):.5g}, {float(upper / lower - 1):.2%} apart"


def _alltoall_table(document: dict[str, Any], unit: str) -> Table:
    table = facts_table(f"all-to-all on {document['topology']['spec']}")
    table.add_row("ranks", str(document["topology"]["nodes"]))
    rate = f"{document['rate']:.6g} {'of a link' if unit == 'link' else unit}"
    exact = "" if document["exact"] is None else f", exactly {document['exact']}"
    table.add_row("each rank to every other", rate + exact)
    table.add_row("proven", f"{document['lower']:.6g} to {document['upper']:.6g} ({document['gap']:.3%} apart)")
    table.add_row("method", document["method"])
    if "schedule" in document:
        schedule = document["schedule"]
        table.add_row("schedule", f"{schedule['transfers']} transfers over up to {schedule['hops']} links, verified")
        table.add_row("chunks per shard", str(schedule["chunks_per_shard"]))
        table.add_row("rate of the schedule", f"{schedule['rate']:.6g} ({schedule['gap']:.3%} below the bound)")
        table.add_row("written to", schedule["output"])
    table.add_row("seconds", f"{document['seconds']:.3f}")
    return table


@dataclass(frozen=True, slots=True)
class _TrafficRequest:
    """What to plan: `traffic`, each a file or a skew, one after another; skews have seeds that count on from `seed`."""

    traffic: Sequence[str]
    seed: int
    transposed: bool
    chunks: int | None
    gap: Fraction
    method: RateMethod | None
    output: str | None


def _traffic_result(topology: Topology, request: _TrafficRequest, stages: Stopwatch) -> Result:
    """Plan, verify, compare, plan again; write the first schedule if a file is given."""
    ranks, spec = topology.compute_count, topology.spec
    matrices = [load_traffic(text, ranks, spec, request.seed + later) for later, text in enumerate(request.traffic)]
    if request.transposed:
        matrices = [matrix.transposed() for matrix in matrices]
    with stages.stage("plan"):
        plan = plan_traffic(topology, matrices[0], chunks=request.chunks, gap=request.gap, method=request.method)
    with stages.stage("verification"):
        verified = verified_traffic(plan)
    if request.output is not None:
        with stages.stage("writing"):
            save_schedule(verified, request.output)
    with stages.stage("comparison"):
        compared = comparison_document(plan)
    document = plan_document(plan) | {
        "schedule": schedule_document(plan, verified, request.output),
        "compared": compared,
        "baseline": baseline_of(compared),
        "replans": replan_documents(plan, matrices[1:], request.gap),
        "warnings": warnings_of(plan),
    }
    warn(document)
    seconds = stages.report(outside_total=("topology", "verification", "writing", "comparison"))
    document |= {"seconds": seconds.pop("total"), "stages": seconds, "peak_memory_bytes": peak_memory_bytes()}
    return Result(document, traffic_table(document, topology.bandwidth_unit))
