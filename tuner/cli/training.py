"""`chorale training` and `chorale record-training`: predicted iterations of training, from profiles of models."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from chorale.runners.api.units import parse_sizes
from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.synth.training import BUCKETS_BYTES
from chorale.tuner.cli.options import FileOutput, PlotFile
from chorale.tuner.cli.program_options import AlphaUs, CalibrationFile, HopUs, LinkGbps, LinkLatencyUs
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.costs.training import SHIPPED, load_profile, split_network, training_costs, training_row
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.reports.stopwatch import Stopwatch
from chorale.tuner.reports.tables import Result, numbers_table


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
    plot: PlotFile = None,
) -> Result:
    """Simulate an iteration of data-parallel training, with experts if the profile has them.

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
        from chorale.tuner.plots.charts import plot_training  # noqa: PLC0415 - matplotlib is optional

        plot_training({model.name: rows}, plot)
    table = numbers_table(f"{model.name}: ms of an iteration", "network", *_COLUMNS, "bucket")
    for row in rows:
        times = (f"{row[key] * 1e3:.4g}" for key in _COLUMNS.values())
        table.add_row(f"{row['method']}@{row['spec']}", *times, f"{row['bucket_bytes'] / 1e6:g} MB")
    facts = {"name": model.name, "source": model.source, "samples": model.samples, "parameters": model.parameters}
    settings = {**pricing.settings, "buckets_bytes": list(buckets_bytes)}
    used = {"seconds": stages.report()}
    return Result({"profile": facts, "parameters": settings, "seed": None, "results": rows, **used}, table)


_COLUMNS = {
    "total": "iteration_s",
    "compute": "compute_s",
    "all-to-all": "alltoall_s",
    "exposed": "exposed_allreduce_s",
    "allreduce": "allreduce_s",
}


def record_training(
    model: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns (model, batch).")],
    output: FileOutput,
) -> None:
    """Record how long the layers of a PyTorch model take, as a profile for training.

    Example: chorale record-training my_model:make -o my_model.json
    """
    torch = require_torch()
    document = record_profile(*load_model(model), model, torch, time.perf_counter)
    write_file(output, json.dumps(document, indent=2).encode() + b"\n")
    profile = load_profile(str(output))
    layers = profile.layers()
    seconds = sum(layer.forward_s + layer.backward_s for layer in layers)
    typer.echo(f"{len(layers)} layers, {profile.parameters} parameters, {seconds * 1e3:.4g} ms of computation")
