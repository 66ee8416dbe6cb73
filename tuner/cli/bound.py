"""`chorale bound`: how fast a collective can be at best."""

from __future__ import annotations

from typing import Annotated

import typer

from chorale.synth.collective import parse_collective
from chorale.tuner.cli.options import AsJson, Root
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.bound import bound_document, bound_report, bound_table
from chorale.tuner.reports.stopwatch import Stopwatch


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("bound")(bound)


def bound(
    spec: Annotated[str, typer.Argument(help="Topology, such as a100:2; see `chorale topology list`.")],
    collective: Annotated[
        str, typer.Option(help="allgather, reduce_scatter, allreduce, broadcast, reduce or alltoall.")
    ] = "allgather",
    root: Root = 0,
    k: Annotated[int | None, typer.Option("--k", help="Trees per shard; default: the fewest that are optimal.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say how fast a collective can be at best, by which links, and with how many trees per shard.

    The bound is exact: the bottleneck cut proves it, and separate code checks it. For allgather, reduce_scatter,
    broadcast and reduce it is the optimum.

    Example: chorale bound a100:2 --collective allreduce
    """
    target = parse_collective(collective, root)
    stages = Stopwatch()
    with stages.stage("topology"):
        topology = load_topology(spec)
    with stages.stage("bound"):
        report = bound_report(topology, target, k)
    if as_json:
        seconds = stages.report(outside_total=("topology",))
        emit_json(bound_document(report) | {"seconds": seconds})
    else:
        results.print(bound_table(report))
