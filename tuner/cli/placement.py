"""`chorale topology placement`: the bounds of the nodes of a job, and of those that one prefers."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.slurm import expanded_names
from chorale.tuner.cli.options import AsJson, CollectiveName, Root
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.cli.slurm_network import MachineDump, NicRate, Oversubscription, slurm_network
from chorale.tuner.reports.bound import bound_report
from chorale.tuner.reports.placement import BoundOnNodes, placement_document, placement_table


def placement(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Slurm's switches: `scontrol show topology`.")],
    nodes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Nodes that one gets [those of the Slurm job this is in].")
    ] = None,
    preferred: Annotated[
        str | None, typer.Option(metavar="LIST", help="Nodes that one prefers [as many, under few switches].")
    ] = None,
    nic_gbps: NicRate = None,
    machine: MachineDump = None,
    oversubscription: Oversubscription = None,
    collective: CollectiveName = "allreduce",
    root: Root = 0,
    as_json: AsJson = False,
) -> None:
    """Compare how fast a collective can be on the nodes one gets and on those one prefers.

    Example: chorale topology placement switches.txt --nodes n1,n2 --nic-gbps 200 --oversubscription 2
    """
    target = parse_collective(collective, root)
    network = slurm_network(file, machine, nic_gbps, oversubscription)
    listed = nodes or os.environ.get("SLURM_JOB_NODELIST")
    if not listed:
        raise InvalidInput("there must be nodes to compare", "none, outside of a Slurm job", 'add --nodes "n[1-2]"')
    got = tuple(expanded_names(listed))
    better = tuple(expanded_names(preferred) if preferred else network.tree.compact_nodes(len(set(got))))
    placements = [
        BoundOnNodes(name, tuple(network.hosts(names)), bound_report(network.topology(names), target, None))
        for name, names in (("nodes", got), ("preferred", better))
    ]
    if as_json:
        emit_json(placement_document(placements))
    else:
        results.print(placement_table(placements))
