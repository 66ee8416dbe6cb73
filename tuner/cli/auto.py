"""`chorale auto` shows a fabric's limit and what to run next; `chorale demo` tunes an allreduce within a minute."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.runners.api.units import format_size, parse_sizes
from chorale.synth import ChoraleError, InvalidInput
from chorale.tuner import Home, plots, save_schedule
from chorale.tuner.auto.roofline import EMULATED, contest, discover, roofline, roofline_table, synthesized_allreduce
from chorale.tuner.cli.options import SPECS, GpuModelName, LinkGbps, file_to_write, offer, sized_options
from chorale.tuner.cli.output import people
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.topology_specs import load_topology, save_topology
from chorale.tuner.reports.tables import Result, long_line, seconds_text

METHODS = ("bfb", "biring", "rabenseifner")
BASELINE = "rabenseifner"
"""The allreduce algorithm that MPICH uses at these sizes."""
SIZES = "16KiB,64KiB,256KiB"
_LIMIT_S = 45.0
_COLOURS = ("#0f766e", "#f59e0b", "#64748b", "#7c3aed")
_WIDTH, _LEFT, _BAR, _GAP, _TOP = 640, 90, 16, 14, 34
_STYLE = "text{font:12px sans-serif;dominant-baseline:central;fill:#334155}.title{font-size:14px}"


def auto(
    spec: Annotated[str | None, typer.Argument(metavar="[SPEC]", autocompletion=offer(SPECS))] = None,
    dump: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    model: GpuModelName = None,
    size: str | None = None,
    link_gbps: LinkGbps = None,
    budget: Annotated[float, typer.Option(min=1)] = 60.0,
    output: Annotated[Path | None, typer.Option("--output", "-o", callback=file_to_write, metavar="FILE")] = None,
) -> Result:
    """Detect the fabric, prove how fast an allreduce can be on it, and suggest next commands.

    Tries NCCL's dump (NCCL_TOPO_DUMP_FILE), nvidia-smi, rocm-smi and ibnetdiscover, in this order. If none of them
    is available, it measures an emulated network on the machine's own cores.

    Args:
        spec: Topology; default: the fabric of this node or cluster.
        dump: NCCL or RCCL dump, or saved output of nvidia-smi, rocm-smi or ibnetdiscover.
        size: Choose the method by predicted time at this size, such as 64KiB; default: by bandwidth.
        budget: Approximate time that the command may take, in seconds.
        output: Also write the network to this JSON file, to be used as file:FILE.

    Example: chorale auto --budget 30
    """
    if model is not None and dump is None:
        raise InvalidInput("--model {} works only with a saved matrix of GPUs", model, "add --dump FILE")
    fabric = discover(spec, dump, model)
    for line in fabric.skipped:
        people.print(f"skipped {line}", markup=False)
    if output is not None:
        save_topology(fabric.topology, output)
        fabric = replace(fabric, topology=replace(fabric.topology, spec=f"file:{output}"), writer=None)
    options = sized_options(fabric.topology, size, link_gbps)
    document, _ = roofline(fabric, budget, Home.from_environment().root, options)
    if output is not None:
        document["fabric"]["file"] = str(output)
    commands = [long_line(f"next: {command}") for command in document["next"]]
    return Result(document, roofline_table(document), *commands)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR")] = Path("chorale-demo"),
) -> Result:
    """Tune an allreduce of eight processes, connected like the corners of a cube, and draw it.

    Three schedules are designed, verified and run over emulated links; every element of every result is checked. If
    processes cannot be started, times are simulated, and a notice says so. Takes less than a minute.

    Args:
        output: Folder to write to; created if it does not exist.

    Example: chorale demo
    """
    network = load_topology(EMULATED)
    people.print(f"making and verifying {', '.join(METHODS)} for an allreduce on {EMULATED}", highlight=False)
    schedules = {method: synthesized_allreduce(network, method) for method in METHODS}
    people.print("running them in turns", highlight=False)
    home, sizes, notice = Home.from_environment().root, parse_sizes(SIZES), None
    try:
        runner, measured = "local", contest(schedules, "local", sizes, home, repeats=3, timeout_s=_LIMIT_S)
    except ChoraleError as error:
        options = {"link_mbps": 1000}
        runner, measured = "simulated", contest(schedules, "simulated", sizes, home, options=options, repeats=1)
        notice = f"simulated, since processes could not be measured here: {error}"
    rows = measured.rows()
    winner = min(METHODS, key=lambda name: sum(row["times_us"][name] / row["times_us"][BASELINE] for row in rows))
    output.mkdir(parents=True, exist_ok=True)
    picture, drawing, best = output / "times.svg", output / "network.svg", output / "best.parquet"
    title = f"allreduce on {EMULATED}, {runner} runner"
    write_file(picture, _bars_svg(title, rows).encode())
    write_file(drawing, (plots.topology_svg(network) or "").encode())
    save_schedule(schedules[winner], str(best))
    files = {"picture": str(picture), "network": str(drawing), "schedule": str(best)}
    table = Table(title=title)
    for heading in ("size", *METHODS, "best", "against MPICH (rabenseifner)"):
        table.add_column(heading, justify="right")
    for row in rows:
        times, fastest = row["times_us"], row["best"]
        gain = f"{times[BASELINE] / times[fastest]:.2f}× as fast"
        texts = (seconds_text(times[name] / 1e6) for name in METHODS)
        table.add_row(format_size(row["size_bytes"]), *texts, fastest, gain)
    return Result(
        {"runner": runner, "notice": notice, "results": rows, "best": winner, **files},
        table,
        *([notice] if notice else []),
        f"the answer: {winner}; picture {picture}, network {drawing}, schedule {best}",
        f"next: chorale auto, chorale show {best}, chorale tune examples/quickstart.yaml",
    )


def _bars_svg(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with a group of bars for each of `rows`, which have `size_bytes` and `times_us` (name -> time).

    A bar's length is its time relative to the longest time in its group.
    """
    names = list(rows[0]["times_us"])
    body = [f'<text class="title" x="8" y="16">{escape(title)}</text>']
    y = float(_TOP)
    for row in rows:
        most = max(row["times_us"].values())
        middle = y + len(names) * _BAR / 2
        body.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{format_size(row["size_bytes"])}</text>')
        for index, name in enumerate(names):
            time_us = row["times_us"][name]
            length = (_WIDTH - _LEFT - 190) * time_us / most
            shape = f'x="{_LEFT}" y="{y:.0f}" width="{length:.1f}" height="{_BAR - 2}"'
            body.append(f'<rect {shape} fill="{_COLOURS[index % len(_COLOURS)]}"/>')
            label = f"{name}, {seconds_text(time_us / 1e6)}"
            body.append(f'<text x="{_LEFT + length + 6:.1f}" y="{y + _BAR / 2:.0f}">{escape(label)}</text>')
            y += _BAR
        y += _GAP
    size = f'viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" height="{y:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    background = f'<rect width="{_WIDTH}" height="{y:.0f}" fill="#fff"/>'
    return f"{head}<style>{_STYLE}</style>{background}{''.join(body)}</svg>\n"
