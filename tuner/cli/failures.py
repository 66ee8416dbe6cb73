"""`chorale failures`: plan for every single failure of a fabric before it happens."""

from __future__ import annotations

from typing import Annotated

import typer

from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import METHODS, method_named
from chorale.synth.methods.method import Options
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson, ExecutorName, Root, Workers
from chorale.tuner.cli.output import emit_json, progress_bar, results
from chorale.tuner.config.executors import open_executor
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.failures import failures_csv, failures_document, failures_table, plan_failures
from chorale.tuner.reports.stopwatch import Stopwatch, peak_memory_bytes


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("failures")(failures)


def failures(
    spec: Annotated[str, typer.Argument(help="Topology, such as a100:16; see `chorale topology list`.")],
    method: Annotated[str, typer.Option(help=f"How to make the schedules: {', '.join(METHODS)}.")] = "forest",
    collective: Annotated[str, typer.Option(help="As of `chorale synth`.")] = "allgather",
    k: Annotated[int | None, typer.Option("--k", help="Trees per root; default: the fewest that are optimal.")] = None,
    root: Root = 0,
    executor: ExecutorName = "processes",
    workers: Workers = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", callback=file_to_write, help="Write the table of all failures as .csv too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a verified schedule for the loss of every compute node and of every link, one at a time.

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
    document = failures_document(plans)
    seconds = stages.report(outside_total=("topology",))
    document |= {"seconds": seconds, "peak_memory_bytes": peak_memory_bytes()}
    if output is not None:
        write_file(output, failures_csv(document).encode())
    if as_json:
        emit_json(document)
    else:
        results.print(failures_table(document, topology.bandwidth_unit))
