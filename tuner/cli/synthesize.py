"""`chorale synth`: design a schedule, verify it, say how good it is."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from chorale.runners.api.units import parse_size
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.methods.auto import AUTO
from chorale.synth.methods.catalog import IN_NETWORK, METHODS, form_of, method_named
from chorale.synth.methods.method import DEFAULT_GAP, Objective, Options
from chorale.synth.names import name_among
from chorale.synth.schedule.codec import MAX_JSON_ROWS
from chorale.synth.topology.topology import bytes_per_second
from chorale.tuner.cli.options import (
    CollectiveName,
    ExecutorName,
    MethodNames,
    Root,
    ScheduleOutput,
    Shards,
    Spec,
    Workers,
)
from chorale.tuner.cli.output import progress_bar, warn
from chorale.tuner.config.build_cache import verified_from_cache
from chorale.tuner.config.executors import open_executor
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import require_schedule_suffix, save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.synthesis import load_warm_start, proved_document, synthesis_result, warm_start_document
from chorale.tuner.reports.tables import Result, Stopwatch

OBJECTIVES: tuple[str, ...] = get_args(Objective)


def synth(
    *,
    methods: MethodNames = None,
    spec: Spec,
    collective: CollectiveName = "allgather",
    k: Annotated[
        int | None, typer.Option("--k", help="Trees per root; default: the smallest number that reaches the optimum.")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Chunks per shard; default: the smallest number that reaches the optimum.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Buffer size, such as 1MiB: bfb weighs latencies at it, and the time is reported."),
    ] = None,
    root: Root = 0,
    gap: Annotated[
        str,
        typer.Option(
            help="How far above the optimum trees may be where it takes more than 96 per root; 0: not at all.",
        ),
    ] = str(float(DEFAULT_GAP)),
    objective: Annotated[
        str, typer.Option(help=f"Among equally fast packings of trees, prefer: {', '.join(OBJECTIVES)}.")
    ] = "height",
    warm_start: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Schedule of trees, of the fabric before a failure, to be changed as little as possible.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of whatever the method chooses by chance.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds to try, from --seed on; the executor shares them out.")
    ] = 1,
    executor: ExecutorName = "serial",
    workers: Workers = None,
    in_network: Annotated[
        bool,
        typer.Option("--in-network", help="Let switches add and multicast where they can; by default only ranks do."),
    ] = False,
    shards: Shards = None,
    output: ScheduleOutput = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Synthesize even if the data folder holds the schedule, for example to time it."
        ),
    ] = False,
) -> Result:
    """Design a schedule for a topology, verify it chunk by chunk and prove how good it is.

    Without METHOD, the methods that suit the network compete for the least time per byte, then for the fewest steps.

    Without --size, latencies of links do not influence the schedule.

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
        from chorale.tuner.reports.uneven_shards import (  # noqa: PLC0415 - half a second of imports
            ShardsRequest,
            require_trees,
            shards_synthesis,
        )

        given = {"--k": k, "--chunks": chunks, "--size": size, "--root": root, "--warm-start": warm_start}
        require_trees(method, given | {"--in-network": in_network, "--seeds": seeds - 1})
        with stages.stage("topology"):
            network = load_topology(spec)
        return shards_synthesis(network, ShardsRequest(shards, collective, goal, seed, accepted, output), stages)
    if k is not None and k < 1:
        raise InvalidInput("--k must be at least 1", str(k), "leave out --k for the optimum")
    target, size_bytes = parse_collective(collective, root), None if size is None else parse_size(size)
    old = None if warm_start is None else load_warm_start(warm_start)
    before = None if old is None else old.schedule.expand()
    options = Options(
        chunks, k=k, objective=goal, seed=seed, seeds=seeds, size_bytes=size_bytes, warm_start=before, gap=accepted
    )  # fmt: skip
    with stages.stage("topology"):
        request = ScheduleRequest(load_topology(spec), target, method, options)
    _require_reportable(request, output)
    home = None if no_cache else Home.from_environment().root
    with open_executor(executor, workers) as running, progress_bar(f"{method} {spec}") as progress:
        verified, is_cached = verified_from_cache(request, home, running, progress, stages.stage)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    document = proved_document(verified, size_bytes, stages, method == IN_NETWORK) | {"cached": is_cached}
    if old is not None:
        document["warm_start"] = warm_start_document(old, verified)
    warn(document)
    return synthesis_result(document, output, request.topology.bandwidth_unit)


def _method_name(methods: list[str], spec: str, in_network: bool) -> str:
    """Return the method before the topology; if there is none, `auto` or the method of switches that add."""
    if in_network:
        if methods not in ([], [AUTO], [IN_NETWORK]):
            rule = f"--in-network goes with the method {AUTO} or {IN_NETWORK}, or none"
            raise InvalidInput(rule, methods[0], "leave one of them out")
        return IN_NETWORK
    if len(methods) > 1:
        raise InvalidInput("one METHOD and one SPEC can be given", " ".join((*methods, spec)), "leave out the others")
    if not methods and spec in METHODS:
        raise InvalidInput("a topology must be given after the method", spec, f"write `chorale synth {spec} torus:4x4`")
    return method_named(methods[0]).name if methods else AUTO


def _require_reportable(request: ScheduleRequest, output: str | None) -> None:
    """Refuse what could not be reported or written later, before anything is synthesized."""
    if request.options.size_bytes is not None:
        bytes_per_second(request.topology)
    if output is not None:
        is_small = request.topology.compute_count**2 <= MAX_JSON_ROWS
        form = form_of(request.method, request.topology, request.collective, request.options)
        require_schedule_suffix(output, "columns" if is_small else form)
