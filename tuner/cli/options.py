"""Arguments and options that several commands have, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorale.tuner.cli.choices import (
    COLLECTIVES,
    ELEMENT_TYPES,
    EXECUTORS,
    collective_name,
    element_type,
    executor_name,
    file_to_write,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
RunnableFile = Annotated[str, typer.Argument(help="Schedule file (.parquet, .json) or program file (.xml).")]
ReadableFile = Annotated[
    str, typer.Argument(help="Schedule file (.parquet, .json) or program file (.xml, or a plan for MSCCL++ in .json).")
]
ScheduleFile = Annotated[str, typer.Argument(help="Schedule file, .parquet or .json.")]
SpecOfProgram = Annotated[str | None, typer.Option(help="The topology, for a program that does not name it.")]
CollectiveFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="What a program for a collective of its own must do (chorale-collective/1)."),
]
Shards = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|zipf:S",
        help="Size of the shard of every rank, for allgather and reduce_scatter: .json, .csv or .npy, or a skew.",
    ),
]
Sizes = Annotated[str, typer.Option(help="Buffer sizes: 64KiB, 1M,4M or 4KiB:1GiB:x4.")]
Root = Annotated[int, typer.Option(help="Root rank of broadcast and reduce.")]
Protocol = Annotated[str, typer.Option(help="Wire protocol: Simple, LL or LL128.")]
ExecutorName = Annotated[
    str, typer.Option(metavar="NAME", parser=executor_name, help=f"Where to compute: {', '.join(EXECUTORS)}.")
]
CollectiveName = Annotated[
    str,
    typer.Option(metavar="NAME", parser=collective_name, help=f"One of {', '.join(COLLECTIVES)}."),
]
ElementTypeName = Annotated[
    str, typer.Option(metavar="TYPE", parser=element_type, help=f"Element type: {', '.join(ELEMENT_TYPES)}.")
]
Workers = Annotated[int | None, typer.Option(help="Workers of the executor; default: one per core.")]
PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", callback=file_to_write, help="Draw it as .png, .svg or .pdf.")
]
GoodputPlot = Annotated[
    Path | None, typer.Option(metavar="FILE", callback=file_to_write, help="Draw goodput as .png, .svg or .pdf.")
]
