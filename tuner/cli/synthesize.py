"""`chorale synth`, `bound` and `failures`: schedules, how fast a collective can be at best, and what failures leave."""

from dataclasses import replace
from fractions import Fraction
from shlex import quote as shell_word
from typing import Annotated, cast, get_args

import typer

from chorale.synth import InvalidInput, Options, ScheduleRequest, parse_collective
from chorale.synth.identity import parse_rational
from chorale.synth.methods.auto import AUTO
from chorale.synth.methods.catalog import IN_NETWORK, METHODS, form_of, method_named
from chorale.synth.methods.method import DEFAULT_GAP, Objective
from chorale.synth.names import name_among
from chorale.synth.schedule.codec import MAX_JSON_ROWS
from chorale.synth.topology.failures import NVLINK, PLANE
from chorale.synth.topology.topology import bytes_per_second
from chorale.synth.verify.verify import verify
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.output import progress_bar, warn
from chorale.tuner.config.building import open_executor, verified_from_cache
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.schedule_files import load_schedule, require_schedule_suffix, save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports import bound as bounds
from chorale.tuner.reports import synthesis as reports
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
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    executor: opt.ExecutorName = "serial",
    workers: opt.Workers = None,
    in_network: bool = False,
    shards: opt.Shards = None,
    output: opt.ScheduleOutput = None,
    no_cache: bool = False,
) -> Result:
    """Design a schedule for a topology, verify it chunk by chunk and prove how good it is.

    Without METHOD, the methods that suit the network compete: for the least time at --size, with the latencies of the
    network's links; without --size for the least time per byte, then for the fewest steps.

    Args:
        k: Trees per root; default: the smallest number that reaches the optimum.
        chunks: Chunks per shard; default: the smallest number that reaches the optimum.
        size: Buffer size, such as 1MiB: auto chooses by the time at it, bfb weighs latencies, and it is reported.
        gap: How far above the optimum trees may be where it takes more than 96 per root; 0: not at all.
        warm_start: Schedule of trees, of the fabric before a failure, to be changed as little as possible.
        seed: Seed of whatever the method chooses by chance.
        seeds: How many seeds to try, from --seed on; the executor shares them out.
        in_network: Let switches add and multicast where they can; by default only ranks do.
        no_cache: Synthesize even if the data folder holds the schedule, for example to time it.

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
    if shards is not None:
        given = {"--k": k, "--chunks": chunks, "--size": size, "--root": root, "--warm-start": warm_start}
        reports.require_trees(method, given | {"--in-network": in_network, "--seeds": seeds - 1})
        with stages.stage("topology"):
            network = load_topology(spec)
        uneven = reports.ShardsRequest(network, shards, collective, goal, seed, accepted, output)
        return reports.shards_synthesis(uneven, stages)
    target = parse_collective(collective, root)
    old = None if warm_start is None else verify(load_schedule(warm_start))  # a synthesis is about to rely on it
    with stages.stage("topology"):
        network = load_topology(spec)
    sized = opt.sized_options(network, size, link_gbps)
    before = None if old is None else old.schedule.expand()
    options = replace(
        sized, chunks=chunks, k=k, objective=goal, seed=seed, seeds=seeds, warm_start=before, gap=accepted
    )
    if options.verified_bytes is not None:
        bytes_per_second(network)  # refuses what could not be timed, before anything is synthesized
    if output is not None:
        is_small = network.compute_count**2 <= MAX_JSON_ROWS
        require_schedule_suffix(output, "columns" if is_small else form_of(method, network, target, options))
    home = None if no_cache else Home.from_environment().root
    with open_executor(executor, workers) as running, progress_bar(f"{method} {spec}") as progress:
        request = ScheduleRequest(network, target, method, options)
        verified, is_cached = verified_from_cache(request, home, running, progress, stages.stage)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    document = reports.proved_document(
        verified, options.size_bytes, stages, method == IN_NETWORK, options.link_gbps
    ) | {"cached": is_cached}
    if method == AUTO:
        document["chosen_by"] = "bandwidth" if size is None else "time"
    if old is not None:
        document["warm_start"] = reports.warm_start_document(old, verified)
    warn(document)
    return reports.synthesis_result(document, output, network.bandwidth_unit)


def _method_name(methods: list[str], spec: str, in_network: bool) -> str:
    """Return the method before the topology; without one, `auto` or the method for switches that add."""
    if in_network:
        if methods not in ([], [AUTO], [IN_NETWORK]):
            rule = f"--in-network goes with the method {AUTO} or {IN_NETWORK}, or none"
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
    """Say how fast a collective can be at best, by which links, with how many trees per shard.

    The bound is exact: the bottleneck cut proves it, and separate code checks it. For allgather, reduce_scatter,
    broadcast and reduce it is the optimum.

    Args:
        k: Trees per shard; default: the fewest that are optimal.
        seed: Orders the ranks of --shards zipf:S.

    Example: chorale bound a100:2 --collective allreduce
    """
    target = parse_collective(collective, root)
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    if shards is not None:
        reports.require_trees(reports.FOREST_ONLY, {"--k": k, "--root": root})
        return reports.shards_bound(reports.ShardsRequest(topology, shards, collective, "height", seed), stages)
    with stages.stage("bound"):
        report = bounds.bound_report(topology, target, k)
    document = bounds.bound_document(report)
    next_step = f"chorale synth {shell_word(spec)} --collective {collective} -o schedule.parquet"
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
    output: Annotated[str | None, typer.Option("--output", "-o", callback=opt.file_to_write)] = None,
) -> Result:
    """Plan a verified schedule for the loss of each compute node and link, one at a time.

    Failures that known symmetries make alike are planned once. `chorale synth METHOD 'without(SPEC;node=K)'`
    reproduces a row and writes its schedule; `chorale table write --topology 'without(SPEC;node=K)'` writes the
    table for the jobs that go on without a node.

    Args:
        k: Trees per root; default: the fewest that are optimal.
        parts: Also for the loss of this part of each link: nvlink (one of those to an NVSwitch), plane (one of two of a
            NIC), or such as 1/4; repeatable. Default: nvlink and plane, if there are any.
        output: Write the table of all failures as .csv too.

    Example: chorale failures a100:4 --k 1 --executor processes
    """
    method = method_named(method).name
    if output is not None and not output.endswith(".csv"):
        raise InvalidInput("the name of a table of failures must end in .csv", output, "write for example failures.csv")
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
    if output is not None:
        write_file(output, bounds.failures_csv(document).encode())
    planned = [row for row in document["failures"] if row["slowdown"] is not None]
    worst = max(planned, key=lambda row: Fraction(row["slowdown"]), default=None)
    next_step = None if worst is None else f"chorale table write --topology {shell_word(worst['spec'])} -o job.table"
    return Result(document, bounds.failures_table(document, topology.bandwidth_unit), next_step=next_step)


def _part(text: str) -> str | Fraction:
    """Return the part of links that an option names."""
    if text in (NVLINK, PLANE):
        return text
    part = parse_rational(text, "--part")
    if not 0 < part < 1:
        raise InvalidInput("--part must be a fraction between 0 and 1, nvlink or plane", text, "write for example 1/4")
    return part
