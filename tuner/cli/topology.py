"""`chorale topology`: list the families, show one network, import one from a file."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.topology.formats.files import dumped_machine, from_bytes, to_json
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.formats.slurm_tree import expanded_names, is_slurm_tree, parse_slurm_tree, slurm_topology
from chorale.synth.topology.spec import FAMILIES, FILE_FORM, FUNCTIONS
from chorale.synth.topology.symmetry import is_vertex_transitive
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import AsJson, PlotFile
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.files.read_write import read_file, require_plot_format, write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.lazy_rich import Table, ruled_table
from chorale.tuner.reports.quantities import short_id
from chorale.tuner.reports.topology import able_text, describe_topology, show_topology

_ONLY_PLACES = (
    "This file places devices on PCI but does not describe GPUs: links other than PCI are missing. "
    "For the whole machine, run NCCL or RCCL on it with NCCL_TOPO_DUMP_FILE set."
)
_ANSWERS = {True: "yes", False: "no", None: "not decided"}

topology_app = CommandLine(help="List the families of networks, show one, import one.", no_args_is_help=True)


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
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .json file to write.")],
    boxes: Annotated[int | None, typer.Option(min=1, help="Join so many copies of a dumped machine.")] = None,
    nic_gbps: Annotated[str | None, typer.Option(metavar="G", help="Gbit/s of every NIC [as dumped].")] = None,
    rails: Annotated[
        bool, typer.Option("--rails", help="Join NIC i of all boxes by switch i, not all by one.")
    ] = False,
    nodes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Nodes of Slurm to take, such as gpu[01-16] [all].")
    ] = None,
) -> None:
    """Turn a topology dump into a network, and write it as JSON for file: specs.

    Example: chorale topology import dump.xml --boxes 4 --nic-gbps 200 -o cluster.json
    """
    if output.suffix.lower() != ".json":
        raise InvalidInput("an imported network must be written to a .json file", output.name, "choose another name")
    spec = f"file:{file}"
    content = read_file(file)
    machine = dumped_machine(content, spec)
    if is_slurm_tree(content) and machine is None:
        topology = _slurm_network(content, nodes, nic_gbps, spec)
    elif nodes is not None:
        raise InvalidInput("--nodes needs Slurm's switches", file, "leave it out")
    elif machine is not None:
        topology = boxes_topology(machine, BoxNetwork(boxes or 1, _nic_bandwidth(nic_gbps), rails), spec)
        if machine.positions_only:
            people.print(_ONLY_PLACES)
    elif boxes is not None or nic_gbps is not None or rails:
        raise InvalidInput("--boxes, --nic-gbps and --rails need a topology dump", file, "leave them out")
    else:
        topology = from_bytes(content, spec)
    write_file(output, (json.dumps(to_json(topology), indent=1) + "\n").encode())
    results.print(
        f"{output}: {topology.compute_count} nodes, {topology.switch_count} switches, {len(topology.links)} links"
    )


def _slurm_network(content: bytes, nodes: str | None, nic_gbps: str | None, spec: str) -> Topology:
    """Return the network of nodes of a Slurm cluster, and say in which order they are ranks."""
    bandwidth = _nic_bandwidth(nic_gbps)
    if bandwidth is None:
        raise InvalidInput("Slurm does not know how fast nodes send", "no --nic-gbps", "add --nic-gbps 200")
    topology = slurm_topology(parse_slurm_tree(content), expanded_names(nodes or ""), bandwidth, spec)
    hosts = ",".join(topology.node_ids[: topology.compute_count])
    people.print(f"ranks are in the order of switches: hosts {hosts}", soft_wrap=True, highlight=False)
    return topology


def _nic_bandwidth(text: str | None) -> Fraction | None:
    """Return GB/s from text in Gbit/s."""
    if text is None:
        return None
    bandwidth = parse_rational(text, "--nic-gbps")
    if bandwidth <= 0:
        raise InvalidInput("--nic-gbps must be positive", text, "give the Gbit/s of one NIC")
    return bandwidth / 8


def _catalog_rows() -> list[dict[str, str]]:
    kinds = (("family", FAMILIES.values()), ("file", [FILE_FORM]), ("function", FUNCTIONS.values()))
    return [
        {"name": entry.name, "kind": kind, "syntax": entry.syntax, "what": entry.summary, "example": entry.example}
        for kind, entries in kinds
        for entry in entries
    ]


def _print_summary(topology: Topology, plot: Path | None) -> None:
    facts = describe_topology(topology)
    table = Table("", "", show_header=False, title=facts.pop("spec"), title_justify="left", box=None)
    table.columns[1].overflow = "fold"
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
