"""`chorale simulate`, `training` and `record-training`: predicted times of collectives and of training."""

from __future__ import annotations

import json
import time
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.units import format_size, parse_sizes
from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.synth.collective import STANDARD
from chorale.synth.methods.auto import AUTO
from chorale.synth.simulation.simulate import FIDELITIES, as_fidelity
from chorale.synth.simulation.simulate import simulate as simulate_traffic
from chorale.synth.training import BUCKETS_BYTES
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.output import people, progress_bar
from chorale.tuner.costs.pricing import Pricing, fastest_traffic, traffic_of_file, traffic_of_method
from chorale.tuner.costs.training import SHIPPED, load_profile, split_network, training_costs, training_row
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.reports.bound import assumption_facts
from chorale.tuner.reports.hints import kind_of
from chorale.tuner.reports.tables import Result, Stopwatch, numbers_table


def simulate(
    what: opt.FileOrMethod,
    spec: Annotated[str | None, typer.Argument(help="Topology, for a method; see `chorale topology list`.")] = None,
    sizes: opt.Sizes = "4KiB:1GiB:x8",
    collective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=opt.collective_name,
            autocompletion=opt.offer(STANDARD),
            help="Of a method: allreduce (default), allgather or reduce_scatter.",
        ),
    ] = None,
    alpha_us: opt.AlphaUs = None,
    link_latency_us: opt.LinkLatencyUs = None,
    hop_us: opt.HopUs = None,
    link_gbps: opt.LinkGbps = None,
    model: Annotated[
        str, typer.Option(help=f"{' or '.join(FIDELITIES)}: barriers between steps, or flows that share links.")
    ] = "step",
    pipeline_chunks: Annotated[
        int | None, typer.Option(help="Chunks that trees stream; default: the best number (step) or 64 (flow).")
    ] = None,
    calibration: opt.CalibrationFile = None,
    plot: opt.PlotFile = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=opt.file_to_write,
            help="Write each message of the largest size, by the flow model, for Perfetto.",
        ),
    ] = None,
) -> Result:
    """Predict the time and the goodput of a collective, without running it.

    Example: chorale simulate bfb torus:4x4 --sizes 32KiB:512MiB:x4 --link-gbps 400 --plot goodput.png
    """
    if spec is None and kind_of(what) == "topology":
        what, spec = AUTO, what
    sizes_bytes, fidelity = parse_sizes(sizes), as_fidelity(model)
    options = {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
    pricing = Pricing.of(options, calibration)
    require_plot_format(plot)
    stages = Stopwatch()
    with progress_bar(what if spec is None else f"{what} {spec}") as progress:
        with stages.stage("schedule"):
            if spec is None:
                at_sizes = [traffic_of_file(what, collective, pricing)] * len(sizes_bytes)
            elif what == AUTO:
                at_sizes = fastest_traffic(spec, collective or "allreduce", pricing, sizes_bytes, progress)
            else:
                one = traffic_of_method(what, spec, collective or "allreduce", pricing, progress)
                at_sizes = [one] * len(sizes_bytes)
        priced = at_sizes[-1]
        with stages.stage("simulation"):
            network = pricing.network(priced.traffic.topology)
            times_s: list[float] = []
            for _, group in groupby(zip(at_sizes, sizes_bytes, strict=True), key=lambda pair: id(pair[0])):
                same, of_group = zip(*group, strict=True)
                modelled = simulate_traffic(
                    same[0].traffic, network, of_group, fidelity, pipeline_chunks=pipeline_chunks, progress=progress
                )
                times_s += [pricing.unmodelled_flows_s(same[0].traffic) + time_s for time_s in modelled]
    if link_gbps is not None and priced.traffic.topology.bandwidth_unit != "link":
        people.print(f"--link-gbps is not used: {priced.traffic.topology.spec} has bandwidths of its own")
    rows = []
    collective_on = f"{priced.traffic.collective.name.value} on {priced.traffic.topology.spec}"
    title = f"{AUTO} {collective_on}, the fastest at each size" if what == AUTO else priced.title
    table = numbers_table(title, "size", "us", "goodput Gbit/s", *(["method"] if what == AUTO else []))
    for size_bytes, time_s, chosen in zip(sizes_bytes, times_s, at_sizes, strict=True):
        goodput = size_bytes * 8 / time_s / 1e9
        row: dict[str, Any] = {"size_bytes": size_bytes, "time_us": time_s * 1e6, "goodput_gbit_per_s": goodput}
        rows.append(row | ({"method": chosen.method} if what == AUTO else {}))
        method = [chosen.method] if what == AUTO else []
        table.add_row(format_size(size_bytes), f"{time_s * 1e6:.2f}", f"{goodput:.5g}", *method)
    if plot is not None:
        from chorale.tuner.plots.charts import plot_goodput  # noqa: PLC0415 - matplotlib is optional

        plot_goodput(title, {f"{model} model": rows}, plot)
    if trace is not None:
        from chorale.tuner.plots.trace_events import TRACE_CHUNKS, schedule_trace  # noqa: PLC0415 - only for this file

        text = schedule_trace(priced.traffic, network, sizes_bytes[-1], pipeline_chunks or TRACE_CHUNKS)
        write_file(trace, text.encode())
    traffic = priced.traffic
    document = {
        "topology": {"spec": traffic.topology.spec, "nodes": traffic.topology.compute_count, "id": traffic.topology.id},
        **assumption_facts(traffic.topology),
        "collective": traffic.collective.name.value,
        "method": AUTO if what == AUTO else priced.method,
        **({"chosen_by": "time"} if what == AUTO else {}),
        "schedule": {"kind": traffic.kind, "steps": len(traffic.steps), "id": priced.schedule_id},
        "parameters": {
            **priced.parameters,
            "model": model,
            **pricing.settings_on(priced.traffic.topology),
            "pipeline_chunks": pipeline_chunks,
        },
        "seed": None,  # both models are deterministic
        "results": rows,
        "seconds": stages.report(),
    }
    return Result(document, table)


def training(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=f"A .json file, or: {', '.join(SHIPPED)}.")],
    networks: Annotated[
        list[str],
        typer.Argument(metavar="[METHOD@]SPEC...", help="Networks to compare; the method is bfb unless said."),
    ],
    buckets: Annotated[
        str | None, typer.Option(help="Sizes of gradient buckets to choose from; default: 1, 10, 100 and 1000 MB.")
    ] = None,
    alpha_us: opt.AlphaUs = None,
    link_latency_us: opt.LinkLatencyUs = None,
    hop_us: opt.HopUs = None,
    link_gbps: opt.LinkGbps = None,
    calibration: opt.CalibrationFile = None,
    plot: opt.PlotFile = None,
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
    output: opt.FileOutput,
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
