"""`chorale bound` and `chorale failures`: how fast a collective can be at best, and after every single failure."""

from __future__ import annotations

from typing import Annotated

import typer

from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import METHODS, method_named
from chorale.synth.methods.method import Options
from chorale.tuner.cli.options import CollectiveName, ExecutorName, Root, Shards, Spec, Workers, file_to_write
from chorale.tuner.cli.output import progress_bar
from chorale.tuner.config.executors import open_executor
from chorale.tuner.costs.library_model import nccl_choices
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.assumptions import add_assumptions, assumption_facts, expected_facts
from chorale.tuner.reports.bound import (
    bound_document,
    bound_report,
    bound_table,
    failures_csv,
    failures_document,
    failures_table,
    plan_failures,
)
from chorale.tuner.reports.tables import Result, Stopwatch, peak_memory_bytes
from chorale.tuner.reports.uneven_shards import FOREST_ONLY, ShardsRequest, require_trees, shards_bound


def bound(
    spec: Spec,
    collective: CollectiveName = "allgather",
    root: Root = 0,
    k: Annotated[int | None, typer.Option("--k", help="Trees per shard; default: the fewest that are optimal.")] = None,
    nccl_tuner: Annotated[
        str | None,
        typer.Option(
            "--nccl-tuner-csv",
            metavar="FILE",
            help="Write which algorithm of NCCL or RCCL is the fastest by the bounds: ring, tree, NVLS or NVLSTree.",
        ),
    ] = None,
    shards: Shards = None,
    seed: Annotated[int, typer.Option(min=0, help="Orders the ranks of --shards zipf:S.")] = 0,
) -> Result:
    """Say how fast a collective can be at best, by which links, and with how many trees per shard.

    The bound is exact: the bottleneck cut proves it, and separate code checks it. For allgather, reduce_scatter,
    broadcast and reduce it is the optimum.

    Example: chorale bound a100:2 --collective allreduce
    """
    target = parse_collective(collective, root)
    if nccl_tuner is not None and target != ALLREDUCE:
        rule = "the algorithms of NCCL are compared for allreduce"
        raise InvalidInput(rule, collective, "use --collective allreduce")
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    if shards is not None:
        require_trees(FOREST_ONLY, {"--k": k, "--root": root, "--nccl-tuner-csv": nccl_tuner})
        return shards_bound(topology, ShardsRequest(shards, collective, "height", seed), stages)
    with stages.stage("bound"):
        report = bound_report(topology, target, k)
    if nccl_tuner is not None:
        from chorale.tuner.reports.library_files import NcclTableEntry, nccl_tuner_csv  # noqa: PLC0415 - it imports pydantic

        choices = nccl_choices(topology, [2**power for power in range(10, 35)])
        entries = [NcclTableEntry(size, each.name, each.protocol, 0) for size, each in choices]
        write_file(nccl_tuner, nccl_tuner_csv(entries, ALLREDUCE.name.value, topology.compute_count).encode())
    table, document = bound_table(report), bound_document(report)
    if topology.assumptions:
        document["expected"] = expected_facts(topology, target)
        document |= assumption_facts(topology)
        add_assumptions(table, topology, document["expected"])
    seconds = stages.report(outside_total=("topology",))
    return Result(document | {"seconds": seconds}, table)


def failures(
    spec: Spec,
    method: Annotated[str, typer.Option(help=f"How to make the schedules: {', '.join(METHODS)}.")] = "forest",
    collective: CollectiveName = "allgather",
    k: Annotated[int | None, typer.Option("--k", help="Trees per root; default: the fewest that are optimal.")] = None,
    root: Root = 0,
    executor: ExecutorName = "processes",
    workers: Workers = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", callback=file_to_write, help="Write the table of all failures as .csv too."),
    ] = None,
) -> Result:
    """Plan a verified schedule for the loss of each compute node and each link, one at a time.

    Failures that known symmetries make alike are planned once. `chorale synth METHOD 'without(SPEC;node=K)'`
    reproduces a row and writes its schedule.

    Example: chorale failures a100:4 --k 1 --executor processes
    """
    method_named(method)
    if output is not None and not output.endswith(".csv"):
        raise InvalidInput("a table of failures must end in .csv", output, "choose for example failures.csv")
    target = parse_collective(collective, root)
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    with (
        open_executor(executor, workers) as running,
        progress_bar(f"failures of {spec}") as progress,
        stages.stage("plans"),
    ):
        plans = plan_failures(topology, method, target, Options(k=k), running, progress)
    document = failures_document(plans) | assumption_facts(topology)
    document |= {"seconds": stages.report(outside_total=("topology",)), "peak_memory_bytes": peak_memory_bytes()}
    if output is not None:
        write_file(output, failures_csv(document).encode())
    return Result(document, failures_table(document, topology.bandwidth_unit))
