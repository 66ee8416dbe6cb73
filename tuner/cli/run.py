"""`chorale run`: execute a schedule or a program, check its results, time it and report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.runners.api import base
from chorale.runners.api.registry import RUNNERS, runner_config, runner_named
from chorale.runners.api.units import format_size, format_us, parse_sizes
from chorale.runners.local.config import LocalConfig
from chorale.runners.measurement.driver import AdaptiveMeasurement, LinkLimit, link_limit, measure_once, measure_until
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.runners.measurement.precision import (
    MIN_SAMPLES,
    Goal,
    SizeAnalysis,
    analyse,
    parse_budget,
    parse_precision,
)
from chorale.runners.simulated.calibration import Calibration, calibrate, observations_of
from chorale.runners.workers.campaign_worker import ALONE_PATIENCE_S
from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.programs.switch_processes import collective_of_ranks, rank_count
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.options import CollectiveFile, ElementTypeName, RunnableFile, Sizes, file_to_write, offer
from chorale.tuner.cli.output import people, print_error
from chorale.tuner.cli.process import stop_before_the_job_ends
from chorale.tuner.cli.slurm import AsSlurmJob, Site, SlurmOptions, SlurmScript, SlurmTime, Wait, job_name, run_as_job
from chorale.tuner.costs.pricing import calibration_programs
from chorale.tuner.files.collective_files import load_collective
from chorale.tuner.files.home import Home
from chorale.tuner.files.program_files import Runnable, is_program_file, load_runnable
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.executions import execution_line, report_executions, require_trace_files
from chorale.tuner.reports.tables import Result, facts_table, numbers_table, speed_text


def run(
    context: typer.Context,
    file: RunnableFile,
    runner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            parser=runner_named,
            autocompletion=offer(RUNNERS),
            help=f"What executes it: {', '.join(RUNNERS)}.",
        ),
    ] = "local",
    sizes: Sizes = "64KiB,1MiB",
    spec: Annotated[
        str | None, typer.Option(help="The topology of a program; local: complete, if it names none.")
    ] = None,
    collective_file: CollectiveFile = None,
    link_mbps: Annotated[
        float | None, typer.Option(help="Mbit/s of a link, or --link-gbps; default: as the runner does.")
    ] = None,
    fabric: Annotated[str | None, typer.Option(help="Name of the emulated network to run on.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Run on a fabric, a cluster, or loopback; default: the first that there is.")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="Hosts of a cluster for MPI, a comma list or @FILE; default: those of this job."),
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the runner; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repetitions per size.")] = 5,
    reference: Annotated[
        str | None, typer.Option(help="Schedule, program or library:NAME to measure beside it and to compare with.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Repeat until the 95 % interval of the ratio (or time) is this narrow, such as 2%."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="What --precision may cost per size and in all: 200, 90s or 200,90s.")
    ] = None,
    dtype: ElementTypeName = "float32",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a run counts as hung.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the data.")] = 0,
    wants_calibration: Annotated[
        bool, typer.Option("--calibrate", help="Fit latency, overhead and bandwidth, measuring a few more programs.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            callback=file_to_write, help="Write what every instruction took on every rank, for Perfetto (.json)."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            callback=file_to_write,
            help="Draw the last size as a timeline beside the predicted one (.png, .svg or .pdf).",
        ),
    ] = None,
    slurm: AsSlurmJob = False,
    site: Site = None,
    job_time: SlurmTime = None,
    slurm_script: SlurmScript = None,
    wait: Wait = False,
) -> Result | None:
    """Execute a schedule or program, check every element of every result, and time it.

    Example: chorale run torus.parquet --runner local --sizes 64KiB,1M --link-mbps 50 --reference ring.parquet
    """
    sizes_bytes, goal = parse_sizes(sizes), _goal(precision, budget, reference)
    require_trace_files(trace, plot)
    flags = {"link_mbps": link_mbps, "fabric": fabric, "where": where, "hosts": hosts}
    config = runner_config(runner, _runner_options(flags, options or []))
    if goal is not None and config.capabilities.is_live and not config.capabilities.launches_repetitions:
        goal = replace(goal, launches=MIN_SAMPLES)  # repetitions of one start of the ranks share its mode
    job = SlurmOptions(context, slurm, site, job_time, slurm_script, wait)
    network, collective = None if spec is None else load_topology(spec), load_collective(collective_file)
    files = _Files(file, reference, network, config.lowering(), collective, runner == LocalConfig.name)
    if job.wants_job:
        run_as_job(job, job_name(Path(file).name), config, files.runnable().topology, resumes=False)
        return None
    stop_before_the_job_ends()
    running = config.create(Home.from_environment().root)
    try:
        topology, programs, settings = files.programs(wants_calibration)
        library = (
            ()
            if reference is None or not reference.startswith(base.LIBRARY)
            else (reference.removeprefix(base.LIBRARY),)
        )
        request = base.RunRequest(topology, programs, sizes_bytes, repeats, 1, timeout, dtype, seed, library, settings)
        request = replace(request, trace=trace is not None or plot is not None)
        with exclusive(machine_lock(), ALONE_PATIENCE_S) if config.capabilities.is_live else nullcontext():
            outcome = (
                measure_once(running, request)
                if goal is None
                else measure_until(running, request, goal, time.monotonic)
            )
    finally:
        running.close()
    if isinstance(outcome, base.RunFailure):
        return _failure(runner, outcome)
    measurement, program = outcome.measurement, request.programs[file]
    calibration, executions = None, None
    if wants_calibration:
        observations = observations_of(measurement, request.without_plans, topology)
        calibration = calibrate(observations, topology.bandwidth_unit)
    if request.trace and isinstance(program, Program):
        executions = report_executions(program, topology, measurement.traces.get(file, ()), measurement, trace, plot)
    limit = link_limit(topology, collective_of_ranks(program), measurement.environment)
    return _report(_Measured(file, program, outcome, reference, limit), calibration, executions)


@dataclass(frozen=True, slots=True)
class _Files:
    """What is to be run, as it was named. target: how the runner has schedules lowered; any_network: a program that
    names no network runs on a complete one."""

    file: str
    reference: str | None
    network: Topology | None
    target: LoweringOptions
    collective: CustomCollective | None
    any_network: bool

    def runnable(self) -> Runnable:
        """Return the checked program of the file."""
        return load_runnable(
            self.file, self.network, self.target, any_network=self.any_network, collective=self.collective
        )

    def programs(self, calibrates: bool) -> tuple[Topology, dict[str, AnyProgram], dict[str, base.ProgramSettings]]:
        """Return the network, all programs to measure by name, and the settings of those that have some."""
        runnable = self.runnable()
        topology, program = runnable.topology, runnable.program
        if self.network is None and is_program_file(self.file) and program.name.split()[-1:] != [topology.spec]:
            people.print(f"the program names no network: it runs on {topology.spec}; --spec chooses another")
        others: Mapping[str, AnyProgram] = {}
        if calibrates:
            if not isinstance(program, Program):
                raise InvalidInput(
                    "a calibration needs messages, which a plan does not send", self.file, "leave --calibrate out"
                )
            others = calibration_programs(program, topology, self.target.target)
        reading = (self.target, self.collective)
        runnables = {self.file: runnable, **_reference_program(self.reference, self.file, topology, reading)}
        settings = {name: item.settings for name, item in runnables.items() if item.settings is not None}
        return topology, {**{name: item.program for name, item in runnables.items()}, **others}, settings


def _goal(precision: str | None, budget: str | None, reference: str | None) -> Goal | None:
    if precision is None:
        if budget is not None:
            raise InvalidInput("a budget is for what --precision costs", budget, "add --precision 2%, or use --repeats")
        return None
    return Goal(parse_precision(precision), reference, *(() if budget is None else parse_budget(budget)))


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
    reference: str | None, file: str, topology: Topology, reading: tuple[LoweringOptions, CustomCollective | None]
) -> dict[str, Runnable]:
    if reference is None or reference.startswith(base.LIBRARY):
        return {}
    if reference == file:
        raise InvalidInput("a reference must be another file", reference, "copy it, to see how times scatter")
    target, collective = reading
    network = topology if is_program_file(reference) else None
    other = load_runnable(reference, network, target, collective=collective)
    if other.topology.id != topology.id:
        rule = f"a reference must be for the same network, {topology.spec}"
        raise InvalidInput(rule, f"{reference} for {other.topology.spec}", "choose another reference")
    return {reference: other}


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measured program of `file`, and the reference; limit: what the links allow, if that is known."""

    file: str
    program: AnyProgram
    driven: AdaptiveMeasurement
    reference: str | None
    limit: LinkLimit | None

    def rows(self, analyses: Sequence[SizeAnalysis]) -> list[dict[str, Any]]:
        """Return a row for each size, with what the repetitions prove."""
        driven = self.driven
        rows = [
            self.row(size) | analysis.to_json(self.reference) | {"stopped": stop.value}
            for size, analysis, stop in zip(
                driven.measurement.results[self.file], analyses, driven.stop_reasons, strict=True
            )
        ]
        for row, precision in zip(rows, driven.precisions, strict=False):
            row["precision"] = {"goal": precision.goal, "reached": precision.reached, "met": precision.is_met}
        return rows

    def row(self, measured: base.SizeMeasurement) -> dict[str, Any]:
        """Return what was measured at a size."""
        algbw = measured.size_bytes / measured.median_s / 1e9
        limit = self.limit
        of_limit = {} if limit is None else {"efficiency": limit.efficiency(measured.median_s, measured.size_bytes)}
        return {
            "size_bytes": measured.size_bytes,
            "time_us_median": measured.median_s * 1e6,
            "time_us_iqr": measured.iqr_s * 1e6,
            "time_us_min": measured.min_s * 1e6,
            "repeats": len(measured.times_s),
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": algbw * base.bus_factor(collective_of_ranks(self.program).name, rank_count(self.program)),
            **of_limit,
            "correct": measured.correct,
        }


def _report(measured: _Measured, calibration: Calibration | None, executions: list[dict[str, Any]] | None) -> Result:
    """Return the results, compared with those of the reference and with what the links allow.

    executions: of `report_executions`, if they were traced
    """
    measurement, reference, limit = measured.driven.measurement, measured.reference, measured.limit
    analyses = analyse(measurement, measured.file, reference, per_launch=measured.driven.per_launch)
    _warn(measured, analyses)
    rows = measured.rows(analyses)
    document = {"runner": measurement.runner, "results": rows, "environment": dict(measurement.environment)}
    shown: list[Table | str] = [
        _table(f"{measured.file}: {collective_of_ranks(measured.program)} on {measurement.runner}", rows)
    ]
    if limit is not None:
        shown.append(_of_what_links_allow(rows[-1], limit, measurement.environment["link_mbps"]))
    if reference is not None:
        others = [measured.row(size) for size in measurement.results[reference]]
        document["reference"] = {"name": reference, "results": others}
        shown += map(_comparison, rows)
    shown += [_missed_precision(row) for row in rows if not row.get("precision", {"met": True})["met"]]
    if calibration is not None:
        document["calibration"] = calibration.to_json()
        table = facts_table(f"calibration from {calibration.observations} measurements")
        table.add_row("constant", format_us(calibration.constant_s))
        table.add_row("alpha, for each message that must follow another", format_us(calibration.alpha_s))
        table.add_row("overhead, for each message of a rank", format_us(calibration.overhead_s))
        unit = "a link" if calibration.bandwidth_unit == "link" else f"1 {calibration.bandwidth_unit}"
        table.add_row(f"{unit} carries", f"{calibration.unit_bytes_per_s * 8 / 1e9:.4g} Gbit/s")
        table.add_row("relative error, mean and largest", f"{calibration.mean_error:.2%}, {calibration.max_error:.2%}")
        if calibration.unseen_error is not None:
            table.add_row("of programs that were left out of the fit", f"{calibration.unseen_error:.2%}")
        shown.append(table)
    if executions is not None:
        document["executions"] = executions
        shown += map(execution_line, executions)
    return Result(document, *shown)


def _failure(runner: str, failure: base.RunFailure) -> Result:
    """Print why there are no results; return that, with the exit code that says so."""
    print_error(f"{failure.kind}: {failure.message}")
    facts = {"kind": failure.kind.value, "message": failure.message, "rank": failure.rank}
    blocked = [dict(zip(("rank", "block", "instruction"), position, strict=True)) for position in failure.blocked]
    document = {"failure": {**facts, "blocked": blocked}, "environment": dict(failure.environment)}
    code = Unavailable.exit_code if failure.kind is base.FailureKind.UNAVAILABLE else 1
    return Result({"runner": runner, "results": [], **document}, exit_code=code)


def _warn(measured: _Measured, analyses: Sequence[SizeAnalysis]) -> None:
    measurement, program = measured.driven.measurement, measured.program
    pieces = " in pieces of 16 bytes" if program.one_sided else ""
    for size, analysis in zip(measurement.results[measured.file], analyses, strict=True):
        if size.size_bytes != size.requested_bytes:
            people.print(
                f"{format_size(size.requested_bytes)} is rounded up to {size.size_bytes} bytes, "
                f"so that its elements fill {program.chunks} chunks{pieces}"
            )
        if analysis.drift.is_flagged:
            drifted = f"{measured.reference or measured.file} drifted by {analysis.drift.relative_change:+.0%}"
            people.print(f"warning: {drifted} while {format_size(size.size_bytes)} ran")
    for key in ("memory_channels", "port_channels", "switch_channels", "switches"):
        if (stand_in := measurement.environment.get(key)) is not None:
            people.print(f"{key.replace('_', ' ')}: {stand_in}")
    if (warning := measurement.environment.get("warning")) is not None:
        people.print(f"warning: {warning}")


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    limited = ("of limit",) if "efficiency" in rows[0] else ()
    headings = ("median us", "IQR us", "min us", "algbw GB/s", "busbw GB/s", *limited, "right")
    table = numbers_table(title, "size", *headings)
    for row in rows:
        times_us = (row[key] for key in ("time_us_median", "time_us_iqr", "time_us_min"))
        times = (f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}" for time_us in times_us)
        rates = (f"{row[key]:.3g}" for key in ("algbw_gb_per_s", "busbw_gb_per_s"))
        of_limit = (f"{row['efficiency']:.0%}",) if limited else ()
        table.add_row(format_size(row["size_bytes"]), *times, *rates, *of_limit, _RIGHT[row["correct"]])
    return table


def _of_what_links_allow(row: dict[str, Any], limit: LinkLimit, link_mbps: Any) -> str:
    """Say why bandwidths are low where links are paced: what they allow, and how near the last size came to it."""
    allowed, size = 1 / limit.seconds_per_byte / 1e9, format_size(row["size_bytes"])
    reached = f"{size} came to {row['efficiency']:.0%} of that"
    return f"links of {float(Fraction(str(link_mbps))):g} Mbit/s allow an algbw of {allowed:.3g} GB/s; {reached}"


_RIGHT = {True: "yes", False: "NO", None: "unchecked"}


def _comparison(row: dict[str, Any]) -> str:
    ratio = row["ratio_to_reference"]
    interval = f"{ratio['low']:.3f} to {ratio['high']:.3f} with {ratio['confidence']:.0%}"
    size, stopped = format_size(row["size_bytes"]), f"{row['repeats']} repetitions, {row['stopped']}"
    return f"{size}: {speed_text(ratio['median'])} {ratio['reference']} (time ratio {interval}; {stopped})"


def _missed_precision(row: dict[str, Any]) -> str:
    goal, reached = (row["precision"][key] for key in ("goal", "reached"))
    width = "there were too few repetitions for an interval" if reached is None else f"it is {reached:.2%}"
    spent = f"{row['repeats']} repetitions, and the budget of {row['stopped']} is used up"
    return f"{format_size(row['size_bytes'])}: the precision of {goal:.2%} was not reached, {width} after {spent}"
