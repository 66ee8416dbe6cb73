"""`chorale simulate`, `training` and `record-training`: predicted durations of collectives and of training."""

import json
import time
from shlex import quote
from typing import Annotated

import typer

from chorale.runners.api.units import format_size, parse_sizes
from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import STANDARD
from chorale.synth.methods.auto import AUTO
from chorale.synth.simulation.simulate import FIDELITIES, as_fidelity
from chorale.synth.training import BUCKETS_BYTES
from chorale.tuner import plots
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.output import people, progress_bar
from chorale.tuner.costs.pricing import fastest_traffic, goodput_row, traffic_of_file, traffic_of_method
from chorale.tuner.costs.training import SHIPPED, load_profile, split_network, training_costs, training_row
from chorale.tuner.files.home import write_file
from chorale.tuner.reports.bound import network_facts
from chorale.tuner.reports.hints import kind_of
from chorale.tuner.reports.tables import Columns, Result, Stopwatch, rows_table


def simulate(
    *,
    what: opt.FileOrMethod,
    spec: Annotated[str | None, typer.Argument()] = None,
    sizes: opt.Sizes = "4KiB:1GiB:x8",
    collective: Annotated[
        str | None, typer.Option(metavar="NAME", parser=opt.collective_name, autocompletion=opt.offer(STANDARD))
    ] = None,
    prices: opt.Prices,
    model: Annotated[
        str, typer.Option(help=f"{' or '.join(FIDELITIES)}: barriers between steps, or flows that share links.")
    ] = "step",
    pipeline_chunks: int | None = None,
    plot: opt.PlotFile = None,
) -> Result:
    """Predict the time and the goodput of a collective, without running it.

    Args:
        spec: Topology, for a method; see `chorale topology list`.
        collective: For a method: allreduce (default), allgather or reduce_scatter.
        pipeline_chunks: Number of chunks into which trees cut their data; default: the best number (model step) or 64.

    Example: chorale simulate bfb torus:4x4 --sizes 32KiB:512MiB:x4 --link-gbps 400 --plot goodput.png
    """
    if spec is None and kind_of(what) == "topology":
        what, spec = AUTO, what
    sizes_bytes, fidelity, pricing = parse_sizes(sizes), as_fidelity(model), prices.pricing()
    stages = Stopwatch()
    with progress_bar(what if spec is None else f"{what} {spec}") as progress:
        with stages.stage("schedule"):
            if spec is None:
                runs = [(traffic_of_file(what, collective, pricing), sizes_bytes)]
            elif what == AUTO:
                runs = fastest_traffic(spec, collective or "allreduce", pricing, sizes_bytes, progress)
            else:
                runs = [(traffic_of_method(what, spec, collective or "allreduce", pricing, progress), sizes_bytes)]
        with stages.stage("simulation"):
            rows = [
                goodput_row(size_bytes, time_s) | ({"method": priced.method} if what == AUTO else {})
                for priced, sizes in runs
                for size_bytes, time_s in zip(
                    sizes, pricing.times_s(priced.traffic, sizes, fidelity, pipeline_chunks, progress), strict=True
                )
            ]
    priced = runs[-1][0]
    traffic, topology = priced.traffic, priced.traffic.topology
    if prices.link_gbps is not None and topology.bandwidth_unit != "link":
        people.print(f"--link-gbps is not used: {topology.spec} has its own bandwidths")
    collective_on = f"{traffic.collective.name.value} on {topology.spec}"
    title = f"{AUTO} {collective_on}, the fastest at each size" if what == AUTO else priced.title
    columns: Columns = {
        "size": lambda row: format_size(row["size_bytes"]),
        "us": lambda row: f"{row['time_us']:.2f}",
        "goodput Gbit/s": lambda row: f"{row['goodput_gbit_per_s']:.5g}",
        **({"method": "method"} if what == AUTO else {}),
    }
    if plot is not None:
        rate = pricing.network(topology).unit_bytes_per_s(topology)
        bound = float(8 * rate / lower_bound(topology, traffic.collective).value / 10**9)
        is_of_ranks = max(row["goodput_gbit_per_s"] for row in rows) <= bound  # switches that add may exceed the bound
        plots.plot_goodput(title, {f"{model} model": rows}, plot, bound if is_of_ranks else None)
    document = {
        **network_facts(topology),
        "collective": traffic.collective.name.value,
        "method": AUTO if what == AUTO else priced.method,
        **({"chosen_by": "time"} if what == AUTO else {}),
        "schedule": {"kind": traffic.kind, "steps": len(traffic.steps), "id": priced.schedule_id},
        "parameters": {
            **priced.parameters,
            "model": model,
            **pricing.settings_on(topology),
            "pipeline_chunks": pipeline_chunks,
        },
        "seed": None,  # both models are deterministic
        "results": rows,
        "seconds": stages.report(),
    }
    step = f"chorale synth {priced.method} {quote(topology.spec)} --collective {traffic.collective.name.value}"
    table = rows_table(rows, columns, title, numbers=True)
    return Result(document, table, next_step=f"{step} -o schedule.parquet" if spec is not None else None)


def training(
    *,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=f"A .json file, or: {', '.join(SHIPPED)}.")],
    networks: Annotated[list[str], typer.Argument(metavar="[METHOD@]SPEC...")],
    buckets: str | None = None,
    prices: opt.Prices,
    plot: opt.PlotFile = None,
) -> Result:
    """Simulate an iteration of data-parallel training, with or without experts.

    Gradients are reduced in buckets while earlier layers are computed. All-to-alls of tokens block computation. The
    bucket size that gives the shortest iteration is used.

    Args:
        networks: Networks to compare, each with a method for its schedules [bfb].
        buckets: Sizes of gradient buckets to choose from; default: 1, 10, 100 and 1000 MB.

    Example: chorale training gpt2-small circulant:12,2,3 hamiltonian-ring@shiftedring:12 --link-gbps 25 --alpha-us 10
    """
    pricing = prices.pricing()
    model = load_profile(profile)
    buckets_bytes = BUCKETS_BYTES if buckets is None else tuple(parse_sizes(buckets))
    stages = Stopwatch()
    with stages.stage("training"):
        rows = [
            training_row(model, buckets_bytes, training_costs(*split_network(network), pricing, model.has_experts))
            for network in networks
        ]
    if plot is not None:
        plots.plot_training({model.name: rows}, plot)
    facts = {"name": model.name, "source": model.source, "samples": model.samples, "parameters": model.parameters}
    settings = {**pricing.settings, "buckets_bytes": list(buckets_bytes)}
    table = rows_table(rows, _COLUMNS, f"{model.name}: ms of an iteration", numbers=True)
    document = {"profile": facts, "parameters": settings, "seed": None, "results": rows, "seconds": stages.report()}
    return Result(document, table)


_COLUMNS: Columns = {
    "network": lambda row: f"{row['method']}@{row['spec']}",
    "total": lambda row: f"{row['iteration_s'] * 1e3:.4g}",
    "compute": lambda row: f"{row['compute_s'] * 1e3:.4g}",
    "all-to-all": lambda row: f"{row['alltoall_s'] * 1e3:.4g}",
    "exposed": lambda row: f"{row['exposed_allreduce_s'] * 1e3:.4g}",
    "allreduce": lambda row: f"{row['allreduce_s'] * 1e3:.4g}",
    "bucket": lambda row: f"{row['bucket_bytes'] / 1e6:g} MB",
}


def record_training(
    model: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION")],
    output: opt.FileOutput,
) -> None:
    """Record how long the layers of a PyTorch model take, for `chorale training`.

    Args:
        model: Function that returns a pair (model, batch).

    Example: chorale record-training my_model:make -o my_model.json
    """
    torch = require_torch()
    document = record_profile(*load_model(model), model, torch, time.perf_counter)
    write_file(output, json.dumps(document, indent=2).encode() + b"\n")
    profile = load_profile(str(output))
    layers = profile.layers()
    seconds = sum(layer.forward_s + layer.backward_s for layer in layers)
    typer.echo(f"{len(layers)} layers, {profile.parameters} parameters, {seconds * 1e3:.4g} ms of computation")
