"""Defines `chorale show` and `compare`, which show how schedules and programs load a network, alone or side by side.

Also defines `chorale simulate` and `training`, which predict durations, and `record-training`, which measures a model.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.runners.api.units import format_size, parse_size, parse_sizes
from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.runners.simulated.library_model import baseline_label, library_algorithms, library_choice
from chorale.synth import Collective, InvalidInput, Topology, VerifiedSchedule, traffic_of
from chorale.synth.bounds.lower_bound import bound_of_ranks, bound_of_schedule, in_network_bound, lower_bound
from chorale.synth.collective import STANDARD
from chorale.synth.identity import rational_text
from chorale.synth.methods.auto import AUTO
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import AnyProgram
from chorale.synth.simulation.simulate import FIDELITIES, Fidelity, as_fidelity
from chorale.synth.targets.registry import resources_of
from chorale.synth.training import BUCKETS_BYTES
from chorale.synth.verify.verify import verify
from chorale.tuner import load_schedule, load_topology, plots
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.options import people, progress_bar
from chorale.tuner.costs.pricing import (
    SHIPPED,
    Pricing,
    fastest_traffic,
    goodput_row,
    load_profile,
    program_time_per_byte,
    simulate_program,
    split_network,
    traffic_of_file,
    traffic_of_method,
    training_costs,
    training_row,
    usual_buffer_bytes,
)
from chorale.tuner.files.home import write_file
from chorale.tuner.files.program_files import is_program_file, load_code
from chorale.tuner.reports.bound import checked, network_facts
from chorale.tuner.reports.hints import kind_of
from chorale.tuner.reports.synthesis import program_document, schedule_document, schedule_facts, show_table
from chorale.tuner.reports.tables import Columns, Result, Stopwatch, fact_label, fact_text, rows_table

_SAME = 1e-9  # times that differ by less are equal
_NARROW = 1.01
_SHOWN_NODES = 12


@dataclass(frozen=True, slots=True)
class Side:
    """A schedule or program in a comparison.

    name:     name of the file that contains the schedule or program
    pricing:  costs of messages, for predicted times
    fidelity: simulation model for schedules; programs are always simulated as flows
    """

    name: str
    topology: Topology
    content: "VerifiedSchedule | AnyProgram"
    pricing: Pricing
    fidelity: Fidelity

    @property
    def collective(self) -> Collective:
        content = self.content.schedule if isinstance(self.content, VerifiedSchedule) else self.content
        return content.collective

    @property
    def time_per_byte(self) -> Fraction:
        """Return the time per byte on the busiest link; for a schedule, the sum of these times over all steps."""
        if isinstance(self.content, VerifiedSchedule):
            return self.content.cost.time_per_byte
        return program_time_per_byte(self.content, self.topology)

    def document(self) -> dict[str, Any]:
        content, terms = self.content, {}
        if isinstance(content, VerifiedSchedule):
            schedule, factor = content.schedule, content.cost.bandwidth_factor
            terms = {"method": schedule.method, **schedule_facts(schedule)}
            terms["bandwidth_factor"] = None if factor is None else rational_text(factor)
        else:
            names = {"target": content.target, "chunks": content.chunks, "in_place": content.in_place}
            terms = {"kind": "program", **names, "protocol": content.protocol, **resources_of(content)}
        return {"name": self.name, **terms, "time_per_byte": rational_text(self.time_per_byte)}

    def time_s(self, size_bytes: int) -> float:
        content = self.content
        if isinstance(content, VerifiedSchedule):
            return self.pricing.times_s(traffic_of(content.schedule), [size_bytes], self.fidelity)[0]
        network = self.pricing.network(self.topology)
        trace = simulate_program(content, self.topology, network, size_bytes, usual_buffer_bytes(content))
        return trace.end_s + self.pricing.unmodelled_program_s(content)

    def library(self, size_bytes: int) -> dict[str, Any]:
        """Return the algorithm chosen by the library's cost model and its time in µs. Both are None without a model."""
        algorithms = library_algorithms(self.topology, self.collective)
        if not algorithms:
            return {"library": None, "library_us": None}
        is_link, network = self.topology.bandwidth_unit == "link", self.pricing.network(self.topology)
        unit = float(network.unit_bytes_per_s(self.topology)) if is_link else 1.0
        chosen = library_choice([replace(each, bytes_per_s=each.bytes_per_s * unit) for each in algorithms], size_bytes)
        return {"library": chosen.document(), "library_us": chosen.seconds(size_bytes) * 1e6}

    def parameters(self) -> dict[str, Any]:
        settings = self.pricing.settings_on(self.topology)
        return {"parameters": {**settings, "model": self.fidelity}}


def comparison(first: Side, second: Side, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    """Compare two schedules or programs for the same network; return a JSON document with these keys, among others.

    results:    for each size, the times of both files, the second's speed-up, and the library's choice of algorithm
    crossovers: sizes at which the other file becomes faster, found to 1 % by bisection between the requested sizes

    Raises InvalidInput for different networks or collectives.
    """
    if first.topology.id != second.topology.id:
        value = f"{first.topology.spec} and {second.topology.spec}"
        raise InvalidInput("the two files are for different networks: {}", value, "make both for the same one")
    if str(first.collective) != str(second.collective):
        value = f"{first.collective} and {second.collective}"
        raise InvalidInput("the two files are for different collectives: {}", value, "make both for the same one")

    def faster(size: int) -> str:
        times = first.time_s(size), second.time_s(size)
        return "equal" if abs(times[0] - times[1]) <= _SAME * max(times) else ("first", "second")[times[1] < times[0]]

    results: list[dict[str, Any]] = []
    for size in sorted(set(sizes_bytes)):
        times_s = first.time_s(size), second.time_s(size)
        times_us = [time_s * 1e6 for time_s in times_s]
        row: dict[str, Any] = {
            "size_bytes": size,
            "time_us": times_us,
            "speedup": times_s[0] / times_s[1],
            "faster": faster(size),
        }
        results.append(row | first.library(size))
    crossovers = []
    for row, following in pairwise(results):
        if {row["faster"], following["faster"]} != {"first", "second"}:
            continue
        below, above = row["size_bytes"], following["size_bytes"]
        while above > _NARROW * below and (middle := isqrt(below * above)) not in (below, above):
            below, above = (middle, above) if faster(middle) == row["faster"] else (below, middle)
        crossovers.append({"size_bytes": above, "faster_below": row["faster"], "faster_above": following["faster"]})
    return {
        **network_facts(first.topology),
        "collective": str(first.collective),
        "sides": [first.document(), second.document()],
        "time_per_byte_ratio": rational_text(first.time_per_byte / second.time_per_byte),
        **first.parameters(),
        "results": results,
        "crossovers": crossovers,
    }


def bound_comparison(side: Side, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    """Compare a schedule or program with the bound of its network, and check the bound's certificate.

    Returns the JSON document. Its `results` are, for each size, the predicted time, the shortest time that the bound
    allows (considering only bandwidth, no latencies), and their ratio.

    Raises InvalidInput for collectives without a bound.
    """
    collective, topology, content = side.collective, side.topology, side.content
    if collective.custom is not None:
        rule = "no bound is known for the custom collective of {}"
        raise InvalidInput(rule, collective, "compare the program with another one")
    # The bound depends on whether ranks do all the work, or switches add and multicast
    acts = isinstance(content, ExecutionPlan) and any(body.switches for body in content.ranks)
    if isinstance(content, VerifiedSchedule):
        acts, bound = content.schedule.is_in_network, bound_of_schedule(content.schedule, side.time_per_byte)
    elif not acts:
        bound = bound_of_ranks(topology, collective, side.time_per_byte)
    elif (in_network := in_network_bound(topology, collective)) is not None:
        bound = in_network
    else:
        rule = f"a plan in which switches add needs a fabric whose switches can add, unlike {topology.spec}"
        raise InvalidInput(rule, side.name, "choose a fabric with such switches")
    certificate = checked(topology, collective, bound).to_json(topology)
    unit_bytes_per_s = side.pricing.network(topology).unit_bytes_per_s(topology)
    results = []
    for size in sorted(sizes_bytes):
        time_us, least_us = side.time_s(size) * 1e6, float(bound.value * size / unit_bytes_per_s) * 1e6
        row = {"size_bytes": size, "time_us": time_us, "least_us": least_us, "ratio": time_us / least_us}
        results.append(row | side.library(size))
    return {
        **network_facts(topology),
        "collective": str(collective),
        "side": side.document(),
        "bound": {
            "kind": "in_network" if acts else "ranks",
            "time_per_byte": rational_text(bound.value),
            "algbw": float(1 / bound.value),
            "bottleneck_cut": [str(node) for node in certificate.get("cut", ())],
            "certificate": dict(certificate),
        },
        "gap": rational_text(side.time_per_byte / bound.value - 1),
        **side.parameters(),
        "results": results,
    }


def comparison_tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables for the terminal: exact costs, with two files side by side, then times for each size."""
    sides = document.get("sides") or [document["side"]]
    unit, both = document["topology"]["bandwidth_unit"], len(sides) == 2
    title = f"{document['collective']} on {document['topology']['spec']}"
    terms = Table("", *(("first", "second") if both else ("",)), title=title, show_header=both)
    for name in dict.fromkeys(name for side in sides for name in side):
        if both or sides[0][name] is not None:
            texts = ("" if side.get(name) is None else fact_text(name, side[name], unit) for side in sides)
            terms.add_row(fact_label(name), *texts)
    if not both:
        bound = document["bound"]
        terms.add_row("bound", f"{fact_text('time_per_byte', bound['time_per_byte'], unit)} ({bound['kind']})")
        terms.add_row("above the bound", f"{document['gap']} of it")
        if cut := bound["bottleneck_cut"]:
            more = ", ..." if len(cut) > _SHOWN_NODES else ""
            terms.add_row("links that limit", f"those out of {', '.join(cut[:_SHOWN_NODES])}{more}")
    headings = ("first", "second", "first / second") if both else ("predicted", "least by bandwidth", "ratio")
    times = Table(title="time by size, us")
    for heading in ("size", *headings, "library"):
        times.add_column(heading, justify="right")
    for row in document["results"]:
        numbers = [*row["time_us"], row["speedup"]] if both else [row["time_us"], row["least_us"], row["ratio"]]
        library = row["library"] and f"{row['library_us']:.5g}, {baseline_label(row['library'])}"
        ratio = f"{numbers[2]:.3f}"
        times.add_row(format_size(row["size_bytes"]), f"{numbers[0]:.5g}", f"{numbers[1]:.5g}", ratio, library or "")
    for cross in document.get("crossovers", ()):
        times.add_row(f"{format_size(cross['size_bytes'])} on", f"{cross['faster_above']} is faster", "", "", "")
    return [terms, times]


def show(
    *,
    file: opt.ReadableFile,
    plot: opt.PlotFile = None,
    spec: opt.SpecOfProgram = None,
    rank: Annotated[int, typer.Option(min=0)] = 0,
    size: str = "16MiB",
    prices: opt.Prices,
) -> Result:
    """Show link loads and routes of a schedule, or link loads and the timeline of a program.

    A program is checked, then simulated as flows that share links. Unless --link-gbps is given, a link of capacity 1
    has 100 Gbit/s.

    Args:
        rank: For a schedule: rank whose data to follow.
        size: For a program: buffer size.

    Example: chorale show a100.parquet --plot a100.png
    """
    if is_program_file(file):
        size_bytes = parse_size(size)
        topology, program = load_code(file, None if spec is None else load_topology(spec))
        pricing = prices.pricing(topology)
        buffer_bytes = usual_buffer_bytes(program)
        network = pricing.network(topology)
        trace = simulate_program(program, topology, network, size_bytes, buffer_bytes)
        if plot is not None:
            plots.plot_program(program, topology, network, size_bytes, trace, plot)
        time_s = trace.end_s + pricing.unmodelled_program_s(program)
        document = program_document(program, topology, size_bytes, trace, time_s)
        document["parameters"] = {**pricing.settings_on(topology), "buffer_bytes": buffer_bytes}
    else:
        if spec is not None:
            raise InvalidInput("the schedule file already names its topology", f"--spec {spec}", "leave it out")
        verified = verify(load_schedule(file))
        ranks = verified.schedule.topology.compute_count
        if rank >= ranks:
            raise InvalidInput(f"--rank must be one of the {ranks} ranks", rank, f"choose 0 to {ranks - 1}")
        if plot is not None:
            plots.plot_schedule(verified.schedule.expand(), rank, plot)
        document = schedule_document(verified, rank)
    document["plot"] = None if plot is None else str(plot)
    return Result(document, show_table(file, document), next_step=f"chorale compare {quote(file)}")


def compare(
    *,
    first: Annotated[str, typer.Argument(metavar="FILE")],
    second: Annotated[str | None, typer.Argument(metavar="FILE")] = None,
    sizes: opt.Sizes = "4KiB:1GiB:x8",
    spec: Annotated[str | None, typer.Option("--spec", "--topology")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"Model for schedules: {' or '.join(FIDELITIES)}; default: step, or flow if a file is a program."
        ),
    ] = None,
    prices: opt.Prices,
    plot: opt.PlotFile = None,
) -> Result:
    """Compare exact costs, resources and predicted times; find the sizes at which each is faster.

    A single file is compared with the certified bound of its fabric. Programs are checked, then simulated as flows.
    Unless --link-gbps is given, a link of capacity 1 has 100 Gbit/s.

    Args:
        first: Schedule (.parquet, .json) or program (.xml, plan .json).
        second: Another file for the same network and collective; default: the bound.
        spec: Topology of programs that do not name it.

    Example: chorale compare torus.parquet torus.xml
    """
    sizes_bytes, files = parse_sizes(sizes), (first,) if second is None else (first, second)
    fidelity = as_fidelity(model or ("flow" if any(map(is_program_file, files)) else "step"))
    if second is None and plot is not None:
        raise InvalidInput(
            "--plot draws the comparison of two files, but only one is given", "", "name another file, or leave it out"
        )
    given = None if spec is None else load_topology(spec)
    # Read schedules first, because programs that name no network use theirs
    schedules = {file: verify(load_schedule(file)) for file in files if not is_program_file(file)}
    for verified in schedules.values():
        given = given or verified.schedule.topology
    read: list[tuple[Topology, VerifiedSchedule | AnyProgram]] = [
        (schedules[file].schedule.topology, schedules[file]) if file in schedules else load_code(file, given)
        for file in files
    ]
    pricing = prices.pricing(read[0][0])
    sides = [
        Side(file, topology, content, pricing, fidelity) for file, (topology, content) in zip(files, read, strict=True)
    ]
    if second is None:
        document = bound_comparison(sides[0], sizes_bytes)
    else:
        document = comparison(sides[0], sides[1], sizes_bytes)
    if plot is not None:
        series = {
            f"{word}: {Path(side.name).name}": [  # a long path would leave no room for the axes
                goodput_row(row["size_bytes"], row["time_us"][index] / 1e6) for row in document["results"]
            ]
            for index, (word, side) in enumerate(zip(("first", "second"), sides, strict=True))
        }
        plots.plot_goodput(f"{document['collective']} on {document['topology']['spec']}", series, plot)
    return Result(document | {"plot": None if plot is None else str(plot)}, *comparison_tables(document))


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
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=f"One of {', '.join(SHIPPED)}, or a .json file.")],
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


def record_training(model: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION")], output: opt.FileOutput) -> None:
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
