"""Defines `chorale alltoall`, for equal or given sizes, and `chorale groups`, for several groups on one fabric."""

import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.synth import CheckFailed, InvalidInput, Topology, VerifiedSchedule, parse_collective
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, METHODS, alltoall_rate, parse_method
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.groups.packing import CHUNK_COUNTS, loads_alone, pack_groups, shared_schedules, time_together
from chorale.synth.methods.groups.rings import GroupLoads
from chorale.synth.methods.traffic.certificate import check_copies_certificate, check_traffic_certificate
from chorale.synth.methods.traffic.copies import plan_dispatch
from chorale.synth.methods.traffic.matrix import TrafficMatrix
from chorale.synth.methods.traffic.placement import advise, bound_of, eplb
from chorale.synth.methods.traffic.plan import TrafficPlan, traffic_schedule
from chorale.synth.methods.traffic.planner import BASELINES, baseline_times, plan_traffic, replan
from chorale.synth.methods.traffic.tokens import TokenBatch, route_tokens
from chorale.synth.verify.verify import verify
from chorale.tuner.cli.options import ScheduleOutput, Spec, people, progress_bar, status_line
from chorale.tuner.files.home import require_new_folder
from chorale.tuner.files.schedule_files import load_topology, require_schedule_suffix, save_schedule
from chorale.tuner.files.traffic_files import load_tokens, load_traffic
from chorale.tuner.reports.bound import assumption_rows, network_facts, proof
from chorale.tuner.reports.tables import Result, Stopwatch, facts_table

_LARGE_GAP = Fraction(1, 100)
"""A warning is printed if a schedule is slower than its bound by more than this fraction."""
_SHOWN_GROUPS = 24
MAX_CHUNKS = max(CHUNK_COUNTS)


def alltoall(
    spec: Spec,
    gap: str = rational_text(DEFAULT_GAP),
    method: Annotated[
        str | None, typer.Option(help=f"How to solve: {' or '.join(METHODS)}; default: by the size of the network.")
    ] = None,
    output: ScheduleOutput = None,
    chunks: int | None = None,
    traffic: Annotated[str | None, typer.Option(metavar="FILE|zipf:S")] = None,
    following: Annotated[list[str] | None, typer.Option("--next", metavar="FILE|zipf:S")] = None,
    routing: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    experts: Annotated[int | None, typer.Option(min=1)] = None,
    advice: Annotated[int, typer.Option("--advise", metavar="N", min=0)] = 0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    transposed: Annotated[bool, typer.Option("--combine")] = False,
) -> Result:
    """Bound the rate of an all-to-all over any routes, or plan one for given sizes.

    Computed flows reach the lower bound of the rate, and prices of links (dual variables) prove the upper bound. Both
    are exact fractions.

    With --traffic, plan an all-to-all of given sizes instead, verify its schedule, and compare it with direct sending.
    With --routing, plan the dispatch of tokens to their experts, and the combine, which adds the results.

    Args:
        gap: Stop when the bounds differ by at most this fraction; only the method `prices` can stop early.
        chunks: With --traffic: chunks of the largest shard; default: as few as suffice.
        traffic: Amounts that ranks send to each other: a .json, .csv or .npy file, or zipf:S for skewed experts.
        following: Afterwards plan again for this traffic, starting from the previous plan; may be repeated.
        routing: File with the experts of each token. A token for several experts on a node is sent to that node once.
        experts: Number of experts in --routing, placed in equal blocks on the ranks; default: highest expert + 1.
        advice: Suggest up to N experts to replicate or swap.
        seed: Seed for the order of the experts with zipf:S; each --next uses the next seed.
        transposed: Plan the reverse of the traffic, as for the combine after a dispatch to experts.

    Example: chorale alltoall torus:4x4

    Example: chorale alltoall a100:4 --traffic zipf:1.2 --next zipf:1.2
    """
    if output is not None:
        require_schedule_suffix(output)
    if (output is not None or chunks is not None) and traffic is None and routing is None:
        way_out = f"write `chorale synth alltoall {quote(spec)} --collective alltoall -o schedule.parquet`"
        raise InvalidInput("--output and --chunks need --traffic or --routing", "", way_out)
    rate_method, allowed, stages = parse_method(method), parse_rational(gap, "--gap"), Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    ranks = topology.compute_count
    if routing is not None:
        if traffic is not None or following or chunks is not None or method is not None:
            options = "--traffic, --next, --chunks and --method"
            raise InvalidInput("--routing already states all amounts", "", f"leave out {options}")
        return _routing_result(topology, load_tokens(routing, ranks, experts), advice, transposed, output, stages)
    if experts is not None or advice:
        raise InvalidInput("--experts and --advise need --routing", "", "add --routing FILE")
    if traffic is not None:
        texts = [traffic, *(following or ())]
        matrices = [load_traffic(text, ranks, topology.spec, seed + later) for later, text in enumerate(texts)]
        matrices = [matrix.transposed() for matrix in matrices] if transposed else matrices
        with stages.stage("plan"):
            plan = plan_traffic(topology, matrices[0], chunks=chunks, gap=allowed, method=rate_method)
        return _traffic_result(plan, matrices[1:], allowed, output, stages)
    if following or transposed:
        rule = "--next and --combine need --traffic"
        raise InvalidInput(rule, "", "add for example --traffic zipf:1.2")
    with status_line(f"all-to-all on {topology.spec}") as show, stages.stage("rate"):

        def tell(lower: Fraction, upper: Fraction) -> None:
            show(f"{float(lower):.5g} to {float(upper):.5g}, {float(upper / lower - 1):.2%} apart")

        rate = alltoall_rate(topology, allowed, rate_method, tell)
    if rate.gap > allowed:
        people.print(f"the bounds still differ by {float(rate.gap):.3%} after the largest number of iterations")
    document = {
        **network_facts(topology),
        "rate": float(rate.rate),
        "lower": float(rate.lower),
        "upper": float(rate.upper),
        "exact": rational_text(rate.rate) if rate.gap == 0 else None,
        "gap": float(rate.gap),
        "method": rate.method,
        **stages.closing("topology"),
    }
    unit, exact = topology.bandwidth_unit, "" if document["exact"] is None else f", exactly {document['exact']}"
    rows = [
        ("ranks", str(topology.compute_count)),
        ("each rank to every other", f"{document['rate']:.6g} {'of a link' if unit == 'link' else unit}{exact}"),
        (proof(topology), f"{document['lower']:.6g} to {document['upper']:.6g} ({document['gap']:.3%} apart)"),
        ("method", rate.method),
    ]
    table = _table(f"all-to-all on {topology.spec}", rows, document)
    step = f"chorale synth alltoall {quote(topology.spec)} --collective alltoall -o schedule.parquet"
    return Result(document, table, next_step=step)


def _verified_traffic(plan: TrafficPlan) -> VerifiedSchedule:
    """Build and verify the schedule of `plan`. Raises CheckFailed if the plan's certificate or time is wrong."""
    schedule = traffic_schedule(plan)
    verified = verify(schedule)
    check_traffic_certificate(plan.topology, schedule.certificate)
    moved = verified.cost.time_per_byte / schedule.chunk_part * plan.chunks.chunk
    if moved != plan.time:
        rule = "the schedule does not take the time of its plan: {}"
        raise CheckFailed(rule, f"{moved} instead of {plan.time}", "please report this defect of the planner")
    return verified


def _traffic_result(
    plan: TrafficPlan, following: Sequence[TrafficMatrix], allowed: Fraction, output: str | None, stages: Stopwatch
) -> Result:
    """Verify `plan`, save its schedule to `output`, compare it with direct sending, and plan again for `following`."""
    topology, matrix, mean, counts = plan.topology, plan.matrix, plan.matrix.mean, plan.chunks
    with stages.stage("verification"):
        verified = _verified_traffic(plan)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    with stages.stage("comparison"):
        times = baseline_times(plan)
    compared = {name: {"time": float(value), "ratio": float(value / plan.time)} for name, value in times.items()}
    baseline = min(BASELINES, key=lambda name: compared[name]["time"])
    warnings = []
    if plan.gap > _LARGE_GAP:
        behind = f"{float(plan.gap):.2%} behind its bound with {int(counts.counts.max())} chunks for the largest pair"
        message = f"{behind}; try more --chunks"
        warnings = [{"kind": "bandwidth", "gap": rational_text(plan.gap), "message": message}]
    # Rates are for a pair of ranks with the mean amount, to be comparable with rates of an ordinary all-to-all
    document: dict[str, Any] = {
        **network_facts(topology),
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
        "exact": rational_text(mean / plan.fluid) if plan.fluid == plan.bound.time else None,
        "gap": float(plan.fluid / plan.bound.time - 1),
        "time": rational_text(plan.time),
        "time_lower": rational_text(plan.bound.time),
        "method": plan.method,
        "schedule": {
            "rate": float(mean / plan.time),
            "gap": rational_text(plan.gap),
            "transfers": verified.schedule.transfer_count,
            "hops": verified.schedule.steps,
            "chunks_per_shard": verified.schedule.chunks_per_shard,
            "chunks": int(counts.counts.sum()),
            "chunk": rational_text(counts.chunk),
            "padding": float(int(counts.counts.sum()) * counts.chunk / int(matrix.amounts.sum()) - 1),
            "id": verified.schedule.id,
            "verified": True,
            "output": output,
        },
        "compared": compared,
        "baseline": baseline,
        "replans": list(_replanned(plan, following, allowed)),
        "warnings": warnings,
    }
    document |= stages.closing("topology", "verification", "writing", "comparison")
    schedule, traffic = document["schedule"], document["traffic"]
    rows = [
        ("ranks", str(topology.compute_count)),
        ("amounts", f"{traffic['total']} in all, {traffic['largest']} for the largest pair"),
        (
            "least time",
            f"{_number(plan.bound.time)} per {topology.bandwidth_unit}, {proof(topology)} by prices of links",
        ),
        ("time of the schedule", f"{_number(plan.time)}, {_more(plan.gap)}"),
        ("schedule", f"{schedule['transfers']} transfers, up to {schedule['hops']} one after another, verified"),
        ("chunks", f"{schedule['chunks']} of {schedule['chunk']} each, {schedule['padding']:.3%} padding"),
    ]
    for name in (baseline, *(name for name in compared if name != baseline)):
        label = name.replace("_", " ")
        label = f"baseline: {label}" if name == baseline else label
        rows.append((label, f"{compared[name]['ratio']:.2f} x the time: {BASELINES[name]}"))
    for again in document["replans"]:
        gap = f"{float(Fraction(again['gap'])):.3%} above its bound"
        rows.append((f"then {again['traffic']}", f"planned in {again['plan_ms']:.1f} ms, {gap}, verified"))
    return Result(document, _table(f"{matrix.name} on {topology.spec}", [*rows, ("written to", output)], document))


def _replanned(plan: TrafficPlan, matrices: Sequence[TrafficMatrix], gap: Fraction) -> Iterator[dict[str, Any]]:
    """Make a plan for each of `matrices`, starting from the previous one. Yield the plans as JSON, with timings."""
    for matrix in matrices:
        wall, processor = time.perf_counter(), time.process_time()
        plan = replan(plan, matrix, gap)
        planned, planned_cpu = time.perf_counter(), time.process_time()
        verified = _verified_traffic(plan)
        yield {
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


def _number(value: Fraction | str) -> str:
    return f"{float(Fraction(value)):.6g}"


def _more(gap: Fraction) -> str:
    return "exactly the least" if gap == 0 else f"{float(gap):.3%} more"


def _routing_result(
    topology: Topology, batch: TokenBatch, steps: int, combine: bool, output: str | None, stages: Stopwatch
) -> Result:
    """Plan and verify the dispatch and combine of `batch`, and compare them with sending one copy to each expert.

    If `steps` is not 0, also suggest up to this number of changes to the placement of experts.
    """
    routing = route_tokens(batch, topology.compute_count)
    with stages.stage("plan"):
        plan = plan_dispatch(topology, routing)
    with stages.stage("verification"):
        returns = combine or plan.can_return
        ways = [verify(plan.schedule(way)) for way in (False, True)[: 1 + returns]]
        for verified in ways:
            check_copies_certificate(verified.schedule.expand())
    schedule = ways[combine].schedule
    if output is not None:
        with stages.stage("writing"):
            save_schedule(ways[combine], output)
    document: dict[str, Any] = {
        **network_facts(topology),
        "traffic": {"name": routing.name, "groups": len(routing.source), "total": int(routing.amount.sum())},
        "time": rational_text(plan.time),
        "time_lower": rational_text(plan.bound.time),
        "gap": rational_text(plan.gap),
        "method": plan.method,
        "combine": {"time": rational_text(plan.combine_time)} if returns else None,
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
            document["advice"] = _advice(topology, batch, steps)
    document |= stages.closing("topology", "verification", "writing", "advice")
    traffic, hops = document["traffic"], f"up to {schedule.steps} after one another, verified"
    back = f"{_number(plan.combine_time)}, sums on the way back" if returns else "links lead in one direction only"
    ratio = document["compared"]["no_copies"]["ratio"]
    rows = [
        ("amount", f"{traffic['total']}, {traffic['groups']} groups with equal ranks"),
        ("least time", f"{_number(plan.bound.time)} per {topology.bandwidth_unit}, {proof(topology)} by a cut"),
        ("dispatch", f"{_number(plan.time)}, {_more(plan.gap)} ({plan.method})"),
        ("combine", back),
        ("without copies", f"{ratio:.2f} x the time: every expert gets the token from its source"),
        ("schedule", f"{schedule.transfer_count} transfers, {hops}"),
        ("written to", None if output is None else f"{output} ({schedule.collective.name.value})"),
    ]
    if steps:
        advice = document["advice"]
        for step in advice["steps"]:
            what = f"to rank {step['to']} " + ("too" if step["with"] is None else f"for expert {step['with']}")
            rows.append((f"expert {step['expert']}", f"{what}: least time {_number(step['time_lower'])}"))
        then = f"{_number(advice['time'])}; by EPLB's rule {_number(advice['eplb']['time'])}"
        rows.append(("dispatch then", then))
    return Result(document, _table(f"{routing.name} on {topology.spec}", rows, document))


def _advice(topology: Topology, batch: TokenBatch, most: int) -> dict[str, Any]:
    """Suggest up to `most` changes to the placement of experts; compare the result with that of DeepSeek's EPLB."""
    steps, ranks = advise(topology, batch, most), topology.compute_count
    after = batch._replace(placement=steps[-1].placement) if steps else batch
    replicas = sum(step.other is None for step in steps)
    rule = batch._replace(placement=eplb(batch, ranks, replicas))
    return {
        "steps": [
            {
                "action": "replicate" if step.other is None else "swap",
                "expert": step.expert,
                "from": step.source,
                "to": step.target,
                "with": step.other,
                "time_lower": rational_text(step.time_lower),
            }
            for step in steps
        ],
        "time": rational_text(plan_dispatch(topology, route_tokens(after, ranks)).time),
        "time_lower": rational_text(bound_of(topology, after)),
        "placement": [[rank for rank in row if rank >= 0] for row in after.placement.tolist()],
        "eplb": {
            "replicas": replicas,
            "time": rational_text(plan_dispatch(topology, route_tokens(rule, ranks)).time),
            "time_lower": rational_text(bound_of(topology, rule)),
        },
    }


def groups(
    spec: Spec,
    group: Annotated[list[str], typer.Option(metavar="NAME=COLLECTIVE:RANKS:AMOUNT")],
    chunks: Annotated[int | None, typer.Option(min=1, max=MAX_CHUNKS)] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="DIR")] = None,
) -> Result:
    """Plan collectives of several groups of ranks that share a fabric and run at the same time.

    All groups start together. The plan minimizes the time at which the last one ends, proves a lower bound for it, and
    compares it with planning each group as if it were alone.

    Args:
        group: Group definition, such as tp=allreduce:by8:100; may be repeated. RANKS is 0-7, 0,8,16, all, or a split
            into equal groups: by8 groups neighbours (0-7, 8-15, …), every8 takes every eighth (0,8,16,…; 1,9,17,…).
            AMOUNT is in bytes, or in any unit that all groups share.
        chunks: Chunks per shard; default: a small number that comes close to the bound.
        output: New folder to which a schedule for each group is written.

    Example: chorale groups a100:2 --group tp=allreduce:by8:100 --group dp=reduce_scatter:every8:40
    """
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
        chosen = [each for text in group for each in parse_groups(topology, text)]
    if output is not None:
        require_new_folder(Path(output))
    with stages.stage("plan"):
        packing = pack_groups(topology, chosen)
    with stages.stage("schedules"):
        shared = shared_schedules(topology, packing, chunks)
    alone: list[list[GroupLoads]] = []  # link loads of each group's best plan on an empty fabric
    with stages.stage("alone"), progress_bar("each group alone") as progress:
        for each in chosen:
            alone.append(loads_alone(topology, each))
            if progress is not None:
                progress(len(alone), len(chosen))
    # Times are amounts over bandwidth on links that all groups load at the same time
    prices = packing.prices.tolist()
    lower = proven_time(topology, packing.groups, prices)
    gap = shared.time / lower - 1
    together = time_together(topology, [loads for member in alone for loads in member])
    apart = sum((time_together(topology, member) for member in alone), Fraction(0))
    document: dict[str, Any] = {
        **network_facts(topology),
        "time": rational_text(shared.time),
        "time_lower": rational_text(lower),
        "gap": rational_text(gap),
        "certificate": {"kind": "group-prices", "time_lower": rational_text(lower), "prices": prices},
        "chunks_per_shard": shared.chunks,
        "compared": {
            "alone_together": {"time": float(together), "ratio": float(together / shared.time)},
            "one_after_another": {"time": float(apart), "ratio": float(apart / shared.time)},
        },
        "groups": [
            {
                "name": member.group.name,
                "collective": member.group.collective.name.value,
                "ranks": list(member.group.ranks),
                "amount": member.group.amount,
                "busiest_link_time": rational_text(time_together(topology, [member.loads])),
                "alone_time": rational_text(time_together(topology, loads)),
                "transfers": member.verified.schedule.transfer_count,
                "steps": member.verified.schedule.steps,
                "id": member.verified.schedule.id,
                "output": None,
            }
            for member, loads in zip(shared.members, alone, strict=True)
        ],
        "verified": True,
    }
    if output is not None:
        Path(output).mkdir(exist_ok=True)
        for member, entry in zip(shared.members, document["groups"], strict=True):
            entry["output"] = str(Path(output) / f"{member.group.name}.parquet")
            save_schedule(member.verified, entry["output"])
    document |= stages.closing("topology", "alone")
    rows = [
        ("least time", f"{_number(lower)} per {topology.bandwidth_unit}, {proof(topology)} by prices of links"),
        ("time of the plan", f"{_number(shared.time)}, {_more(gap)}; schedules verified"),
        ("planned alone, run together", f"{float(together / shared.time):.3f} x the time"),
        ("planned alone, one after another", f"{float(apart / shared.time):.3f} x the time"),
    ]
    for entry in document["groups"][:_SHOWN_GROUPS]:
        share = f"busiest link {_number(entry['busiest_link_time'])}, alone {_number(entry['alone_time'])}"
        rows.append((entry["name"], f"{entry['collective']} of {len(entry['ranks'])} ranks, {share}"))
    if len(chosen) > _SHOWN_GROUPS:
        rows.append(("…", f"{len(chosen) - _SHOWN_GROUPS} more groups"))
    return Result(document, _table(f"{len(chosen)} groups on {topology.spec}", rows, document))


def _table(title: str, rows: Iterable[tuple[str, str | None]], document: dict[str, Any]) -> Table:
    last = ("seconds", f"{document['seconds']:.3f}")
    return facts_table(title, [*rows, *assumption_rows(document, "guess"), last])


def parse_groups(topology: Topology, text: str) -> list[Group]:
    """Parse NAME=COLLECTIVE:RANKS:AMOUNT. If RANKS splits the ranks into several groups, number their names."""
    name, equals, rest = text.partition("=")
    parts = rest.split(":")
    if not equals or not name.isidentifier() or len(parts) != 3:
        rule = "--group must have the form NAME=COLLECTIVE:RANKS:AMOUNT"
        raise InvalidInput(rule, text, "write, for example, tp=allreduce:by8:100")
    collective, ranks = parse_collective(parts[0]), _ranks(topology.compute_count, parts[1])
    if not parts[2].isdecimal():
        raise InvalidInput("the amount of a group must be a whole number", parts[2], "write tp=allreduce:by8:100")
    if len(ranks) == 1:
        return [Group(name, collective, ranks[0], int(parts[2]))]
    return [Group(f"{name}{number}", collective, members, int(parts[2])) for number, members in enumerate(ranks)]


def _ranks(count: int, text: str) -> list[tuple[int, ...]]:
    for word in ("every", "by"):
        if text.startswith(word):
            size = _rank(text.removeprefix(word), text)
            if not 1 <= size <= count or count % size:
                raise InvalidInput(
                    f"{{}} does not divide {count} ranks into equal groups", text, f"choose a divisor of {count}"
                )
            if word == "by":
                return [tuple(range(first, first + size)) for first in range(0, count, size)]
            return [tuple(range(first, count, size)) for first in range(size)]
    if text == "all":
        return [tuple(range(count))]
    members: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _rank(first, text)
        high = _rank(last, text) if dash else low
        if not low <= high < count:
            raise InvalidInput(f"ranks must be 0 to {count - 1} and ascend", part, "write 0-7 or 0,8,16")
        members += range(low, high + 1)
    return [tuple(members)]


def _rank(text: str, whole: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidInput("cannot read the ranks '{}'", whole, "write them like 0-7, 0,8,16, all, by8 or every8")
    return int(text)
