"""Defines `chorale synth` (design schedules), `bound` (lower bounds) and `failures` (schedules for failures)."""

from dataclasses import replace
from fractions import Fraction
from shlex import quote as shell_word
from typing import Annotated, Any, cast, get_args

import typer

from chorale.synth import InvalidInput, Options, ScheduleRequest, parse_collective
from chorale.synth.build.build import verified_schedule
from chorale.synth.errors import name_among
from chorale.synth.identity import parse_rational
from chorale.synth.methods.auto import AUTO
from chorale.synth.methods.catalog import IN_NETWORK, METHODS, form_of, method_named
from chorale.synth.methods.forest.forest import uneven_forest
from chorale.synth.methods.method import DEFAULT_GAP, Objective
from chorale.synth.schedule.codec import MAX_JSON_ROWS
from chorale.synth.topology.failures import NVLINK, PLANE
from chorale.synth.topology.topology import bytes_per_second
from chorale.synth.verify.verify import verify
from chorale.tuner import load_topology
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.options import progress_bar
from chorale.tuner.config.building import open_executor
from chorale.tuner.files.schedule_files import load_schedule, require_schedule_suffix, save_schedule
from chorale.tuner.reports import bound as bounds, synthesis as reports
from chorale.tuner.reports.hints import kind_of
from chorale.tuner.reports.tables import Result, Stopwatch, peak_memory_bytes

OBJECTIVES: tuple[str, ...] = get_args(Objective)


def synth(
    *,
    methods: opt.MethodNames = None,
    spec: opt.Spec,
    collective: opt.CollectiveName = "allreduce",
    k: int | None = None,
    chunks: int | None = None,
    size: str | None = None,
    link_gbps: opt.LinkGbps = None,
    root: opt.Root = 0,
    gap: str = str(float(DEFAULT_GAP)),
    objective: Annotated[
        str, typer.Option(help=f"Among equally fast packings of trees, prefer: {', '.join(OBJECTIVES)}.")
    ] = "height",
    warm_start: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    seed: int = 0,
    executor: opt.ExecutorName = "serial",
    workers: opt.Workers = None,
    in_network: bool = False,
    shards: opt.Shards = None,
    output: opt.ScheduleOutput = None,
) -> Result:
    """Design a schedule for a topology, verify it chunk by chunk and prove how good it is.

    Without METHOD, all methods that work on the network are tried. With --size, the schedule with the shortest time at
    this size wins, including link latencies; without it, the one with the least time per byte, then the fewest steps.

    Args:
        k: Trees per root; default: the smallest number that reaches the optimum.
        chunks: Chunks per shard; default: the smallest number that reaches the optimum.
        size: Buffer size, such as 1MiB: auto minimizes the time at this size, and the time is reported.
        gap: Allowed fraction above the optimal time if the optimum needs more than 96 trees per root; 0 for none.
        warm_start: Schedule of trees for the fabric before a failure; it is changed as little as possible.
        seed: Seed of random choices of the method.
        in_network: Let switches add and multicast if they can; by default, only ranks add and copy data.

    Example: chorale synth torus:4x4 --collective allreduce -o torus.parquet
    """
    if output is not None:
        require_schedule_suffix(output)
    stages = Stopwatch()
    method = _method_name(methods or [], spec, in_network)
    goal = cast(Objective, name_among("objective", objective, OBJECTIVES))
    accepted = parse_rational(gap, "--gap")
    if accepted < 0:
        raise InvalidInput("--gap must be at least 0", gap, "leave it out, or write 0 for the optimum")
    target = parse_collective(collective, root)
    if shards is not None:
        given = {"--k": k, "--chunks": chunks, "--size": size, "--root": root, "--warm-start": warm_start}
        reports.require_trees(method, given | {"--in-network": in_network})
    old = None if warm_start is None else verify(load_schedule(warm_start))  # the synthesis needs a correct schedule
    with stages.stage("topology"):
        network = load_topology(spec)
    sized = opt.sized_options(network, size, link_gbps)
    before = None if old is None else old.schedule.expand()
    options = replace(sized, chunks=chunks, k=k, objective=goal, seed=seed, warm_start=before, gap=accepted)
    if size is not None and options.link_gbps is None:
        bytes_per_second(network)  # raises before the synthesis if times cannot be computed
    facts: dict[str, Any] = {}
    if shards is not None:
        target, facts = reports.given_shards(network, shards, target, seed)
    elif output is not None:
        is_small = network.compute_count**2 <= MAX_JSON_ROWS
        require_schedule_suffix(output, "columns" if is_small else form_of(method, network, target, options))
    with open_executor(executor, workers) as running, progress_bar(f"{method} {spec}") as progress:
        if shards is None:
            request = ScheduleRequest(network, target, method, options)
            verified = verified_schedule(request, running, progress, stages.stage)
        else:
            with stages.stage("synthesis"):
                schedule = uneven_forest(network, target, options)
            with stages.stage("verification"):
                verified = verify(schedule)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    document = reports.proved_document(verified, options.size_bytes, stages, method == IN_NETWORK, options.link_gbps)
    document |= facts
    if method == AUTO and shards is None:
        document["chosen_by"] = "bandwidth" if size is None else "time"
    if old is not None:
        document["warm_start"] = reports.warm_start_document(old, verified)
    return reports.synthesis_result(document, output, network.bandwidth_unit)


def _method_name(methods: list[str], spec: str, in_network: bool) -> str:
    """Return the method that was given before the topology; default: `auto` or, with --in-network, `IN_NETWORK`."""
    if in_network:
        if methods not in ([], [AUTO], [IN_NETWORK]):
            rule = f"--in-network works only with the method {AUTO} or {IN_NETWORK}, or none"
            raise InvalidInput(rule, methods[0], "leave one of them out")
        return IN_NETWORK
    if methods and kind_of(spec) == "collective":
        way_out = f"write `chorale synth {methods[0]} --collective {spec}`"
        raise InvalidInput("{} is a collective", spec, way_out)
    if len(methods) > 1:
        raise InvalidInput(
            "give at most one METHOD and one SPEC, not {}", " ".join((*methods, spec)), "leave out the others"
        )
    if not methods and spec in METHODS:
        raise InvalidInput(
            "{} is a method, and the topology is missing", spec, f"write `chorale synth {spec} torus:4x4`"
        )
    return method_named(methods[0]).name if methods else AUTO


def bound(
    spec: opt.Spec,
    collective: opt.CollectiveName = "allreduce",
    root: opt.Root = 0,
    k: int | None = None,
    shards: opt.Shards = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> Result:
    """Compute how fast a collective can be at best, and which links limit it.

    The bound is exact: the bottleneck cut proves it, and separate code checks it. For allgather, reduce_scatter,
    broadcast and reduce it is the optimum.

    Args:
        k: Trees per shard; default: the smallest number that is optimal.
        seed: Seed for the order of the ranks with --shards zipf:S.

    Example: chorale bound a100:2 --collective allreduce
    """
    target = parse_collective(collective, root)
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    facts: dict[str, Any] = {}
    given = ""
    if shards is not None:
        reports.require_trees(reports.FOREST_ONLY, {"--k": k, "--root": root})
        (target, facts), given = reports.given_shards(topology, shards, target, seed), f" --shards {shell_word(shards)}"
    with stages.stage("bound"):
        report = bounds.bound_report(topology, target, k)
    document = bounds.bound_document(report) | facts
    next_step = f"chorale synth {shell_word(spec)} --collective {collective}{given} -o schedule.parquet"
    table = bounds.bound_table(report, document)
    return Result(document | {"seconds": stages.report(outside_total=("topology",))}, table, next_step=next_step)


def failures(
    spec: opt.Spec,
    method: Annotated[str, typer.Option(help=f"How to make the schedules: {', '.join(METHODS)}.")] = "forest",
    collective: opt.CollectiveName = "allreduce",
    k: int | None = None,
    root: opt.Root = 0,
    parts: Annotated[list[str] | None, typer.Option("--part", metavar="P")] = None,
    executor: opt.ExecutorName = "processes",
    workers: opt.Workers = None,
) -> Result:
    """Plan a verified schedule for the loss of each compute node and link, one at a time.

    Failures that are equivalent by a known symmetry are planned once. `chorale synth METHOD 'without(SPEC;node=K)'`
    reproduces a row and writes its schedule; `chorale table write --topology 'without(SPEC;node=K)'` writes the
    table for jobs that continue without a node.

    Args:
        k: Trees per root; default: the smallest number that is optimal.
        parts: Also plan for the loss of this part of each link: nvlink (one of a GPU's NVLinks to an NVSwitch), plane
            (one of the two planes of a NIC), or a fraction such as 1/4; may be repeated. Default: nvlink and plane, if
            the network has any.

    Example: chorale failures a100:4 --k 1 --executor processes
    """
    method = method_named(method).name
    target, lost = parse_collective(collective, root), [_part(text) for text in parts or (NVLINK, PLANE)]
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    with (
        open_executor(executor, workers) as running,
        progress_bar(f"failures of {spec}") as progress,
        stages.stage("plans"),
    ):
        request = ScheduleRequest(topology, target, method, Options(k=k))
        document = bounds.plan_failures(request, running, progress, lost) | bounds.assumption_facts(topology)
    document |= {"seconds": stages.report(outside_total=("topology",)), "peak_memory_bytes": peak_memory_bytes()}
    planned = [row for row in document["failures"] if row["slowdown"] is not None]
    worst = max(planned, key=lambda row: Fraction(row["slowdown"]), default=None)
    next_step = None if worst is None else f"chorale table write --topology {shell_word(worst['spec'])} -o job.table"
    return Result(document, bounds.failures_table(document, topology.bandwidth_unit), next_step=next_step)


def _part(text: str) -> str | Fraction:
    """Parse a --part option: the name of a part, or a fraction of a link. Raises InvalidInput for anything else."""
    if text in (NVLINK, PLANE):
        return text
    part = parse_rational(text, "--part")
    if not 0 < part < 1:
        raise InvalidInput(
            "--part must be nvlink, plane or a fraction between 0 and 1", text, "write, for example, 1/4"
        )
    return part
