"""`chorale show` and `chorale compare`: what schedules and programs do to a network, alone or side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.units import parse_size, parse_sizes
from chorale.synth.errors import InvalidInput
from chorale.synth.simulation.simulate import FIDELITIES, as_fidelity
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.cli.options import PlotFile, ReadableFile, Sizes, SpecOfProgram
from chorale.tuner.cli.program_options import AlphaUs, CalibrationFile, HopUs, LinkGbps, LinkLatencyUs, pricing_of
from chorale.tuner.costs.pricing import simulate_program, usual_buffer_bytes
from chorale.tuner.files.program_files import is_program_file, load_code
from chorale.tuner.files.read_write import require_plot_format
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.comparison import (
    ComparisonModel,
    Side,
    bound_comparison,
    bound_tables,
    comparison,
    comparison_tables,
)
from chorale.tuner.reports.show import program_document, schedule_document, show_table
from chorale.tuner.reports.tables import Result


def show(
    file: ReadableFile,
    plot: PlotFile = None,
    spec: SpecOfProgram = None,
    rank: Annotated[int, typer.Option(min=0, help="Of a schedule: whose data to follow.")] = 0,
    size: Annotated[str, typer.Option(help="Of a program: buffer size.")] = "16MiB",
    buffer: Annotated[
        str | None, typer.Option(help="Of a program: buffer of a connection; default: 4MiB for MSCCL, else none.")
    ] = None,
    alpha_us: AlphaUs = None,
    link_latency_us: LinkLatencyUs = None,
    hop_us: HopUs = None,
    link_gbps: LinkGbps = None,
    calibration: CalibrationFile = None,
) -> Result:
    """Show link loads and routes of a schedule, or link loads and the timeline of a program.

    A program is checked, then simulated as flows that share links; a link of capacity 1 has 100 Gbit/s unless said.

    Example: chorale show a100.parquet --plot a100.png
    """
    require_plot_format(plot)
    if is_program_file(file):
        given = {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
        document = _show_program(file, spec, parse_size(size), buffer, given, calibration, plot)
    else:
        document = _show_schedule(file, spec, rank, plot)
    document["plot"] = None if plot is None else str(plot)
    return Result(document, show_table(file, document))


def _show_schedule(file: str, spec: str | None, rank: int, plot: Path | None) -> dict[str, Any]:
    if spec is not None:
        raise InvalidInput("a schedule file names its topology itself", f"--spec {spec}", "leave it out")
    verified = verify(load_schedule(file))
    ranks = verified.schedule.topology.compute_count
    if rank >= ranks:
        raise InvalidInput(f"--rank must be one of the {ranks} ranks", rank, f"choose 0 to {ranks - 1}")
    if plot is not None:
        from chorale.tuner.plots.schedule_plot import plot_schedule  # noqa: PLC0415 - matplotlib is optional

        plot_schedule(verified.schedule.expand(), rank, plot)
    return schedule_document(verified, rank)


def _show_program(
    file: str,
    spec: str | None,
    size_bytes: int,
    buffer: str | None,
    given: dict[str, str | None],
    calibration: str | None,
    plot: Path | None,
) -> dict[str, Any]:
    topology, program = load_code(file, None if spec is None else load_topology(spec))
    pricing = pricing_of(topology, given, calibration)
    buffer_bytes = usual_buffer_bytes(program) if buffer is None else parse_size(buffer)
    network = pricing.network(topology)
    trace = simulate_program(program, topology, network, size_bytes, buffer_bytes)
    if plot is not None:
        from chorale.tuner.plots.program_plot import plot_program  # noqa: PLC0415 - matplotlib is optional

        plot_program(program, topology, network, size_bytes, trace, plot)
    time_s = trace.end_s + pricing.unmodelled_program_s(program)
    document = program_document(program, topology, size_bytes, trace, time_s)
    return document | {"parameters": {**pricing.settings, "buffer_bytes": buffer_bytes}}


def compare(
    first: Annotated[
        str, typer.Argument(metavar="FILE", help="Schedule (.parquet, .json) or program (.xml, plan .json).")
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Another, for the same network and collective; default: the bound."),
    ] = None,
    sizes: Sizes = "4KiB:1GiB:x8",
    spec: Annotated[
        str | None, typer.Option("--spec", "--topology", help="The topology, for programs that do not name it.")
    ] = None,
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
    plot: PlotFile = None,
) -> Result:
    """Compare exact costs, resources and predicted times, and where one overtakes the other.

    One file alone is compared with the certified bound of its fabric: how far it is above it, and the least time.
    Programs are checked, then simulated as flows; a link of capacity 1 has 100 Gbit/s unless said.

    Example: chorale compare torus.parquet torus.xml
    """
    sizes_bytes, files = parse_sizes(sizes), (first,) if second is None else (first, second)
    fidelity = as_fidelity(model or ("flow" if any(map(is_program_file, files)) else "step"))
    require_plot_format(plot)
    sides = _sides(files, None if spec is None else load_topology(spec))
    given = {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
    pricing = pricing_of(sides[0].topology, given, calibration)
    buffer_bytes = None if buffer is None else parse_size(buffer)
    priced = ComparisonModel(pricing, fidelity, buffer_bytes)
    if len(sides) == 1:
        if plot is not None:
            raise InvalidInput("--plot draws two files", "one", "name another file, or leave it out")
        document = bound_comparison(sides[0], priced, sizes_bytes)
    else:
        document = comparison(sides[0], sides[1], priced, sizes_bytes)
    if plot is not None:
        _plot_goodput(document, plot)
    tables = bound_tables(document) if len(sides) == 1 else comparison_tables(document)
    return Result(document | {"plot": None if plot is None else str(plot)}, *tables)


def _sides(files: tuple[str, ...], given: Topology | None) -> tuple[Side, ...]:
    """Read schedules first: they say what network a program beside them runs on, if nothing else does."""
    schedules = {file: verify(load_schedule(file)) for file in files if not is_program_file(file)}
    for verified in schedules.values():
        given = given or verified.schedule.topology

    def side(file: str) -> Side:
        if file in schedules:
            return Side(file, schedules[file].schedule.topology, schedules[file])
        return Side(file, *load_code(file, given))

    return tuple(map(side, files))


def _plot_goodput(document: dict[str, Any], path: Path) -> None:
    from chorale.tuner.plots.charts import plot_goodput  # noqa: PLC0415 - matplotlib is optional

    series = {
        f"{word}: {side['name']}": [
            {"size_bytes": row["size_bytes"], "goodput_gbit_per_s": row["size_bytes"] * 8e-3 / row["time_us"][index]}
            for row in document["results"]
        ]
        for index, (word, side) in enumerate(zip(("first", "second"), document["sides"], strict=True))
    }
    plot_goodput(f"{document['collective']} on {document['topology']['spec']}", series, path)
