"""`chorale topology`: list the families, show a network or NCCL's channels on it, import a network from a file."""

from collections import Counter
from contextlib import nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.job.files import read_file
from chorale.synth import InvalidInput, Topology
from chorale.synth.identity import rational_text
from chorale.synth.topology.formats.nccl_dump import graph_file, read_graphs
from chorale.synth.topology.spec import FAMILIES, FILE_FORM, FUNCTIONS
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.tuner import plots
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import PlotFile, Spec, file_to_write
from chorale.tuner.cli.output import notice
from chorale.tuner.files.home import write_file
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.files.schedule_files import load_topology, save_topology
from chorale.tuner.reports.bound import assumption_facts, assumption_rows, bound_label, machine_bounds
from chorale.tuner.reports.nccl_graph import found_rings, graph_document, graph_table
from chorale.tuner.reports.synthesis import able_text, describe_topology, show_topology
from chorale.tuner.reports.tables import Result, algbw_text, ruled_table, short_id

_ANSWERS = {True: "yes", False: "no", None: "not decided"}

topology_app = CommandLine(help="List the families of networks; show or import a network.", no_args_is_help=True)


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
    """Show the size, degree, diameter and links of a network, and draw it."""
    topology = load_topology(spec)
    if plot is not None:
        plots.plot_topology(topology, plot)
    bounds = machine_bounds(topology)
    step = f"chorale bound {quote(spec)}"
    return Result(show_topology(topology) | bounds, _summary(topology, plot, bounds), next_step=step)


@topology_app.command("graph")
def graph_of_nccl(
    spec: Spec,
    file: Annotated[str | None, typer.Argument(metavar="[GRAPH]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=file_to_write)] = None,
) -> Result:
    """Show NCCL's channels on a machine and their bandwidth, next to the rings that Chorale finds.

    NCCL can load rings from a file, but trees and schedules need programs. With several boxes, only the channels of the
    file are shown.

    Args:
        file: File to which NCCL wrote its channels because NCCL_GRAPH_DUMP_FILE was set.
        output: Write Chorale's rings to this file, for NCCL_GRAPH_FILE.

    Example: chorale topology graph a100:1 -o rings.xml
    """
    topology = load_topology(spec)
    graphs, found = [] if file is None else read_graphs(read_file(file)), None
    # Rings can be found only for one box; those in the file are shown for any number of boxes
    with suppress(InvalidInput) if output is None and file is not None else nullcontext():
        found = found_rings(topology)
    document = graph_document(topology, graphs, found)
    if output is not None and found is not None:
        write_file(output, graph_file([found]))
        document["output"] = str(output)
    return Result(document, graph_table(document))


@topology_app.command("import")
def import_topology(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=file_to_write, metavar="FILE")] = None,
    options: MachineOptions,
) -> Result:
    """Import a network from a file about a machine or fabric, list the assumptions, and write it as JSON.

    Args:
        file: A dump of NCCL or RCCL, an output of nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology or
            ibnetdiscover, XML of hwloc, GraphML, or JSON.
        output: Write the network to this .json file, to be used as file:FILE.

    Example: chorale topology import dump.xml --boxes 4 --nic-gbps 200 -o cluster.json
    """
    if output is not None and output.suffix.lower() != ".json":
        raise InvalidInput(
            "the network is written as JSON, but the output is called {}", output.name, "use a name that ends in .json"
        )
    network = read_network(file, options)
    for note in network.notes:
        notice(note)
    topology = network.topology
    bounds = machine_bounds(topology)
    shown: list[Table | str] = [_summary(topology, None, bounds)]
    if output is not None:
        save_topology(topology, output)
        counts = f"{topology.compute_count} nodes, {topology.switch_count} switches, {len(topology.links)} links"
        shown.append(f"{output}: {counts}")
    document = show_topology(topology) | bounds | {"output": None if output is None else str(output)}
    step = "the same with -o network.json" if output is None else f"chorale auto {quote(f'file:{output}')}"
    return Result(document, *shown, next_step=step)


def _summary(topology: Topology, plot: Path | None, bounds: dict[str, Any]) -> Table:
    facts, degree = describe_topology(topology), topology.degree
    unit = {"link": "link capacity"}.get(topology.bandwidth_unit, topology.bandwidth_unit)
    expected = topology.expected
    abilities = Counter(topology.abilities.values())
    rows: dict[str, Any] = {
        "compute nodes": facts["nodes"],
        "switches": facts["switches"],
        "links": facts["links"],
        "degree": "not regular" if degree is None else degree,
        "diameter": facts["diameter"],
        "bandwidths": f"{_bandwidths(topology)} ({unit})",
        **({} if expected is None else {"the library expects": f"{_bandwidths(expected)} ({unit})"}),
        **{able_text(ability, topology): f"{count} switches" for ability, count in abilities.items()},
        "vertex-transitive": _ANSWERS[is_vertex_transitive(topology)],
        "Eulerian": _ANSWERS[topology.is_eulerian],
        "id": short_id(facts["id"]),
        **({} if plot is None else {"drawing": plot}),
    }
    if bounds:
        proven, expects = bounds["bound"], bounds["expected"]
        rows[f"allreduce, {bound_label(proven['certificate'])}"] = algbw_text(Fraction(proven["time_per_byte"]), unit)
        if expects is not None:
            rows["allreduce, expected from the library"] = algbw_text(Fraction(expects["time_per_byte"]), unit)
    table = Table(title=facts["spec"], title_justify="left", show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, str(value))
    for name, text in assumption_rows(assumption_facts(topology)):
        table.add_row(name, text)
    return table


def _bandwidths(topology: Topology) -> str:
    texts = [rational_text(bandwidth) for bandwidth in topology.links.bandwidths]
    return ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]}, {len(texts)} values"
