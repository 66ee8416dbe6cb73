"""`chorale simulate`: predicted times of a collective."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.units import format_size, parse_sizes
from chorale.synth.methods.catalog import METHODS
from chorale.synth.simulation.simulate import FIDELITIES, as_fidelity
from chorale.synth.simulation.simulate import simulate as simulate_traffic
from chorale.tuner.cli.choices import collective_name, file_to_write
from chorale.tuner.cli.network_options import AlphaUs, CalibrationFile, HopUs, LinkGbps, LinkLatencyUs
from chorale.tuner.cli.options import AsJson, GoodputPlot, Sizes
from chorale.tuner.cli.output import emit_json, people, progress_bar, results
from chorale.tuner.costs.pricing import PricedTraffic, Pricing, traffic_of_file, traffic_of_method
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.reports.light_table import LightTable
from chorale.tuner.reports.stopwatch import Stopwatch

FileOrMethod = Annotated[
    str, typer.Argument(metavar="FILE|METHOD", help=f"Schedule file, or a method: {', '.join(METHODS)}.")
]
CollectiveName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", parser=collective_name, help="Of a method: allreduce (default), allgather or reduce_scatter."
    ),
]
Model = Annotated[
    str, typer.Option(help=f"{' or '.join(FIDELITIES)}: barriers between steps, or flows that share links.")
]
PipelineChunks = Annotated[
    int | None, typer.Option(help="Chunks that trees stream; default: the best number (step) or 64 (flow).")
]


TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        callback=file_to_write,
        help="Write each message of the largest size, by the flow model, for Perfetto.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("simulate")(simulate)


def simulate(
    what: FileOrMethod,
    spec: Annotated[str | None, typer.Argument(help="Topology, for a method; see `chorale topology list`.")] = None,
    sizes: Sizes = "4KiB:1GiB:x8",
    collective: CollectiveName = None,
    alpha_us: AlphaUs = None,
    link_latency_us: LinkLatencyUs = None,
    hop_us: HopUs = None,
    link_gbps: LinkGbps = None,
    model: Model = "step",
    pipeline_chunks: PipelineChunks = None,
    calibration: CalibrationFile = None,
    plot: GoodputPlot = None,
    trace: TraceFile = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time and the goodput of a collective, without running it.

    Example: chorale simulate bfb torus:4x4 --sizes 32KiB:512MiB:x4 --link-gbps 400 --plot goodput.png
    """
    sizes_bytes, fidelity = parse_sizes(sizes), as_fidelity(model)
    options = {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
    pricing = Pricing.of(options, calibration)
    require_plot_format(plot)
    stages = Stopwatch()
    with progress_bar(what if spec is None else f"{what} {spec}") as progress:
        with stages.stage("schedule"):
            if spec is None:
                priced = traffic_of_file(what, collective, pricing)
            else:
                priced = traffic_of_method(what, spec, collective or "allreduce", pricing, progress)
        with stages.stage("simulation"):
            network, unmodelled_s = pricing.network(priced.traffic.topology), pricing.unmodelled_flows_s(priced.traffic)
            times_s = simulate_traffic(
                priced.traffic, network, sizes_bytes, fidelity, pipeline_chunks=pipeline_chunks, progress=progress
            )
    if link_gbps is not None and priced.traffic.topology.bandwidth_unit != "link":
        people.print(f"--link-gbps is not used: {priced.traffic.topology.spec} has bandwidths of its own")
    rows = [_row(size_bytes, unmodelled_s + time_s) for size_bytes, time_s in zip(sizes_bytes, times_s, strict=True)]
    settings = {"model": model, **pricing.settings, "pipeline_chunks": pipeline_chunks}
    document = _document(priced, settings, rows)
    document["seconds"] = stages.report()
    if plot is not None:
        from chorale.tuner.plots.charts import plot_goodput  # noqa: PLC0415 (matplotlib is slow)

        plot_goodput(priced.title, {f"{model} model": rows}, plot)
    if trace is not None:
        from chorale.tuner.plots.schedule_trace import TRACE_CHUNKS, schedule_trace  # noqa: PLC0415 - when it is used

        text = schedule_trace(priced.traffic, network, sizes_bytes[-1], pipeline_chunks or TRACE_CHUNKS)
        write_file(trace, text.encode())
    if as_json:
        emit_json(document)
    else:
        results.print(_table(priced.title, rows))


def _row(size_bytes: int, time_s: float) -> dict[str, Any]:
    return {"size_bytes": size_bytes, "time_us": time_s * 1e6, "goodput_gbit_per_s": size_bytes * 8 / time_s / 1e9}


def _document(priced: PricedTraffic, settings: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document; both models are deterministic, so `seed` is null."""
    traffic = priced.traffic
    return {
        "topology": {"spec": traffic.topology.spec, "nodes": traffic.topology.compute_count, "id": traffic.topology.id},
        "collective": traffic.collective.name.value,
        "method": priced.method,
        "schedule": {"kind": traffic.kind, "steps": len(traffic.steps), "id": priced.schedule_id},
        "parameters": {**priced.parameters, **settings},
        "seed": None,
        "results": rows,
    }


def _table(title: str, rows: list[dict[str, Any]]) -> LightTable:
    table = LightTable(3, title, ("size", "us", "goodput Gbit/s"), right=frozenset(range(3)))
    for row in rows:
        table.add_row(format_size(row["size_bytes"]), f"{row['time_us']:.2f}", f"{row['goodput_gbit_per_s']:.5g}")
    return table
