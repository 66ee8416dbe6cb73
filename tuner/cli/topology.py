"""`chorale topology`: list the families, show one network, import one from a file, compare nodes of a cluster."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.topology.formats.files import dumped_machine, from_bytes
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.formats.slurm import (
    SlurmNodes,
    SlurmTree,
    expanded_names,
    is_slurm_tree,
    parse_slurm_tree,
    slurm_gpu_topology,
    slurm_topology,
)
from chorale.synth.topology.spec import FAMILIES, FILE_FORM, FUNCTIONS
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import CollectiveName, FileOutput, PlotFile, Root, Spec
from chorale.tuner.cli.output import notice, people
from chorale.tuner.files.read_write import read_file, require_plot_format
from chorale.tuner.files.topology_specs import load_topology, save_topology
from chorale.tuner.reports.bound import BoundOnNodes, bound_report, placement_result
from chorale.tuner.reports.synthesis import able_text, describe_topology, show_topology
from chorale.tuner.reports.tables import Result, ruled_table, short_id

_ONLY_PLACES = (
    "This file places devices on PCI but does not describe GPUs: links other than PCI are missing. "
    "For the whole machine, run NCCL or RCCL on it with NCCL_TOPO_DUMP_FILE set."
)
_ANSWERS = {True: "yes", False: "no", None: "not decided"}

topology_app = CommandLine(help="List the families of networks, show one, import one.", no_args_is_help=True)

NicRate = Annotated[str | None, typer.Option("--nic-gbps", metavar="G", help="Gbit/s of every NIC [as dumped].")]
MachineDump = Annotated[
    str | None,
    typer.Option("--machine", metavar="DUMP", help="A dump (XML) of NCCL or RCCL of one of the nodes: ranks are GPUs."),
]
Oversubscription = Annotated[
    str | None,
    typer.Option(metavar="R", help="What nodes below a switch send together, over what its uplink carries [1]."),
]


@topology_app.command("list")
def list_topologies() -> Result:
    """List all families and functions of topology specs."""
    table = ruled_table()
    for heading in ("syntax", "what", "example"):
        table.add_column(heading, overflow="fold")
    rows = []
    for kind, entries in (("family", FAMILIES.values()), ("file", [FILE_FORM]), ("function", FUNCTIONS.values())):
        for entry in entries:
            facts = {"name": entry.name, "kind": kind, "syntax": entry.syntax}
            rows.append({**facts, "what": entry.summary, "example": entry.example})
            table.add_row(entry.syntax, entry.summary, entry.example)
        table.add_section()
    return Result({"topologies": rows}, table)


@topology_app.command("show")
def show(spec: Spec, plot: PlotFile = None) -> Result:
    """Show size, degree, diameter and links of a network, and draw it."""
    require_plot_format(plot)
    topology = load_topology(spec)
    if plot is not None:
        from chorale.tuner.plots.network_plots import plot_topology  # noqa: PLC0415 - matplotlib is optional

        plot_topology(topology, plot)
    return Result(show_topology(topology), _summary(topology, plot))


@topology_app.command("import")
def import_topology(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A dump of NCCL or RCCL (XML), GraphML, JSON, or Slurm's switches.")
    ],
    output: FileOutput,
    boxes: Annotated[int | None, typer.Option(min=1, help="Join so many copies of a dumped machine.")] = None,
    nic_gbps: NicRate = None,
    rails: Annotated[
        bool, typer.Option("--rails", help="Join NIC i of all boxes by switch i, not all by one.")
    ] = False,
    nodes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Nodes of Slurm to take, such as gpu[01-16] [all].")
    ] = None,
    machine: MachineDump = None,
    oversubscription: Oversubscription = None,
) -> None:
    """Turn a topology dump into a network, and write it as JSON for file: specs.

    Example: chorale topology import dump.xml --boxes 4 --nic-gbps 200 -o cluster.json
    """
    if output.suffix.lower() != ".json":
        raise InvalidInput("an imported network must be written to a .json file", output.name, "choose another name")
    spec = f"file:{file}"
    content = read_file(file)
    dump = dumped_machine(content, spec)
    if dump is None and is_slurm_tree(content):
        _refuse({"--boxes": boxes, "--rails": rails}, "are for the dump of a machine", file)
        network, names = slurm_network(file, machine, nic_gbps, oversubscription), tuple(expanded_names(nodes or ""))
        topology = network.topology(names)
        notice(f"ranks are in the order of switches: hosts {','.join(network.hosts(names))}")
        dump = network.machine
    else:
        of_slurm = {"--nodes": nodes, "--machine": machine, "--oversubscription": oversubscription}
        _refuse(of_slurm, "need Slurm's switches", file)
        if dump is None:
            _refuse({"--boxes": boxes, "--nic-gbps": nic_gbps, "--rails": rails}, "need a topology dump", file)
            topology = from_bytes(content, spec)
        else:
            topology = boxes_topology(dump, BoxNetwork(boxes or 1, _nic_bandwidth(nic_gbps), rails), spec)
    if dump is not None and dump.positions_only:
        people.print(_ONLY_PLACES)
    save_topology(topology, output)
    typer.echo(
        f"{output}: {topology.compute_count} nodes, {topology.switch_count} switches, {len(topology.links)} links"
    )


@topology_app.command("placement")
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
) -> Result:
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
    return placement_result(
        [
            BoundOnNodes(name, tuple(network.hosts(names)), bound_report(network.topology(names), target, None))
            for name, names in (("nodes", got), ("preferred", better))
        ]
    )


@dataclass(frozen=True, slots=True)
class SlurmNetwork:
    """Switches of a cluster, and how its nodes send.

    machine: each node, whose GPUs are ranks; None where nodes are
    rate:    GB/s of every NIC; None for those of the dump
    """

    tree: SlurmTree
    machine: Machine | None
    rate: Fraction | None
    oversubscription: Fraction
    spec: str

    def topology(self, names: tuple[str, ...]) -> Topology:
        """Return the network of the nodes `names`, of all if there are none."""
        nodes = SlurmNodes(self.tree, names, self.oversubscription)
        if self.machine is not None:
            return slurm_gpu_topology(nodes, self.machine, self.rate, self.spec)
        if self.rate is None:
            way_out = "add --nic-gbps 200, or --machine"
            raise InvalidInput("Slurm does not know how fast nodes send", "no --nic-gbps", way_out)
        return slurm_topology(nodes, self.rate, self.spec)

    def hosts(self, names: tuple[str, ...]) -> list[str]:
        """Return the nodes `names` in the order of their ranks."""
        return SlurmNodes(self.tree, names).ranked


def slurm_network(file: str, machine: str | None, nic_gbps: str | None, oversubscription: str | None) -> SlurmNetwork:
    """Return what the files and options of a command say. InvalidInput for what cannot be."""
    dump = None
    if machine is not None and (dump := dumped_machine(read_file(machine), f"file:{machine}")) is None:
        way_out = "run NCCL or RCCL on a node with NCCL_TOPO_DUMP_FILE set"
        raise InvalidInput("--machine must be a dump of NCCL or RCCL", machine, way_out)
    ratio = Fraction(1) if oversubscription is None else parse_rational(oversubscription, "--oversubscription")
    if ratio < 1:
        way_out = "write 2 for half of what is below"
        raise InvalidInput("--oversubscription must be at least 1", oversubscription, way_out)
    return SlurmNetwork(parse_slurm_tree(read_file(file)), dump, _nic_bandwidth(nic_gbps), ratio, f"file:{file}")


def _nic_bandwidth(text: str | None) -> Fraction | None:
    """Return GB/s from text in Gbit/s."""
    if text is None:
        return None
    bandwidth = parse_rational(text, "--nic-gbps")
    if bandwidth <= 0:
        raise InvalidInput("--nic-gbps must be positive", text, "give the Gbit/s of one NIC")
    return bandwidth / 8


def _refuse(options: Mapping[str, object], why: str, file: str) -> None:
    """Raise InvalidInput if one of `options` was given, which are not for `file`."""
    if any(options.values()):
        *others, last = options
        given = ", ".join(name for name, value in options.items() if value)
        raise InvalidInput(f"{', '.join(others)} and {last} {why}", f"{given} for {file}", "leave it out")


def _summary(topology: Topology, plot: Path | None) -> Table:
    facts, degree = describe_topology(topology), topology.degree
    unit = {"link": "link capacity"}.get(topology.bandwidth_unit, topology.bandwidth_unit)
    texts = [rational_text(bandwidth) for bandwidth in topology.links.bandwidths]
    bandwidths = ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]}, {len(texts)} values"
    abilities = Counter(topology.abilities.values())
    rows: dict[str, Any] = {
        "compute nodes": facts["nodes"],
        "switches": facts["switches"],
        "links": facts["links"],
        "degree": "not regular" if degree is None else degree,
        "diameter": facts["diameter"],
        "bandwidths": f"{bandwidths} ({unit})",
        **{able_text(ability, topology): f"{count} switches" for ability, count in abilities.items()},
        "vertex-transitive": _ANSWERS[is_vertex_transitive(topology)],
        "Eulerian": _ANSWERS[topology.is_eulerian],
        "id": short_id(facts["id"]),
        **({} if plot is None else {"drawing": plot}),
    }
    table = Table(title=facts["spec"], title_justify="left", show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table
