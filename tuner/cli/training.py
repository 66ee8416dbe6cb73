"""`chorale training`: predicted times of an iteration of data-parallel training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.units import parse_sizes
from chorale.synth.training import BUCKETS_BYTES
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.network_options import AlphaUs, CalibrationFile, HopUs, LinkGbps, LinkLatencyUs
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.costs.training import split_network, training_costs, training_row
from chorale.tuner.costs.training_profile import SHIPPED, load_profile
from chorale.tuner.files.read_write import require_plot_format
from chorale.tuner.reports.lazy_rich import Table
from chorale.tuner.reports.stopwatch import Stopwatch


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("training")(training)


def training(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=f"A .json file, or: {', '.join(SHIPPED)}.")],
    networks: Annotated[
        list[str],
        typer.Argument(metavar="[METHOD@]SPEC...", help="Networks to compare; the method is bfb unless said."),
    ],
    buckets: Annotated[
        str | None, typer.Option(help="Sizes of gradient buckets to choose from; default: 1, 10, 100 and 1000 MB.")
    ] = None,
    alpha_us: AlphaUs = None,
    link_latency_us: LinkLatencyUs = None,
    hop_us: HopUs = None,
    link_gbps: LinkGbps = None,
    calibration: CalibrationFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=file_to_write, help="Draw the parts as .png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate an iteration of data-parallel training, with experts where the profile has them.

    Gradients travel in buckets while earlier layers are computed; all-to-all of tokens blocks; the best size of a
    bucket is taken.

    Example: chorale training gpt2-small circulant:12,2,3 hamiltonian-ring@shiftedring:12 --link-gbps 25 --alpha-us 10
    """
    given = {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
    pricing = Pricing.of(given, calibration)
    model = load_profile(profile)
    buckets_bytes = BUCKETS_BYTES if buckets is None else tuple(parse_sizes(buckets))
    require_plot_format(plot)
    stages = Stopwatch()
    with stages.stage("training"):
        rows = [
            training_row(model, buckets_bytes, training_costs(*split_network(network), pricing, model.has_experts))
            for network in networks
        ]
    if plot is not None:
        from chorale.tuner.plots.charts import plot_training  # noqa: PLC0415 (matplotlib is slow)

        plot_training({model.name: rows}, plot)
    if as_json:
        facts = {"name": model.name, "source": model.source, "samples": model.samples, "parameters": model.parameters}
        settings = {**pricing.settings, "buckets_bytes": list(buckets_bytes)}
        used = {"seconds": stages.report()}
        emit_json({"profile": facts, "parameters": settings, "seed": None, "results": rows, **used})
    else:
        results.print(_iteration_table(model.name, rows))


def _iteration_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{title}: ms of an iteration")
    table.add_column("network", overflow="fold")
    for heading in ("total", "compute", "all-to-all", "exposed", "allreduce", "bucket"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        keys = ("iteration_s", "compute_s", "alltoall_s", "exposed_allreduce_s", "allreduce_s")
        times = (f"{row[key] * 1e3:.4g}" for key in keys)
        table.add_row(f"{row['method']}@{row['spec']}", *times, f"{row['bucket_bytes'] / 1e6:g} MB")
    return table
