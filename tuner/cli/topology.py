"""`chorale topology`: list the families, show one network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from synth.identity import rational_text
from synth.topology.catalog import FAMILIES, FILE_ENTRY, FUNCTIONS
from synth.topology.symmetry import is_vertex_transitive
from synth.topology.topology import Topology
from tuner.cli.output import emit_json
from tuner.describe import describe_topology, show_topology
from tuner.specs import load_topology

_ANSWERS = {True: "yes", False: "no", None: "not decided"}

topology_app = typer.Typer(help="List the families of networks and show one.", no_args_is_help=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def register(app: typer.Typer) -> None:
    """Add `chorale topology` to the command line."""
    app.add_typer(topology_app, name="topology")


@topology_app.command("list")
def list_topologies(as_json: JsonFlag = False) -> None:
    """List all families and functions of topology specs."""
    rows = _catalog_rows()
    if as_json:
        emit_json({"topologies": rows})
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("syntax", "what", "example"):
        table.add_column(heading, overflow="fold")
    for kind in ("family", "file", "function"):
        for row in rows:
            if row["kind"] == kind:
                table.add_row(row["syntax"], row["what"], row["example"])
        table.add_section()
    Console(markup=False).print(table)


@topology_app.command("show")
def show(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A topology spec, such as torus:4x4.")],
    as_json: JsonFlag = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it as .png, .svg or .pdf.")] = None,
) -> None:
    """Show size, degree, diameter and links of a network, and draw it."""
    if plot is not None:
        from tuner.plots.topology_plot import plot_topology, require_plot_format  # noqa: PLC0415 (matplotlib is slow)

        require_plot_format(plot)
        topology = load_topology(spec)
        plot_topology(topology, plot)
    else:
        topology = load_topology(spec)
    if as_json:
        emit_json(show_topology(topology))
    else:
        _print_summary(topology, plot)


def _catalog_rows() -> list[dict[str, str]]:
    kinds = (("family", FAMILIES.values()), ("file", [FILE_ENTRY]), ("function", FUNCTIONS.values()))
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
        "vertex-transitive": _ANSWERS[is_vertex_transitive(topology)],
        "Eulerian": _ANSWERS[topology.is_eulerian],
        "id": facts["id"],
    }
    if plot is not None:
        rows["drawing"] = plot
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console(markup=False).print(table)


def _bandwidths(topology: Topology) -> str:
    unit = {"link": "link capacity"}.get(topology.bandwidth_unit, topology.bandwidth_unit)
    texts = [rational_text(bandwidth) for bandwidth in topology.links.bandwidths]
    shown = ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]}, {len(texts)} values"
    return f"{shown} ({unit})"
