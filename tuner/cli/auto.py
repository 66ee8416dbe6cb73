"""Defines `chorale auto` (find a fabric's limit, suggest next commands) and `demo` (a campaign in a minute)."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from chorale.runners.api.units import format_size, parse_sizes
from chorale.synth import ChoraleError, InvalidInput
from chorale.tuner import Home, plots, save_schedule
from chorale.tuner.auto.roofline import EMULATED, contest, discover, roofline, roofline_table, synthesized_allreduce
from chorale.tuner.cli.options import SPECS, GpuModelName, LinkGbps, file_to_write, offer, people, sized_options
from chorale.tuner.costs.pricing import goodput_row
from chorale.tuner.files.schedule_files import load_topology, save_topology
from chorale.tuner.reports.tables import Result, long_line, seconds_text

METHODS = ("bfb", "biring", "rabenseifner")
BASELINE = "rabenseifner"
"""Baseline of `demo`: the method that corresponds to MPICH's allreduce algorithm at the sizes in `SIZES`."""
SIZES = "16KiB,64KiB,256KiB"
_LIMIT_S = 45.0


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
        raise InvalidInput("--model {} works only with a saved GPU matrix", model, "add --dump FILE")
    if spec is not None and dump is not None:
        raise InvalidInput("a SPEC and --dump {} are two networks", dump, "leave one of them out")
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


def demo(output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR")] = Path("chorale-demo")) -> Result:
    """Tune an allreduce of eight processes, connected like the corners of a cube, and draw it.

    Three schedules are designed, verified and run over emulated links; every element of every result is checked. If
    processes cannot be started, times are simulated, and a notice says so. Takes less than a minute. The drawings need
    the extra `plot`.

    Args:
        output: Folder to write to; created if it does not exist.

    Example: chorale demo
    """
    network = load_topology(EMULATED)
    people.print(f"making and verifying {', '.join(METHODS)} for an allreduce on {EMULATED}", highlight=False)
    schedules = {method: synthesized_allreduce(network, method) for method in METHODS}
    people.print("running them alternately", highlight=False)
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
    best, title = output / "best.parquet", f"allreduce on {EMULATED}, {runner} runner"
    save_schedule(schedules[winner], str(best))
    files: dict[str, str | None] = {"picture": None, "network": None, "schedule": str(best)}
    if find_spec("matplotlib") is not None:
        picture, drawing = output / "times.svg", output / "network.svg"
        series = {
            name: [goodput_row(row["size_bytes"], row["times_us"][name] / 1e6) for row in rows] for name in METHODS
        }
        plots.plot_goodput(title, series, picture)
        plots.plot_topology(network, drawing)
        files |= {"picture": str(picture), "network": str(drawing)}
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
        f"the answer: {winner}; files: {', '.join(filter(None, files.values()))}",
        f"next: chorale auto, chorale show {best}, chorale tune examples/quickstart.yaml",
    )
