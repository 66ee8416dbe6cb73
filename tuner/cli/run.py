"""`chorale run`: execute a schedule or a program, check its results, time it and report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from chorale.runners.api.base import (
    LIBRARY,
    FailureKind,
    Measurement,
    RunFailure,
    Runner,
    RunRequest,
    SizeMeasurement,
    bus_factor,
)
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.registry import RUNNERS, runner_config
from chorale.runners.api.units import format_size, format_us, parse_sizes
from chorale.runners.measurement.analysis import SizeAnalysis, analyse
from chorale.runners.measurement.driver import AdaptiveMeasurement, measure_once, measure_until
from chorale.runners.measurement.link_limit import LinkLimit, link_limit
from chorale.runners.measurement.precision import MIN_SAMPLES, Goal, parse_budget, parse_precision
from chorale.runners.simulated.calibration import Calibration, calibrate, observations_of
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.options import AsJson, RunnableFile, Sizes
from chorale.tuner.cli.output import emit_json, people, print_error, results
from chorale.tuner.costs.pricing import calibration_programs
from chorale.tuner.files.home import Home
from chorale.tuner.files.program_files import Runnable, load_runnable
from chorale.tuner.files.schedule_files import SUFFIXES
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.executions import execution_line, report_executions, require_trace_files
from chorale.tuner.reports.lazy_rich import Table

UNAVAILABLE_EXIT_CODE = 3


def print_report(
    file: str,
    program: Program,
    driven: AdaptiveMeasurement,
    reference: str | None,
    calibration: Calibration | None,
    as_json: bool,
    limit: LinkLimit | None,
    executions: list[dict[str, Any]] | None = None,
) -> None:
    """Print the results of `file`, compared with those of `reference` and with what the links allow, where known.

    executions: of `report_executions`, where they were traced
    """
    measurement, analyses = (
        driven.measurement,
        analyse(driven.measurement, file, reference, per_launch=driven.per_launch),
    )
    _warn(file, program, measurement, analyses, reference)
    rows = [
        _row(size, program, limit) | analysis.to_json(reference) | {"stopped": stop.value}
        for size, analysis, stop in zip(measurement.results[file], analyses, driven.stop_reasons, strict=True)
    ]
    for row, precision in zip(rows, driven.precisions, strict=False):
        row["precision"] = {"goal": precision.goal, "reached": precision.reached, "met": precision.is_met}
    if as_json:
        document = {"runner": measurement.runner, "results": rows, "environment": dict(measurement.environment)}
        if reference is not None:
            others = [_row(size, program, limit) for size in measurement.results[reference]]
            document["reference"] = {"name": reference, "results": others}
        document |= {} if calibration is None else {"calibration": calibration.to_json()}
        emit_json(document | ({} if executions is None else {"executions": executions}))
        return
    results.print(_table(f"{file}: {program.collective} on {measurement.runner}", rows))
    if reference is not None:
        results.print("\n".join(map(_comparison, rows)), soft_wrap=True)
    for row in rows:
        if not row.get("precision", {"met": True})["met"]:
            results.print(_missed_precision(row), soft_wrap=True)
    if calibration is not None:
        results.print(_calibration_table(calibration))
    for execution in executions or ():
        results.print(execution_line(execution), soft_wrap=True)


def print_failure(runner: str, failure: RunFailure, as_json: bool) -> NoReturn:
    """Print why there are no results, and end with the exit code that says so."""
    print_error(f"{failure.kind}: {failure.message}")
    if as_json:
        facts = {"kind": failure.kind.value, "message": failure.message, "rank": failure.rank}
        blocked = [dict(zip(("rank", "block", "instruction"), position, strict=True)) for position in failure.blocked]
        environment = dict(failure.environment)
        emit_json(
            {"runner": runner, "results": [], "failure": {**facts, "blocked": blocked}, "environment": environment}
        )
    raise typer.Exit(UNAVAILABLE_EXIT_CODE if failure.kind is FailureKind.UNAVAILABLE else 1)


def _warn(
    file: str, program: Program, measurement: Measurement, analyses: tuple[SizeAnalysis, ...], reference: str | None
) -> None:
    for size, analysis in zip(measurement.results[file], analyses, strict=True):
        if size.size_bytes != size.requested_bytes:
            people.print(
                f"{format_size(size.requested_bytes)} is rounded up to {size.size_bytes} bytes, "
                f"so that its elements fill {program.chunks} chunks"
            )
        if analysis.drift.is_flagged:
            change = f"{analysis.drift.relative_change:+.0%}"
            people.print(f"warning: {reference or file} drifted by {change} while {format_size(size.size_bytes)} ran")
    if (warning := measurement.environment.get("warning")) is not None:
        people.print(f"warning: {warning}")


def _row(measured: SizeMeasurement, program: Program, limit: LinkLimit | None) -> dict[str, Any]:
    algbw = measured.size_bytes / measured.median_s / 1e9
    of_limit = {} if limit is None else {"efficiency": limit.efficiency(measured.median_s, measured.size_bytes)}
    return {
        "size_bytes": measured.size_bytes,
        "time_us_median": measured.median_s * 1e6,
        "time_us_iqr": measured.iqr_s * 1e6,
        "time_us_min": measured.min_s * 1e6,
        "repeats": len(measured.times_s),
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * bus_factor(program.collective.name, len(program.ranks)),
        **of_limit,
        "correct": measured.correct,
    }


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    limited = ("of limit",) if "efficiency" in rows[0] else ()
    for heading in ("size", "median us", "IQR us", "min us", "algbw GB/s", "busbw GB/s", *limited, "right"):
        table.add_column(heading, justify="right")
    for row in rows:
        times = (_short(row[key]) for key in ("time_us_median", "time_us_iqr", "time_us_min"))
        rates = (f"{row[key]:.3g}" for key in ("algbw_gb_per_s", "busbw_gb_per_s"))
        of_limit = (f"{row['efficiency']:.0%}",) if limited else ()
        table.add_row(format_size(row["size_bytes"]), *times, *rates, *of_limit, _RIGHT[row["correct"]])
    return table


_RIGHT = {True: "yes", False: "NO", None: "unchecked"}


def _short(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}"


def _comparison(row: dict[str, Any]) -> str:
    ratio = row["ratio_to_reference"]
    interval = f"{ratio['low']:.3f} to {ratio['high']:.3f} with {ratio['confidence']:.0%}"
    size, stopped = format_size(row["size_bytes"]), f"{row['repeats']} repetitions, {row['stopped']}"
    return f"{size}: {ratio['median']:.3f} of the time of {ratio['reference']} ({interval}; {stopped})"


def _missed_precision(row: dict[str, Any]) -> str:
    goal, reached = (row["precision"][key] for key in ("goal", "reached"))
    width = "there were too few repetitions for an interval" if reached is None else f"it is {reached:.2%}"
    spent = f"{row['repeats']} repetitions, and the budget of {row['stopped']} is used up"
    return f"{format_size(row['size_bytes'])}: the precision of {goal:.2%} was not reached, {width} after {spent}"


def _calibration_table(calibration: Calibration) -> Table:
    table = Table(title=f"calibration from {calibration.observations} measurements", show_header=False)
    table.add_row("constant", format_us(calibration.constant_s))
    table.add_row("alpha, for each message that must follow another", format_us(calibration.alpha_s))
    table.add_row("overhead, for each message of a rank", format_us(calibration.overhead_s))
    unit = "a link" if calibration.bandwidth_unit == "link" else f"1 {calibration.bandwidth_unit}"
    table.add_row(f"{unit} carries", f"{calibration.unit_bytes_per_s * 8 / 1e9:.4g} Gbit/s")
    table.add_row("relative error, mean and largest", f"{calibration.mean_error:.2%}, {calibration.max_error:.2%}")
    if calibration.unseen_error is not None:
        table.add_row("of programs that were left out of the fit", f"{calibration.unseen_error:.2%}")
    return table


LinkMbps = Annotated[float | None, typer.Option(help="Rate of a link in Mbit/s; default: as the runner does.")]
Where = Annotated[
    str | None, typer.Option(help="Run on a fabric, a cluster, or loopback; default: the first that there is.")
]
Hosts = Annotated[
    str | None, typer.Option(help="Hosts of a cluster for MPI, a comma list or @FILE; default: those of this job.")
]
RunnerOptions = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the runner; may be repeated.")
]
Reference = Annotated[
    str | None, typer.Option(help="Schedule, program or library:NAME to measure beside it and to compare with.")
]
Precision = Annotated[
    str | None, typer.Option(help="Repeat until the 95 % interval of the ratio (or time) is this narrow, such as 2%.")
]
Budget = Annotated[str | None, typer.Option(help="What --precision may cost per size and in all: 200, 90s or 200,90s.")]
WantsCalibration = Annotated[
    bool, typer.Option("--calibrate", help="Fit latency, overhead and bandwidth, measuring a few more programs.")
]
TraceFile = Annotated[
    Path | None, typer.Option(help="Write what every instruction took on every rank, for Perfetto (.json).")
]
TracePlot = Annotated[
    Path | None, typer.Option(help="Draw the last size as a timeline beside the predicted one (.png, .svg or .pdf).")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("run")(run)


def run(
    file: RunnableFile,
    runner: Annotated[str, typer.Option(help=f"What executes it: {', '.join(RUNNERS)}.")],
    sizes: Sizes,
    spec: Annotated[str | None, typer.Option(help="The topology, for a program file.")] = None,
    link_mbps: LinkMbps = None,
    fabric: Annotated[str | None, typer.Option(help="Name of the emulated network to run on.")] = None,
    where: Where = None,
    hosts: Hosts = None,
    options: RunnerOptions = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repetitions per size.")] = 5,
    reference: Reference = None,
    precision: Precision = None,
    budget: Budget = None,
    dtype: Annotated[str, typer.Option(help=f"Element type: {', '.join(ELEMENT_TYPES)}.")] = "float32",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a run counts as hung.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the data.")] = 0,
    wants_calibration: WantsCalibration = False,
    trace: TraceFile = None,
    plot: TracePlot = None,
    as_json: AsJson = False,
) -> None:
    """Execute a schedule or program, check every element of every result, and time it.

    Example: chorale run torus.parquet --runner local --sizes 64KiB,1M --link-mbps 50 --reference ring.parquet
    """
    sizes_bytes, goal = parse_sizes(sizes), _goal(precision, budget, reference)
    require_trace_files(trace, plot)
    flags = {"link_mbps": link_mbps, "fabric": fabric, "where": where, "hosts": hosts}
    config = runner_config(runner, _runner_options(flags, options or []))
    if goal is not None and config.capabilities.is_live and not config.capabilities.launches_repetitions:
        goal = replace(goal, launches=MIN_SAMPLES)  # repetitions of one start of the ranks share its mode
    running = config.create(Home.from_environment().root)
    try:
        target = config.lowering()
        runnable = load_runnable(file, None if spec is None else load_topology(spec), target)
        topology, program = runnable.topology, runnable.program
        others = calibration_programs(program, topology, target.target) if wants_calibration else {}
        runnables = {file: runnable, **_reference_program(reference, file, topology, target)}
        programs = {**{name: item.program for name, item in runnables.items()}, **others}
        settings = {name: item.settings for name, item in runnables.items() if item.settings is not None}
        library = () if reference is None or not reference.startswith(LIBRARY) else (reference.removeprefix(LIBRARY),)
        request = RunRequest(topology, programs, sizes_bytes, repeats, 1, timeout, dtype, seed, library, settings)
        request = replace(request, trace=trace is not None or plot is not None)
        outcome = _measured(running, request, goal)
    finally:
        running.close()
    if isinstance(outcome, RunFailure):
        print_failure(runner, outcome, as_json)
    calibration = None
    if wants_calibration:
        calibration = calibrate(observations_of(outcome.measurement, programs, topology), topology.bandwidth_unit)
    executions = outcome.measurement.traces.get(file, ())
    rows = report_executions(program, topology, executions, outcome.measurement, trace, plot) if request.trace else None
    limit = link_limit(topology, program.collective, outcome.measurement.environment)
    print_report(file, program, outcome, reference, calibration, as_json, limit, rows)


def _goal(precision: str | None, budget: str | None, reference: str | None) -> Goal | None:
    if precision is None:
        if budget is not None:
            raise InvalidInput("a budget is for what --precision costs", budget, "add --precision 2%, or use --repeats")
        return None
    return Goal(parse_precision(precision), reference, *(() if budget is None else parse_budget(budget)))


def _measured(runner: Runner, request: RunRequest, goal: Goal | None) -> AdaptiveMeasurement | RunFailure:
    return measure_once(runner, request) if goal is None else measure_until(runner, request, goal, time.monotonic)


def _runner_options(flags: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    """Return the options of the runner: those of --set, overridden by `flags` that are not None."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InvalidInput("--set must be of the form KEY=VALUE", text, "write --set buffer_bytes=1MiB")
        options[key] = value
    return options | {name: value for name, value in flags.items() if value is not None}


def _reference_program(
    reference: str | None, file: str, topology: Topology, target: LoweringOptions
) -> dict[str, Runnable]:
    if reference is None or reference.startswith(LIBRARY):
        return {}
    if reference == file:
        raise InvalidInput("a reference must be another file", reference, "copy it, to see how times scatter")
    other = load_runnable(reference, None if Path(reference).suffix in SUFFIXES else topology, target)
    if other.topology.id != topology.id:
        rule = f"a reference must be for the same network, {topology.spec}"
        raise InvalidInput(rule, f"{reference} for {other.topology.spec}", "choose another reference")
    return {reference: other}
