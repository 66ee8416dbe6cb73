"""`chorale synth`: design a schedule, verify it, say how good it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, cast, get_args

import typer

from chorale.runners.api.units import parse_size
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.auto import AUTO
from chorale.synth.methods.catalog import IN_NETWORK, METHODS, form_of, method_named
from chorale.synth.methods.method import Objective, Options
from chorale.synth.names import name_among
from chorale.synth.schedule.codec import MAX_JSON_ROWS
from chorale.synth.topology.topology import bytes_per_second
from chorale.tuner.cli.application import ChoraleCommand
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson, CollectiveName, ExecutorName, Root, Shards, Workers
from chorale.tuner.cli.output import emit_json, people, progress_bar, results
from chorale.tuner.config.build_cache import verified_from_cache
from chorale.tuner.config.executors import open_executor
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import require_schedule_suffix, save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.stopwatch import Stopwatch, peak_memory_bytes
from chorale.tuner.reports.synthesis import (
    load_warm_start,
    proved_document,
    synthesis_table,
    warm_start_document,
)

OBJECTIVES: tuple[str, ...] = get_args(Objective)

K = Annotated[
    int | None, typer.Option("--k", help="Trees per root; default: the smallest number that reaches the optimum.")
]
Chunks = Annotated[
    int | None, typer.Option(help="Chunks per shard; default: the smallest number that reaches the optimum.")
]
Size = Annotated[
    str | None,
    typer.Option(help="Buffer size, such as 1MiB: bfb weighs latencies at it, and the time is reported."),
]
ObjectiveName = Annotated[
    str, typer.Option(help=f"Among equally fast packings of trees, prefer: {', '.join(OBJECTIVES)}.")
]
WarmStart = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Schedule of trees, of the fabric before a failure, to be changed as little as possible."
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds to try, from --seed on; the executor shares them out.")]


NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Synthesize even if the data folder holds the schedule, for example to time it."),
]
InNetwork = Annotated[
    bool,
    typer.Option("--in-network", help="Let switches add and multicast where they can; by default only ranks do."),
]
MethodNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="METHOD", help=f"How to make the schedule: {', '.join(METHODS)}; default: {AUTO}, the best of all."
    ),
]


class SynthCommand(ChoraleCommand):
    """The command whose first argument may be left out: parsers know this only of lists, whose dots are not shown."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.removesuffix("...") for piece in super().collect_usage_pieces(ctx)]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("synth", cls=SynthCommand)(synth)


def synth(
    *,
    methods: MethodNames = None,
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="Topology, such as hypercube:3; see `chorale topology list`.")
    ],
    collective: CollectiveName = "allgather",
    k: K = None,
    chunks: Chunks = None,
    size: Size = None,
    root: Root = 0,
    objective: ObjectiveName = "height",
    warm_start: WarmStart = None,
    seed: Annotated[int, typer.Option(help="Seed of whatever the method chooses by chance.")] = 0,
    seeds: Seeds = 1,
    executor: ExecutorName = "serial",
    workers: Workers = None,
    in_network: InNetwork = False,
    shards: Shards = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", callback=file_to_write, help="Schedule file, .parquet or .json.")
    ] = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Design a schedule for a topology, verify it chunk by chunk and prove how good it is.

    Without METHOD, the methods that suit the network compete for the least time per byte, then for the fewest steps.

    Without --size, latencies of links do not influence the schedule.

    Example: chorale synth torus:4x4 --collective allreduce -o torus.parquet
    """
    if output is not None:
        require_schedule_suffix(output)
    stages = Stopwatch()
    method = _method_name(methods or [], spec, in_network)
    if shards is not None:
        given = {"--k": k, "--chunks": chunks, "--size": size, "--root": root, "--warm-start": warm_start}
        from chorale.tuner.cli import uneven_shards  # noqa: PLC0415 - only for given sizes

        uneven_shards.require_trees(method, given | {"--in-network": in_network, "--seeds": seeds - 1})
        name = name_among("objective", objective, OBJECTIVES)
        with stages.stage("topology"):
            network = load_topology(spec)
        asked = uneven_shards.ShardsRequest(shards, collective, name, seed, output)
        uneven_shards.synthesize_shards(network, asked, stages, as_json)
        return
    parsed_collective = parse_collective(collective, root)
    size_bytes = None if size is None else parse_size(size)
    old = None if warm_start is None else load_warm_start(warm_start)
    before = None if old is None else old.schedule.expand()
    options = _options(k, objective, Options(chunks, seed=seed, seeds=seeds, size_bytes=size_bytes, warm_start=before))
    with stages.stage("topology"):
        request = ScheduleRequest(load_topology(spec), parsed_collective, method, options)
    _require_reportable(request, output)
    home = None if no_cache else Home.from_environment().root
    with open_executor(executor, workers) as running, progress_bar(f"{method} {spec}") as progress:
        verified, is_cached = verified_from_cache(request, home, running, progress, stages.stage)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    document = proved_document(verified, size_bytes, stages, method == IN_NETWORK)
    if old is not None:
        document["warm_start"] = warm_start_document(old, verified)
    for warning in document["warnings"]:
        people.print(f"warning: {warning['message']}", soft_wrap=True)
    document |= {"cached": is_cached, "peak_memory_bytes": peak_memory_bytes(), "output": output}
    if as_json:
        emit_json(document)
    else:
        results.print(synthesis_table(document | {"unit": request.topology.bandwidth_unit}))


def _method_name(methods: list[str], spec: str, in_network: bool) -> str:
    """Return the method that stands before the topology; where none does `auto`, or the one of switches that add."""
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


def _options(k: int | None, objective: str, options: Options) -> Options:
    """Return `options` with the checked values of --k and --objective."""
    objective = name_among("objective", objective, OBJECTIVES)
    if k is not None and k < 1:
        raise InvalidInput("--k must be at least 1", str(k), "leave out --k for the optimum")
    return replace(options, k=k, objective=cast(Objective, objective))
