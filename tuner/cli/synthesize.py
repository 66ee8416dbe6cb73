"""`chorale synth`: design a schedule, verify it, say how good it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast, get_args

import typer

from runners.sizes import parse_size
from synth.bfb.symmetric import prefers_symmetric_form, symmetric_bfb
from synth.bound.bound import lower_bound
from synth.bound.certificate import check_certificate
from synth.bound.cut import Bound
from synth.collective import parse_collective
from synth.errors import InvalidInput
from synth.forest.objective import Objective
from synth.kernels import warm_method
from synth.method import Options
from synth.methods import METHODS, method_named, synthesize_unverified
from synth.schedule.schedule import Schedule
from synth.schedule.symmetric import SymmetricSchedule
from synth.topology.topology import Topology
from synth.topology.units import bytes_per_second
from synth.verify.symmetric import VerifiedSymmetric, verify_symmetric
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import verify
from tuner.cli.output import emit_json, results
from tuner.cli.progress_bar import progress_bar
from tuner.executors import EXECUTORS, open_executor
from tuner.reports.stages import Stages, peak_memory_bytes
from tuner.reports.synthesis_report import synthesis_document, synthesis_table, timing_document
from tuner.reports.warm_start import load_warm_start, warm_start_document
from tuner.schedule_files import require_schedule_suffix, require_suffix_of_symmetric, save_schedule
from tuner.specs import load_topology

OBJECTIVES: tuple[str, ...] = get_args(Objective)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("synth")(synth)


def synth(
    method: Annotated[str, typer.Argument(help=f"How to make the schedule: {', '.join(METHODS)}.")],
    spec: Annotated[str, typer.Argument(help="Topology, such as hypercube:3; see `chorale topology list`.")],
    collective: Annotated[
        str, typer.Option(help="allgather, reduce_scatter, allreduce, broadcast or reduce.")
    ] = "allgather",
    k: Annotated[
        int | None, typer.Option("--k", help="Trees per root; default: the smallest number that reaches the optimum.")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Chunks per shard; default: the smallest number that reaches the optimum.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Bytes of the whole vector, such as 1MiB: bfb weighs latencies at it, and its time is told."),
    ] = None,
    root: Annotated[int, typer.Option(help="Root rank of broadcast and reduce.")] = 0,
    objective: Annotated[
        str, typer.Option(help=f"Among equally fast packings of trees, prefer: {', '.join(OBJECTIVES)}.")
    ] = "height",
    warm_start: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Schedule of trees, of the fabric before a failure: keep what still holds."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of whatever the method chooses by chance.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds to try, from --seed on; the executor shares them out.")
    ] = 1,
    executor: Annotated[str, typer.Option(help=f"Where to compute: {', '.join(EXECUTORS)}.")] = "serial",
    workers: Annotated[int | None, typer.Option(help="Workers of the executor; default: one per core.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Schedule file, .parquet or .json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Design a schedule for a topology, verify it chunk by chunk and prove how good it is.

    Without --size, latencies of links do not influence the schedule.

    Example: chorale synth bfb torus:4x4 --collective allreduce -o torus.parquet
    """
    if output is not None:
        require_schedule_suffix(output)
    stages = Stages()
    wanted = parse_collective(collective, root)
    size_bytes = None if size is None else parse_size(size)
    old = None if warm_start is None else load_warm_start(warm_start)
    others = Options(
        chunks, seed=seed, seeds=seeds, size_bytes=size_bytes, warm_start=None if old is None else old.schedule
    )
    options = _options(method, k, objective, others)
    with stages.stage("topology"):
        topology = load_topology(spec)
        if size_bytes is not None:
            bytes_per_second(topology)  # refused before anything is made
    with stages.stage("synthesis"):
        is_symmetric = method == "bfb" and prefers_symmetric_form(topology)
    if is_symmetric and output is not None:
        require_suffix_of_symmetric(output)
    _warm(stages, method)
    with (
        open_executor(executor, workers) as running,
        progress_bar(f"{method} {spec}") as progress,
        stages.stage("synthesis"),
    ):
        schedule: Schedule | SymmetricSchedule
        if is_symmetric:
            schedule = symmetric_bfb(topology, wanted, running, chunks, progress, size_bytes)
        else:
            schedule = synthesize_unverified(method, topology, wanted, options, running, progress)
    with stages.stage("verification"):
        verified = _verified(schedule, size_bytes)
    bound = _bound(stages, topology, verified)
    if output is not None:
        with stages.stage("writing"):
            save_schedule(verified, output)
    seconds = stages.report(outside_total=("topology", "compile", "bound", "writing"))
    document = synthesis_document(verified, bound, seconds)
    if size_bytes is not None:
        document["cost"] |= timing_document(verified, size_bytes)
    if old is not None and isinstance(verified, VerifiedSchedule):
        document["warm_start"] = warm_start_document(old, verified)
    document |= {"peak_memory_bytes": peak_memory_bytes(), "output": output}
    if as_json:
        emit_json(document)
    else:
        results.print(synthesis_table(document | {"unit": topology.bandwidth_unit}))


def _options(method: str, k: int | None, objective: str, others: Options) -> Options:
    method_named(method)
    if objective not in OBJECTIVES:
        raise InvalidInput("an objective must be known", objective, f"choose from {', '.join(OBJECTIVES)}")
    if k is not None and k < 1:
        raise InvalidInput("--k must be at least 1", str(k), "leave out --k for the optimum")
    return replace(others, k=k, objective=cast(Objective, objective))


def _verified(schedule: Schedule | SymmetricSchedule, size_bytes: int | None) -> VerifiedSchedule | VerifiedSymmetric:
    if isinstance(schedule, SymmetricSchedule):
        return verify_symmetric(schedule, size_bytes)
    return verify(schedule, size_bytes)


def _bound(stages: Stages, topology: Topology, verified: VerifiedSchedule | VerifiedSymmetric) -> Bound:
    with stages.stage("bound"):
        bound = lower_bound(topology, verified.schedule.collective, verified.cost.time_per_byte)
        check_certificate(topology, verified.schedule.collective, bound.to_json(topology))
    return bound


def _warm(stages: Stages, method: str) -> None:
    """Compile kernels before the clock of the synthesis runs; the stage is reported only if anything was compiled."""
    with stages.stage("compile"):
        compiled = warm_method(method)
    if compiled == 0:
        del stages.seconds["compile"]
