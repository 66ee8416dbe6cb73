"""`chorale show` and `chorale compare`: what schedules and programs do to a network, alone or side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.runners.api.units import format_size, parse_size, parse_sizes
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_ranks, bound_of_schedule, in_network_bound
from chorale.synth.bounds.optimum import Bound
from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import FIDELITIES, Fidelity, as_fidelity, simulate
from chorale.synth.targets.resources import resources_of
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.output import people
from chorale.tuner.costs.library_model import baseline_label, library_algorithms, library_choice
from chorale.tuner.costs.pricing import Pricing, program_time_per_byte, simulate_program, usual_buffer_bytes
from chorale.tuner.files.program_files import is_program_file, load_code
from chorale.tuner.files.read_write import require_plot_format
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.bound import assumption_facts
from chorale.tuner.reports.programs import program_document, schedule_document, show_table, topology_document
from chorale.tuner.reports.tables import Result, fact_label, fact_text

_SAME = 1e-9  # times that differ by less are equal
_NARROW = 1.01


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a verified schedule or a checked program, with the name of its file."""

    name: str
    topology: Topology
    content: VerifiedSchedule | AnyProgram

    @property
    def collective(self) -> str:
        """The collective, with its root where it has one."""
        content = self.content.schedule if isinstance(self.content, VerifiedSchedule) else self.content
        return str(content.collective)

    @property
    def time_per_byte(self) -> Fraction:
        """Time of the busiest link per byte of the vector: of each step of a schedule, or of a whole program."""
        if isinstance(self.content, VerifiedSchedule):
            return self.content.cost.time_per_byte
        return program_time_per_byte(self.content, self.topology)

    def document(self) -> dict[str, Any]:
        """Return the exact terms and the resources as JSON has them."""
        content = self.content
        terms = _schedule_document(content) if isinstance(content, VerifiedSchedule) else _program_document(content)
        return {"name": self.name, **terms, "time_per_byte": rational_text(self.time_per_byte)}


def _schedule_document(verified: VerifiedSchedule) -> dict[str, Any]:
    schedule, factor = verified.schedule, verified.cost.bandwidth_factor
    return {
        "kind": schedule.kind,
        "method": schedule.method,
        "steps": schedule.steps,
        "bandwidth_factor": None if factor is None else rational_text(factor),
        "chunks_per_shard": schedule.chunks_per_shard,
        "transfers": schedule.transfer_count,
        "id": schedule.id,
    }


def _program_document(program: AnyProgram) -> dict[str, Any]:
    names = {"target": program.target, "chunks": program.chunks, "in_place": program.in_place}
    return {"kind": "program", **names, "protocol": program.protocol, **asdict(resources_of(program))}


@dataclass(frozen=True, slots=True)
class ComparisonModel:
    """How sides are priced: `fidelity` is for schedules; programs are simulated as flows, through buffers of
    `buffer_bytes` or, where that is None, those of their runtimes."""

    pricing: Pricing
    fidelity: Fidelity
    buffer_bytes: int | None

    def time_s(self, side: Side, size_bytes: int) -> float:
        """Return the seconds for a vector of `size_bytes`."""
        network, content = self.pricing.network(side.topology), side.content
        if isinstance(content, VerifiedSchedule):
            traffic = traffic_of(content.schedule)
            return simulate(traffic, network, [size_bytes], self.fidelity)[0] + self.pricing.unmodelled_flows_s(traffic)
        buffer_bytes = self.buffer_bytes or usual_buffer_bytes(content)
        trace = simulate_program(content, side.topology, network, size_bytes, buffer_bytes)
        return trace.end_s + self.pricing.unmodelled_program_s(content)

    def library(self, side: Side, size_bytes: int) -> dict[str, Any]:
        """Return what the library takes at `size_bytes` by its own model, and the microseconds; nulls without one."""
        algorithms = library_algorithms(side.topology, _collective(side))
        if not algorithms:
            return {"library": None, "library_us": None}
        is_link, network = side.topology.bandwidth_unit == "link", self.pricing.network(side.topology)
        unit = float(network.unit_bytes_per_s(side.topology)) if is_link else 1.0
        chosen = library_choice([replace(each, bytes_per_s=each.bytes_per_s * unit) for each in algorithms], size_bytes)
        return {"library": chosen.document(), "library_us": chosen.seconds(size_bytes) * 1e6}


def comparison(first: Side, second: Side, model: ComparisonModel, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    """Return the JSON document of two sides on one network.

    results:    seconds of both at each size, how much faster the second is, and what the library takes by its model
    crossovers: sizes between those asked for, found by bisection to 1 %, at which one overtakes the other

    InvalidInput for different networks or collectives.
    """
    if first.topology.id != second.topology.id:
        value = f"{first.topology.spec} and {second.topology.spec}"
        raise InvalidInput("what is compared must be for one network", value, "make both for the same")
    if first.collective != second.collective:
        value = f"{first.collective} and {second.collective}"
        raise InvalidInput("what is compared must be for one collective", value, "make both for the same")
    times = {size: (model.time_s(first, size), model.time_s(second, size)) for size in sorted(sizes_bytes)}
    return {
        "topology": topology_document(first.topology),
        **assumption_facts(first.topology),
        "collective": first.collective,
        "sides": [first.document(), second.document()],
        "time_per_byte_ratio": rational_text(first.time_per_byte / second.time_per_byte),
        "parameters": {
            **model.pricing.settings_on(first.topology),
            "model": model.fidelity,
            "buffer_bytes": model.buffer_bytes,
        },
        "results": [
            {
                "size_bytes": size,
                "time_us": [time_s * 1e6 for time_s in both],
                "speedup": both[0] / both[1],
                "faster": _faster(both),
                **model.library(first, size),
            }
            for size, both in times.items()
        ],
        "crossovers": [
            _crossover(first, second, model, below, above)
            for below, above in pairwise(times)
            if {_faster(times[below]), _faster(times[above])} == {"first", "second"}
        ],
    }


def _faster(times_s: tuple[float, float]) -> str:
    first, second = times_s
    if abs(first - second) <= _SAME * max(first, second):
        return "equal"
    return "first" if first < second else "second"


def _crossover(first: Side, second: Side, model: ComparisonModel, below: int, above: int) -> dict[str, Any]:
    """Return where between two sizes, at which different sides are faster, that changes."""
    winner = _faster((model.time_s(first, below), model.time_s(second, below)))
    while above > _NARROW * below:
        middle = isqrt(below * above)
        if middle in (below, above):
            break
        is_before = _faster((model.time_s(first, middle), model.time_s(second, middle))) == winner
        below, above = (middle, above) if is_before else (below, middle)
    return {"size_bytes": above, "faster_below": winner, "faster_above": "second" if winner == "first" else "first"}


def comparison_tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables for people: cost terms side by side, then times by size."""
    sides = document["sides"]
    unit = document["topology"]["bandwidth_unit"]
    terms = Table(title=f"{document['collective']} on {document['topology']['spec']}")
    for heading in ("", "first", "second"):
        terms.add_column(heading)
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        texts = ("" if side.get(name) is None else fact_text(name, side[name], unit) for side in sides)
        terms.add_row(fact_label(name), *texts)
    times = Table(title="time by size, us")
    for heading in ("size", "first", "second", "first / second", "library"):
        times.add_column(heading, justify="right")
    for row in document["results"]:
        both = (f"{time_us:.5g}" for time_us in row["time_us"])
        times.add_row(format_size(row["size_bytes"]), *both, f"{row['speedup']:.3f}", _library_text(row))
    for cross in document["crossovers"]:
        times.add_row(f"{format_size(cross['size_bytes'])} on", f"{cross['faster_above']} is faster", "", "", "")
    return [terms, times]


def _library_text(row: Mapping[str, Any]) -> str:
    """Return the library's time and which algorithm it is, by its own model; "" without one."""
    return "" if row["library"] is None else f"{row['library_us']:.5g}, {baseline_label(row['library'])}"


_SHOWN_NODES = 12


def bound_comparison(side: Side, model: ComparisonModel, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    """Return the JSON document of one side against the bound of its network, whose certificate is checked.

    results: seconds at each size, those that the bound leaves (bandwidth alone, no latencies), and their ratio

    InvalidInput for collectives without a bound.
    """
    collective, topology = _collective(side), side.topology
    if collective.custom is not None:
        rule = "a bound is known for collectives with a name"
        raise InvalidInput(rule, collective, "compare the program with another one")
    bound, kind = _bound_of(side, collective)
    check_certificate(topology, collective, bound.to_json(topology))
    unit_bytes_per_s = model.pricing.network(topology).unit_bytes_per_s(topology)
    results = []
    for size in sorted(sizes_bytes):
        time_us = model.time_s(side, size) * 1e6
        least_us = float(bound.value * size / unit_bytes_per_s) * 1e6
        row = {"size_bytes": size, "time_us": time_us, "least_us": least_us, "ratio": time_us / least_us}
        results.append(row | model.library(side, size))
    certificate = bound.to_json(side.topology)
    return {
        "topology": topology_document(topology),
        **assumption_facts(topology),
        "collective": str(collective),
        "side": side.document(),
        "bound": {
            "kind": kind,
            "time_per_byte": rational_text(bound.value),
            "algbw": float(1 / bound.value),
            "bottleneck_cut": [str(node) for node in certificate.get("cut", ())],
            "certificate": dict(bound.to_json(topology)),
        },
        "gap": rational_text(side.time_per_byte / bound.value - 1),
        "parameters": {
            **model.pricing.settings_on(topology),
            "model": model.fidelity,
            "buffer_bytes": model.buffer_bytes,
        },
        "results": results,
    }


def _collective(side: Side) -> Collective:
    content = side.content
    return content.schedule.collective if isinstance(content, VerifiedSchedule) else content.collective


def _bound_of(side: Side, collective: Collective) -> tuple[Bound, str]:
    """Return the bound that holds for what the side uses: ranks alone, or switches that add and multicast, too."""
    content = side.content
    if isinstance(content, ExecutionPlan) and any(body.switches for body in content.ranks):
        in_network = in_network_bound(side.topology, collective)
        if in_network is None:
            rule = f"a plan that adds in the switch needs a fabric whose switches can, unlike {side.topology.spec}"
            raise InvalidInput(rule, side.name, "choose a fabric with such switches")
        return in_network, "in_network"
    if isinstance(content, VerifiedSchedule):
        kind = "in_network" if content.schedule.is_in_network else "ranks"
        return bound_of_schedule(content.schedule, side.time_per_byte), kind
    return bound_of_ranks(side.topology, collective, side.time_per_byte), "ranks"


def bound_tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables for people: exact terms, then times by size beside the least."""
    terms = Table(title=f"{document['collective']} on {document['topology']['spec']}", show_header=False)
    for name, value in document["side"].items():
        if value is not None:
            terms.add_row(name.replace("_", " "), str(value))
    terms.add_row("bound, time per byte", f"{document['bound']['time_per_byte']} ({document['bound']['kind']})")
    terms.add_row("above the bound", f"{document['gap']} of it")
    cut = document["bound"]["bottleneck_cut"]
    if cut:
        more = ", ..." if len(cut) > _SHOWN_NODES else ""
        terms.add_row("links that limit", f"those out of {', '.join(cut[:_SHOWN_NODES])}{more}")
    times = Table(title="time by size, us")
    for heading in ("size", "predicted", "least by bandwidth", "ratio", "library"):
        times.add_column(heading, justify="right")
    for row in document["results"]:
        numbers = (f"{row[key]:.5g}" for key in ("time_us", "least_us"))
        times.add_row(format_size(row["size_bytes"]), *numbers, f"{row['ratio']:.3f}", _library_text(row))
    return [terms, times]


def show(
    file: opt.ReadableFile,
    plot: opt.PlotFile = None,
    spec: opt.SpecOfProgram = None,
    rank: Annotated[int, typer.Option(min=0, help="Of a schedule: whose data to follow.")] = 0,
    size: Annotated[str, typer.Option(help="Of a program: buffer size.")] = "16MiB",
    buffer: Annotated[
        str | None, typer.Option(help="Of a program: buffer of a connection; default: 4MiB for MSCCL, else none.")
    ] = None,
    alpha_us: opt.AlphaUs = None,
    link_latency_us: opt.LinkLatencyUs = None,
    hop_us: opt.HopUs = None,
    link_gbps: opt.LinkGbps = None,
    calibration: opt.CalibrationFile = None,
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
        from chorale.tuner.plots.network_plots import plot_schedule  # noqa: PLC0415 - matplotlib is optional

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
    return document | {"parameters": {**pricing.settings_on(topology), "buffer_bytes": buffer_bytes}}


def compare(
    first: Annotated[
        str, typer.Argument(metavar="FILE", help="Schedule (.parquet, .json) or program (.xml, plan .json).")
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Another, for the same network and collective; default: the bound."),
    ] = None,
    sizes: opt.Sizes = "4KiB:1GiB:x8",
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
    alpha_us: opt.AlphaUs = None,
    link_latency_us: opt.LinkLatencyUs = None,
    hop_us: opt.HopUs = None,
    link_gbps: opt.LinkGbps = None,
    calibration: opt.CalibrationFile = None,
    plot: opt.PlotFile = None,
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


UNIT_LINK_GBPS = "100"
"""Rate of a link of capacity 1 for commands in which --link-gbps may be left out."""


def pricing_of(topology: Topology, options: Mapping[str, str | None], calibration: str | None) -> Pricing:
    """Return the pricing by `options`; print the rate of links that is assumed if none is given."""
    if topology.bandwidth_unit == "link" and calibration is None and options["link_gbps"] is None:
        people.print(f"links of capacity 1 are taken to have {UNIT_LINK_GBPS} Gbit/s; --link-gbps says another rate")
        options = {**options, "link_gbps": UNIT_LINK_GBPS}
    return Pricing.of(options, calibration)
