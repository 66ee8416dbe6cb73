"""`chorale topology`: list the families, show one network, import one from a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.topology.formats.files import dumped_machine, from_bytes
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.formats.slurm import expanded_names, is_slurm_tree
from chorale.synth.topology.spec import FAMILIES, FILE_FORM, FUNCTIONS
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson, PlotFile
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.cli.placement import placement
from chorale.tuner.cli.slurm_network import (
    MachineDump,
    NicRate,
    Oversubscription,
    SlurmNetwork,
    nic_bandwidth,
    slurm_network,
)
from chorale.tuner.files.read_write import read_file, require_plot_format, write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.lazy_rich import ruled_table
from chorale.tuner.reports.light_table import LightTable
from chorale.tuner.reports.quantities import short_id
from chorale.tuner.reports.topology import able_text, describe_topology, show_topology

_ONLY_PLACES = (
    "This file places devices on PCI but does not describe GPUs: links other than PCI are missing. "
    "For the whole machine, run NCCL or RCCL on it with NCCL_TOPO_DUMP_FILE set."
)
_ANSWERS = {True: "yes", False: "no", None: "not decided"}

topology_app = CommandLine(help="List the families of networks, show one, import one.", no_args_is_help=True)
topology_app.command("placement")(placement)


def register(app: typer.Typer) -> None:
    """Add `chorale topology` to the command line."""
    app.add_typer(topology_app, name="topology")


@topology_app.command("list")
def list_topologies(as_json: AsJson = False) -> None:
    """List all families and functions of topology specs."""
    rows = _catalog_rows()
    if as_json:
        emit_json({"topologies": rows})
        return
    table = ruled_table()
    for heading in ("syntax", "what", "example"):
        table.add_column(heading, overflow="fold")
    for kind in ("family", "file", "function"):
        for row in rows:
            if row["kind"] == kind:
                table.add_row(row["syntax"], row["what"], row["example"])
        table.add_section()
    results.print(table)


@topology_app.command("show")
def show(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A topology spec, such as torus:4x4.")],
    as_json: AsJson = False,
    plot: PlotFile = None,
) -> None:
    """Show size, degree, diameter and links of a network, and draw it."""
    require_plot_format(plot)
    topology = load_topology(spec)
    if plot is not None:
        from chorale.tuner.plots.topology_plot import plot_topology  # noqa: PLC0415 (matplotlib is slow)

        plot_topology(topology, plot)
    if as_json:
        emit_json(show_topology(topology))
    else:
        _print_summary(topology, plot)


@topology_app.command("import")
def import_topology(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A dump of NCCL or RCCL (XML), GraphML, JSON, or Slurm's switches.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", callback=file_to_write, metavar="FILE", help="The .json file to write.")
    ],
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
        topology = _slurm_network(slurm_network(file, machine, nic_gbps, oversubscription), nodes)
    else:
        of_slurm = {"--nodes": nodes, "--machine": machine, "--oversubscription": oversubscription}
        _refuse(of_slurm, "need Slurm's switches", file)
        if dump is None:
            _refuse({"--boxes": boxes, "--nic-gbps": nic_gbps, "--rails": rails}, "need a topology dump", file)
            topology = from_bytes(content, spec)
        else:
            topology = boxes_topology(dump, BoxNetwork(boxes or 1, nic_bandwidth(nic_gbps), rails), spec)
            _warn_of_positions(dump)
    write_file(output, (json.dumps(to_json(topology), indent=1) + "\n").encode())
    results.print(
        f"{output}: {topology.compute_count} nodes, {topology.switch_count} switches, {len(topology.links)} links"
    )


def _refuse(options: Mapping[str, object], why: str, file: str) -> None:
    """Raise InvalidInput if one of `options` was given, which are not for `file`."""
    if any(options.values()):
        names = list(options)
        given = ", ".join(name for name, value in options.items() if value)
        raise InvalidInput(f"{', '.join(names[:-1])} and {names[-1]} {why}", f"{given} for {file}", "leave it out")


def _warn_of_positions(machine: Machine) -> None:
    if machine.positions_only:
        people.print(_ONLY_PLACES)


def _slurm_network(network: SlurmNetwork, nodes: str | None) -> Topology:
    """Return the network of nodes of a Slurm cluster, and say in which order they are ranks."""
    names = tuple(expanded_names(nodes or ""))
    topology = network.topology(names)
    hosts = ",".join(network.hosts(names))
    people.print(f"ranks are in the order of switches: hosts {hosts}", soft_wrap=True, highlight=False)
    if network.machine is not None:
        _warn_of_positions(network.machine)
    return topology


def _catalog_rows() -> list[dict[str, str]]:
    kinds = (("family", FAMILIES.values()), ("file", [FILE_FORM]), ("function", FUNCTIONS.values()))
    return [
        {"name": entry.name, "kind": kind, "syntax": entry.syntax, "what": entry.summary, "example": entry.example}
        for kind, entries in kinds
        for entry in entries
    ]


def _print_summary(topology: Topology, plot: Path | None) -> None:
    facts = describe_topology(topology)
    table = LightTable(2, facts.pop("spec"), title_justify="left", has_lines=False)
    degree = facts.pop("degree")
    rows: dict[str, Any] = {
        "compute nodes": facts["nodes"],
        "switches": facts["switches"],
        "links": facts["links"],
        "degree": "not regular" if degree is None else degree,
        "diameter": facts["diameter"],
        "bandwidths": _bandwidths(topology),
        **_able_switches(topology),
        "vertex-transitive": _ANSWERS[is_vertex_transitive(topology)],
        "Eulerian": _ANSWERS[topology.is_eulerian],
        "id": short_id(facts["id"]),
    }
    if plot is not None:
        rows["drawing"] = plot
    for name, value in rows.items():
        table.add_row(name, str(value))
    results.print(table)


def _able_switches(topology: Topology) -> dict[str, str]:
    """Return a row per kind of ability, such as "adds and multicasts": "2 switches"; none where there is none."""
    counts = Counter(topology.abilities.values())
    return {able_text(ability, topology): f"{count} switches" for ability, count in counts.items()}


def _bandwidths(topology: Topology) -> str:
    unit = {"link": "link capacity"}.get(topology.bandwidth_unit, topology.bandwidth_unit)
    texts = [rational_text(bandwidth) for bandwidth in topology.links.bandwidths]
    shown = ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]}, {len(texts)} values"
    return f"{shown} ({unit})"
