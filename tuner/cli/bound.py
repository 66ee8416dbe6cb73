"""`chorale bound`: how fast a collective can be at best."""

from __future__ import annotations

from typing import Annotated

import typer

from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.options import AsJson, CollectiveName, Root, Shards
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.bound import bound_document, bound_report, bound_table
from chorale.tuner.reports.stopwatch import Stopwatch


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("bound")(bound)


def bound(
    spec: Annotated[str, typer.Argument(help="Topology, such as a100:2; see `chorale topology list`.")],
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
    as_json: AsJson = False,
) -> None:
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
        from chorale.tuner.cli import uneven_shards  # noqa: PLC0415 - only for given sizes

        uneven_shards.require_trees(
            uneven_shards.FOREST_ONLY, {"--k": k, "--root": root, "--nccl-tuner-csv": nccl_tuner}
        )
        asked = uneven_shards.ShardsRequest(shards, collective, "height", seed)
        uneven_shards.print_shards_bound(topology, asked, stages, as_json)
        return
    with stages.stage("bound"):
        report = bound_report(topology, target, k)
    if nccl_tuner is not None:
        write_file(nccl_tuner, _tuner_table(topology).encode())
    if as_json:
        seconds = stages.report(outside_total=("topology",))
        emit_json(bound_document(report) | {"seconds": seconds})
    else:
        results.print(bound_table(report))


def _tuner_table(topology: Topology) -> str:
    from chorale.tuner.costs.nccl_model import nccl_choices  # noqa: PLC0415 - only for this file
    from chorale.tuner.reports.nccl_tuner_csv import NcclTableEntry, nccl_tuner_csv  # noqa: PLC0415 - it imports pydantic

    choices = nccl_choices(topology, [2**power for power in range(10, 35)])
    entries = [NcclTableEntry(size, each.name, each.protocol, 0) for size, each in choices]
    return nccl_tuner_csv(entries, ALLREDUCE.name.value, topology.compute_count)
