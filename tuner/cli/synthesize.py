"""`chorale synth`: design a schedule, verify it, say how good it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast, get_args

import typer

from chorale.runners.api.units import parse_size
from chorale.synth.build.build import verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import METHODS, form_of, method_named
from chorale.synth.methods.method import Objective, Options
from chorale.synth.topology.topology import Topology, bytes_per_second
from chorale.tuner.cli.options import AsJson, ExecutorName, Root, Workers
from chorale.tuner.cli.output import emit_json, progress_bar, results
from chorale.tuner.config.executors import open_executor
from chorale.tuner.files.schedule_files import require_schedule_suffix, save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.stopwatch import Stopwatch, peak_memory_bytes
from chorale.tuner.reports.synthesis import (
    load_warm_start,
    proved_document,
    synthesis_table,
    warm_kernels,
    warm_start_document,
)

OBJECTIVES: tuple[str, ...] = get_args(Objective)

CollectiveName = Annotated[str, typer.Option(help="allgather, reduce_scatter, allreduce, broadcast or reduce.")]
K = Annotated[
    int | None, typer.Option("--k", help="Trees per root; default: the smallest number that reaches the optimum.")
]
Chunks = Annotated[
    int | None, typer.Option(help="Chunks per shard; default: the smallest number that reaches the optimum.")
]
Size = Annotated[
    str | None,
    typer.Option(help="Bytes of the whole vector, such as 1MiB: bfb weighs latencies at it, and its time is told."),
]
ObjectiveName = Annotated[
    str, typer.Option(help=f"Among equally fast packings of trees, prefer: {', '.join(OBJECTIVES)}.")
]
WarmStart = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Schedule of trees, of the fabric before a failure: keep what still holds."),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds to try, from --seed on; the executor shares them out.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("synth")(synth)


def synth(
    method: Annotated[str, typer.Argument(help=f"How to make the schedule: {', '.join(METHODS)}.")],
    spec: Annotated[str, typer.Argument(help="Topology, such as hypercube:3; see `chorale topology list`.")],
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
    output: Annotated[str | None, typer.Option("--output", "-o", help="Schedule file, .parquet or .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Design a schedule for a topology, verify it chunk by chunk and prove how good it is.

    Without --size, latencies of links do not influence the schedule.

    Example: chorale synth bfb torus:4x4 --collective allreduce -o torus.parquet
    """
    if output is not None:
        require_schedule_suffix(output)
    stages = Stopwatch()
    wanted = parse_collective(collective, root)
    size_bytes = None if size is None else parse_size(size)
    old = None if warm_start is None else load_warm_start(warm_start)
    before = None if old is None else old.schedule.expand()
    others = Options(chunks, seed=seed, seeds=seeds, size_bytes=size_bytes, warm_start=before)
    asked = _options(method, k, objective, others)
    with stages.stage("topology"):
        topology = _network(spec, method, size_bytes, output)
    request = ScheduleRequest(topology, wanted, method, asked)
    warm_kernels(method, stages)
    with open_executor(executor, workers) as running, progress_bar(f"{method} {spec}") as progress:
        verified = verified_schedule(request, running, progress, stages.stage)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    document = proved_document(verified, size_bytes, stages)
    if old is not None:
        document["warm_start"] = warm_start_document(old, verified)
    document |= {"peak_memory_bytes": peak_memory_bytes(), "output": output}
    if as_json:
        emit_json(document)
    else:
        results.print(synthesis_table(document | {"unit": topology.bandwidth_unit}))


def _network(spec: str, method: str, size_bytes: int | None, output: str | None) -> Topology:
    """Return the topology; what cannot be told or written of it is refused before anything is made."""
    topology = load_topology(spec)
    if size_bytes is not None:
        bytes_per_second(topology)
    if output is not None:
        require_schedule_suffix(output, form_of(method, topology))
    return topology


def _options(method: str, k: int | None, objective: str, others: Options) -> Options:
    method_named(method)
    if objective not in OBJECTIVES:
        raise InvalidInput("an objective must be known", objective, f"choose from {', '.join(OBJECTIVES)}")
    if k is not None and k < 1:
        raise InvalidInput("--k must be at least 1", str(k), "leave out --k for the optimum")
    return replace(others, k=k, objective=cast(Objective, objective))
