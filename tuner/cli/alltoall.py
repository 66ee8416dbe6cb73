"""`chorale alltoall`: how fast an all-to-all over any routes can be at best, and the plan of one with given sizes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.synth.bounds.certificate import check_alltoall_certificate
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, METHODS, alltoall_rate, parse_method
from chorale.synth.methods.alltoall.rate import AllToAllRate, RateMethod
from chorale.synth.methods.alltoall.schedule import alltoall_schedule, require_schedule_size
from chorale.synth.methods.traffic.certificate import check_copies_certificate, check_traffic_certificate
from chorale.synth.methods.traffic.copies import DispatchPlan, plan_dispatch
from chorale.synth.methods.traffic.matrix import TrafficMatrix
from chorale.synth.methods.traffic.placement import PlacementStep, advise, bound_of, eplb
from chorale.synth.methods.traffic.plan import TrafficPlan, traffic_schedule
from chorale.synth.methods.traffic.planner import BASELINES, LIBRARY, baseline_times, plan_traffic, replan
from chorale.synth.methods.traffic.tokens import TokenBatch, route_tokens
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from chorale.tuner.cli.options import ScheduleOutput, Spec
from chorale.tuner.cli.output import people, status_line, warn
from chorale.tuner.files.schedule_files import require_schedule_suffix, save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.files.traffic_files import load_tokens, load_traffic
from chorale.tuner.reports.bound import assumption_facts
from chorale.tuner.reports.tables import Result, Stopwatch, facts_table, peak_memory_bytes

_LARGE_GAP = Fraction(1, 100)


def verified_traffic(plan: TrafficPlan) -> VerifiedSchedule:
    """Return the verified schedule of `plan`, after checking its certificate and time. Raises CheckFailed for
    a fault.
    """
    schedule = traffic_schedule(plan)
    verified = verify(schedule)
    check_traffic_certificate(plan.topology, schedule.certificate)
    moved = verified.cost.time_per_byte / schedule.chunk_part * plan.chunks.chunk
    if moved != plan.time:
        rule = "a schedule must take as long as its plan"
        raise CheckFailed(rule, f"{moved} instead of {plan.time}", "report this: the planner is at fault")
    return verified


def plan_document(plan: TrafficPlan) -> dict[str, Any]:
    """Describe `plan`. Rates are those of a pair with the mean amount, as for an ordinary all-to-all."""
    topology, matrix, mean = plan.topology, plan.matrix, plan.matrix.mean
    exact = plan.fluid == plan.bound.time
    return {
        "topology": {"spec": topology.spec, "nodes": topology.compute_count, "id": topology.id},
        **assumption_facts(topology),
        "traffic": {
            "name": matrix.name,
            "total": int(matrix.sent.sum()),
            "kept": int(matrix.amounts.trace()),
            "mean": rational_text(mean),
            "largest": int(matrix.sent.max()),
        },
        "rate": float(mean / plan.fluid),
        "lower": float(mean / plan.fluid),
        "upper": float(mean / plan.bound.time),
        "exact": rational_text(mean / plan.fluid) if exact else None,
        "gap": float(plan.fluid / plan.bound.time - 1),
        "time": rational_text(plan.time),
        "time_lower": rational_text(plan.bound.time),
        "method": plan.method,
    }


def schedule_document(plan: TrafficPlan, verified: VerifiedSchedule, output: str | None) -> dict[str, Any]:
    """Describe the schedule of `plan`."""
    schedule, counts = verified.schedule, plan.chunks
    whole = int(counts.counts.sum()) * counts.chunk
    return {
        "rate": float(plan.matrix.mean / plan.time),
        "gap": rational_text(plan.gap),
        "transfers": schedule.transfer_count,
        "hops": schedule.steps,
        "chunks_per_shard": schedule.chunks_per_shard,
        "chunks": int(counts.counts.sum()),
        "chunk": rational_text(counts.chunk),
        "padding": float(whole / int(plan.matrix.amounts.sum()) - 1),
        "id": schedule.id,
        "verified": True,
        "output": output,
    }


def baseline_of(compared: Mapping[str, Mapping[str, float]]) -> str:
    """Return which of what libraries do is the fastest: the baseline."""
    return min(LIBRARY, key=lambda name: compared[name]["time"])


def comparison_document(plan: TrafficPlan) -> dict[str, dict[str, float]]:
    """Return the times of the alternatives that need no plan, absolute and relative to the plan."""
    times = baseline_times(plan)
    return {name: {"time": float(value), "ratio": float(value / plan.time)} for name, value in times.items()}


def replan_documents(plan: TrafficPlan, matrices: Iterable[TrafficMatrix], gap: Fraction) -> list[dict[str, Any]]:
    """Describe plans for `matrices`, each started from the previous plan, and their planning times."""
    documents = []
    for matrix in matrices:
        wall, processor = time.perf_counter(), time.process_time()
        plan = replan(plan, matrix, gap)
        planned, planned_cpu = time.perf_counter(), time.process_time()
        verified = verified_traffic(plan)
        documents.append(
            {
                "traffic": matrix.name,
                "time": rational_text(plan.time),
                "time_lower": rational_text(plan.bound.time),
                "gap": rational_text(plan.gap),
                "plan_ms": (planned - wall) * 1e3,
                "plan_cpu_ms": (planned_cpu - processor) * 1e3,
                "verify_ms": (time.perf_counter() - planned) * 1e3,
                "transfers": verified.schedule.transfer_count,
                "verified": True,
            }
        )
    return documents


def warnings_of(plan: TrafficPlan) -> list[dict[str, str]]:
    """Return a warning, with a remedy, if the schedule is more than 1 % behind the bound."""
    if plan.gap <= _LARGE_GAP:
        return []
    message = f"{float(plan.gap):.2%} behind its bound with {int(plan.chunks.counts.max())} chunks for the largest pair"
    return [{"kind": "bandwidth", "gap": rational_text(plan.gap), "message": f"{message}; try more --chunks"}]


def traffic_table(document: dict[str, Any], unit: str) -> Table:
    """Return the document for people."""
    table = Table(title=f"{document['traffic']['name']} on {document['topology']['spec']}", show_header=False)
    traffic, schedule = document["traffic"], document["schedule"]
    per_link = "link" if unit == "link" else unit
    table.add_row("ranks", str(document["topology"]["nodes"]))
    table.add_row("amounts", f"{traffic['total']} in all, {traffic['largest']} for the largest pair")
    table.add_row("least time", f"{_number(document['time_lower'])} per {per_link}, proven by prices of links")
    behind = Fraction(schedule["gap"])
    exactly = "exactly the least" if behind == 0 else f"{float(behind):.3%} more"
    table.add_row("time of the schedule", f"{_number(document['time'])}, {exactly}")
    table.add_row("schedule", f"{schedule['transfers']} transfers over up to {schedule['hops']} links, verified")
    table.add_row("chunks", f"{schedule['chunks']} of {schedule['chunk']} each, {schedule['padding']:.3%} padding")
    baseline = document["baseline"]
    ratio = document["compared"][baseline]["ratio"]
    table.add_row(f"baseline: {baseline.replace('_', ' ')}", f"{ratio:.2f} x the time: {BASELINES[baseline]}")
    for name, compared in document["compared"].items():
        if name != baseline:
            table.add_row(name.replace("_", " "), f"{compared['ratio']:.2f} x the time: {BASELINES[name]}")
    for again in document["replans"]:
        gap = f"{float(Fraction(again['gap'])):.3%} above its bound"
        table.add_row(f"then {again['traffic']}", f"planned in {again['plan_ms']:.1f} ms, {gap}, verified")
    if schedule["output"] is not None:
        table.add_row("written to", schedule["output"])
    table.add_row("seconds", f"{document['seconds']:.3f}")
    return table


def _number(text: str) -> str:
    return f"{float(Fraction(text)):.6g}"


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
    routing: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Experts of each token: a token with several on one node crosses to it once."
        ),
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(min=1, help="Number of experts of --routing, in equal blocks on ranks; default: the highest + 1."),
    ] = None,
    advice: Annotated[
        int,
        typer.Option("--advise", metavar="N", min=0, help="Name up to N experts to replicate or swap."),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Orders the experts of a skew; that of --next counts on.")] = 0,
    transposed: Annotated[
        bool, typer.Option("--combine", help="Plan the way back of the traffic, as after a dispatch to experts.")
    ] = False,
) -> Result:
    """Bound the rate at which every rank can send to every other at once, over any routes.

    The lower bound is reached by flows that were found, the upper one is proven by prices of links; both are exact.

    With --traffic, plan an all-to-all of given sizes instead, verify its schedule, and compare it with direct sending.
    With --routing, plan the dispatch of tokens to their experts and the combine, in which sums go back.

    Example: chorale alltoall torus:4x4 -o alltoall.parquet

    Example: chorale alltoall a100:4 --traffic zipf:1.2 --next zipf:1.2
    """
    if output is not None:
        require_schedule_suffix(output)
    elif chunks is not None and traffic is None and routing is None:
        raise InvalidInput("--chunks is for a schedule", f"--chunks {chunks} without a file", "add -o alltoall.parquet")
    rate_method, allowed = parse_method(method), parse_rational(gap, "--gap")
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
        if output is not None and traffic is None and routing is None:
            require_schedule_size(topology, chunks)
    if routing is not None:
        if traffic is not None or following or chunks is not None:
            raise InvalidInput("--routing states all amounts", "other amounts", "leave --traffic, --next, --chunks out")
        batch = load_tokens(routing, topology.compute_count, experts)
        return _routing_result(topology, batch, advice, transposed, output, stages)
    if traffic is not None:
        request = _TrafficRequest([traffic, *(following or ())], seed, transposed, chunks, allowed, rate_method, output)
        return _traffic_result(topology, request, stages)
    if following or transposed:
        rule = "--next and --combine are for given traffic"
        raise InvalidInput(rule, "no --traffic or --routing", "add --traffic zipf:1.2")
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
    step = f"chorale synth alltoall {quote(topology.spec)} --collective alltoall -o schedule.parquet"
    return Result(document, _alltoall_table(document, topology.bandwidth_unit), next_step=step)


def _alltoall_document(topology: Topology, rate: AllToAllRate) -> dict[str, Any]:
    return {
        "topology": {"spec": topology.spec, "nodes": topology.compute_count, "id": topology.id},
        **assumption_facts(topology),
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
    """What to plan: `traffic`, files or skews, one after another; the seeds of skews count up from `seed`."""

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


def _routing_result(
    topology: Topology, batch: TokenBatch, steps: int, combine: bool, output: str | None, stages: Stopwatch
) -> Result:
    """Plan dispatch and combine of `batch`, verify both, compare them with sending every copy, and advise."""
    routing = route_tokens(batch, topology.compute_count)
    with stages.stage("plan"):
        plan = plan_dispatch(topology, routing)
    with stages.stage("verification"):
        ways = [verify(plan.schedule(way)) for way in (False, True)]
        for verified in ways:
            check_copies_certificate(verified.schedule.expand())
    chosen = ways[combine]
    if output is not None:
        with stages.stage("writing"):
            save_schedule(chosen, output)
    schedule = chosen.schedule
    document = {
        "topology": {"spec": topology.spec, "nodes": topology.compute_count, "id": topology.id},
        **assumption_facts(topology),
        "traffic": {"name": routing.name, "groups": len(routing.source), "total": int(routing.amount.sum())},
        "time": rational_text(plan.time),
        "time_lower": rational_text(plan.bound.time),
        "gap": rational_text(plan.gap),
        "method": plan.method,
        "combine": {"time": rational_text(plan.combine_time)},
        "compared": {"no_copies": {"time": float(plan.uncopied_time), "ratio": float(plan.uncopied_time / plan.time)}},
        "schedule": {
            "collective": schedule.collective.name.value,
            "transfers": schedule.transfer_count,
            "hops": schedule.steps,
            "id": schedule.id,
            "verified": True,
            "output": output,
        },
    }
    if steps:
        with stages.stage("advice"):
            document["advice"] = _advice_document(topology, batch, steps)
    seconds = stages.report(outside_total=("topology", "verification", "writing", "advice"))
    document |= {"seconds": seconds.pop("total"), "stages": seconds, "peak_memory_bytes": peak_memory_bytes()}
    return Result(document, _routing_table(document, plan, topology.bandwidth_unit))


def _advice_document(topology: Topology, batch: TokenBatch, most: int) -> dict[str, Any]:
    """Return the steps with their bounds, and times planned with the last one and with EPLB's rule."""
    steps, ranks = advise(topology, batch, most), topology.compute_count
    after = batch._replace(placement=steps[-1].placement) if steps else batch
    replicas = sum(step.other is None for step in steps)
    rule = batch._replace(placement=eplb(batch, ranks, replicas))
    return {
        "steps": [_step_document(step) for step in steps],
        "time": rational_text(plan_dispatch(topology, route_tokens(after, ranks)).time),
        "time_lower": rational_text(bound_of(topology, after)),
        "placement": [[rank for rank in row if rank >= 0] for row in after.placement.tolist()],
        "eplb": {
            "replicas": replicas,
            "time": rational_text(plan_dispatch(topology, route_tokens(rule, ranks)).time),
            "time_lower": rational_text(bound_of(topology, rule)),
        },
    }


def _step_document(step: PlacementStep) -> dict[str, Any]:
    return {
        "action": "replicate" if step.other is None else "swap",
        "expert": step.expert,
        "from": step.source,
        "to": step.target,
        "with": step.other,
        "time_lower": rational_text(step.time_lower),
    }


def _routing_table(document: dict[str, Any], plan: DispatchPlan, unit: str) -> Table:
    table = facts_table(f"{plan.routing.name} on {plan.topology.spec}")
    table.add_row("amount", f"{document['traffic']['total']}, {document['traffic']['groups']} groups with equal ranks")
    table.add_row("least time", f"{_number(document['time_lower'])} per {unit}, proven by a cut")
    behind = "exactly the least" if plan.gap == 0 else f"{float(plan.gap):.3%} more"
    table.add_row("dispatch", f"{_number(document['time'])}, {behind} ({plan.method})")
    table.add_row("combine", f"{_number(document['combine']['time'])}, sums on the way back")
    ratio = document["compared"]["no_copies"]["ratio"]
    table.add_row("without copies", f"{ratio:.2f} x the time: every expert gets the token from its source")
    schedule = document["schedule"]
    hops = f"{schedule['transfers']} transfers, up to {schedule['hops']} after one another, both ways verified"
    table.add_row("schedule", hops)
    if schedule["output"] is not None:
        table.add_row("written to", f"{schedule['output']} ({schedule['collective']})")
    advice = document.get("advice", {"steps": []})
    for step in advice["steps"]:
        what = f"to rank {step['to']} " + ("too" if step["with"] is None else f"for expert {step['with']}")
        table.add_row(f"expert {step['expert']}", f"{what}: least time {_number(step['time_lower'])}")
    if "time" in advice:
        table.add_row("dispatch then", f"{_number(advice['time'])}; by EPLB's rule {_number(advice['eplb']['time'])}")
    table.add_row("seconds", f"{document['seconds']:.3f}")
    return table
