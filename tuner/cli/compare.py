"""`chorale compare`: two schedules or programs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.units import parse_size, parse_sizes
from chorale.synth.kernels.warm_up import warm_simulation
from chorale.synth.simulation.simulate import FIDELITIES, as_fidelity
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.cli.network_options import AlphaUs, CalibrationFile, HopUs, LinkGbps, LinkLatencyUs, pricing_of
from chorale.tuner.cli.options import AsJson, GoodputPlot, Sizes
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.files.program_files import is_program_file, load_code
from chorale.tuner.files.read_write import require_plot_format
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.comparison import ComparisonModel, Side, comparison, comparison_tables


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("compare")(compare)


def compare(
    first: Annotated[
        str, typer.Argument(metavar="FILE", help="Schedule (.parquet, .json) or program (.xml, plan .json).")
    ],
    second: Annotated[str, typer.Argument(metavar="FILE", help="Another, for the same network and collective.")],
    sizes: Sizes = "4KiB:1GiB:x8",
    spec: Annotated[str | None, typer.Option(help="The topology, for programs that do not name it.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"Of schedules: {' or '.join(FIDELITIES)}; default: step, or flow beside a program."),
    ] = None,
    buffer: Annotated[
        str | None, typer.Option(help="Of programs: buffer of a connection; default: 4MiB for MSCCL, else none.")
    ] = None,
    alpha_us: AlphaUs = None,
    link_latency_us: LinkLatencyUs = None,
    hop_us: HopUs = None,
    link_gbps: LinkGbps = None,
    calibration: CalibrationFile = None,
    plot: GoodputPlot = None,
    as_json: AsJson = False,
) -> None:
    """Compare exact costs, resources and predicted times, and say at which size one overtakes the other.

    Programs are checked, then simulated as flows; a link of capacity 1 has 100 Gbit/s unless said.

    Example: chorale compare torus.parquet torus.xml
    """
    sizes_bytes, files = parse_sizes(sizes), (first, second)
    fidelity = as_fidelity(model or ("flow" if any(map(is_program_file, files)) else "step"))
    require_plot_format(plot)
    sides = _sides(files, None if spec is None else load_topology(spec))
    given = {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
    pricing = pricing_of(sides[0].topology, given, calibration)
    warm_simulation()
    buffer_bytes = None if buffer is None else parse_size(buffer)
    document = comparison(*sides, ComparisonModel(pricing, fidelity, buffer_bytes), sizes_bytes)
    if plot is not None:
        _plot(document, plot)
    if as_json:
        emit_json(document | {"plot": None if plot is None else str(plot)})
    else:
        for table in comparison_tables(document):
            results.print(table)


def _sides(files: tuple[str, str], given: Topology | None) -> tuple[Side, Side]:
    """Read schedules first: they say what network a program beside them runs on, if nothing else does."""
    schedules = {file: verify(load_schedule(file)) for file in files if not is_program_file(file)}
    for verified in schedules.values():
        given = given or verified.schedule.topology

    def side(file: str) -> Side:
        if file in schedules:
            return Side(file, schedules[file].schedule.topology, schedules[file])
        return Side(file, *load_code(file, given))

    return side(files[0]), side(files[1])


def _plot(document: dict[str, Any], path: Path) -> None:
    from chorale.tuner.plots.charts import plot_goodput  # noqa: PLC0415 (matplotlib is slow)

    series = {
        f"{word}: {side['name']}": [
            {"size_bytes": row["size_bytes"], "goodput_gbit_per_s": row["size_bytes"] * 8e-3 / row["time_us"][index]}
            for row in document["results"]
        ]
        for index, (word, side) in enumerate(zip(("first", "second"), document["sides"], strict=True))
    }
    plot_goodput(f"{document['collective']} on {document['topology']['spec']}", series, path)
