"""`chorale auto`: what the fabric of this node or cluster allows, what is reached, and what to type next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from chorale.synth.topology.formats.json_document import to_json
from chorale.tuner.auto.fabric_discovery import discover
from chorale.tuner.auto.roofline import roofline, roofline_table
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file

Dump = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="NCCL or RCCL dump, or saved output of nvidia-smi, rocm-smi or ibnetdiscover."),
]
SavedFabric = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        callback=file_to_write,
        metavar="FILE",
        help="Also write the network as JSON, for file: specs.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("auto")(auto)


def auto(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="Topology; default: the fabric of this node or cluster.")
    ] = None,
    dump: Dump = None,
    budget: Annotated[float, typer.Option(min=1, help="Seconds that it may take, about.")] = 60.0,
    output: SavedFabric = None,
    as_json: AsJson = False,
) -> None:
    """Find the fabric, prove what an allreduce can reach on it, compare, and say what to type next.

    Asks NCCL's dump (NCCL_TOPO_DUMP_FILE), nvidia-smi, rocm-smi and ibnetdiscover, in this order. A machine without
    any of them measures an emulated network on its own cores.

    Example: chorale auto --budget 30
    """
    fabric = discover(spec, dump)
    for line in fabric.skipped:
        people.print(f"skipped {line}", markup=False)
    if output is not None:
        write_file(output, (json.dumps(to_json(fabric.topology), indent=1) + "\n").encode())
    document, _ = roofline(fabric, budget, Home.from_environment().root)
    if output is not None:
        document["fabric"]["file"] = str(output)
    if as_json:
        emit_json(document)
        return
    results.print(roofline_table(document))
    for command in document["next"]:
        results.print(f"next: {command}", soft_wrap=True)
