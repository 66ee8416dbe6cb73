"""`chorale run`: execute a schedule or a program, check its results, time it and report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.base import LIBRARY, ProgramSettings, RunFailure, Runner, RunRequest
from chorale.runners.api.registry import RUNNERS, runner_config
from chorale.runners.api.units import parse_sizes
from chorale.runners.local.config import LocalConfig
from chorale.runners.measurement.driver import AdaptiveMeasurement, LinkLimit, link_limit, measure_once, measure_until
from chorale.runners.measurement.precision import MIN_SAMPLES, Goal, parse_budget, parse_precision
from chorale.runners.simulated.calibration import Calibration, calibrate, observations_of
from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.programs.switch_processes import collective_of_ranks
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.choices import file_to_write, runner_name
from chorale.tuner.cli.options import AsJson, CollectiveFile, ElementTypeName, RunnableFile, Sizes
from chorale.tuner.cli.output import people
from chorale.tuner.cli.run_report import print_failure, print_report
from chorale.tuner.cli.signals import stop_before_the_job_ends
from chorale.tuner.cli.slurm import AsSlurmJob, Site, SlurmOptions, SlurmScript, SlurmTime, Wait, job_name, run_as_job
from chorale.tuner.costs.pricing import calibration_programs
from chorale.tuner.files.collective_files import load_collective
from chorale.tuner.files.home import Home
from chorale.tuner.files.program_files import Runnable, is_program_file, load_runnable
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.executions import report_executions, require_trace_files

LinkMbps = Annotated[float | None, typer.Option(help="Mbit/s of a link, or --link-gbps; default: as the runner does.")]
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
    Path | None,
    typer.Option(callback=file_to_write, help="Write what every instruction took on every rank, for Perfetto (.json)."),
]
TracePlot = Annotated[
    Path | None,
    typer.Option(
        callback=file_to_write, help="Draw the last size as a timeline beside the predicted one (.png, .svg or .pdf)."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("run")(run)


def run(
    context: typer.Context,
    file: RunnableFile,
    runner: Annotated[
        str, typer.Option(metavar="NAME", parser=runner_name, help=f"What executes it: {', '.join(RUNNERS)}.")
    ] = "local",
    sizes: Sizes = "64KiB,1MiB",
    spec: Annotated[
        str | None, typer.Option(help="The topology of a program; local: complete, if it names none.")
    ] = None,
    collective_file: CollectiveFile = None,
    link_mbps: LinkMbps = None,
    fabric: Annotated[str | None, typer.Option(help="Name of the emulated network to run on.")] = None,
    where: Where = None,
    hosts: Hosts = None,
    options: RunnerOptions = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repetitions per size.")] = 5,
    reference: Reference = None,
    precision: Precision = None,
    budget: Budget = None,
    dtype: ElementTypeName = "float32",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a run counts as hung.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the data.")] = 0,
    wants_calibration: WantsCalibration = False,
    trace: TraceFile = None,
    plot: TracePlot = None,
    slurm: AsSlurmJob = False,
    site: Site = None,
    job_time: SlurmTime = None,
    slurm_script: SlurmScript = None,
    wait: Wait = False,
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
    job = SlurmOptions(context, slurm, site, job_time, slurm_script, wait)
    network, collective = None if spec is None else load_topology(spec), load_collective(collective_file)
    files = _Files(file, reference, network, config.lowering(), collective, runner == LocalConfig.name)
    if job.wants_job:
        run_as_job(job, job_name(Path(file).name), config, files.runnable().topology, resumes=False)
        return
    stop_before_the_job_ends()
    running = config.create(Home.from_environment().root)
    try:
        topology, programs, settings = files.programs(wants_calibration)
        library = () if reference is None or not reference.startswith(LIBRARY) else (reference.removeprefix(LIBRARY),)
        request = RunRequest(topology, programs, sizes_bytes, repeats, 1, timeout, dtype, seed, library, settings)
        request = replace(request, trace=trace is not None or plot is not None)
        outcome = _measured(running, request, goal)
    finally:
        running.close()
    if isinstance(outcome, RunFailure):
        print_failure(runner, outcome, as_json)
    measured = _Measured(file, request, outcome)
    calibration = measured.calibration() if wants_calibration else None
    rows = measured.executions(trace, plot)
    print_report(file, measured.program, outcome, reference, calibration, as_json, measured.limit(), rows)


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

    def programs(self, calibrates: bool) -> tuple[Topology, dict[str, AnyProgram], dict[str, ProgramSettings]]:
        """Return the network, all programs to measure by name, and the settings of those that have some."""
        runnable = self.runnable()
        topology, program = runnable.topology, runnable.program
        if self.network is None and is_program_file(self.file) and program.name.split()[-1:] != [topology.spec]:
            people.print(f"the program names no network: it runs on {topology.spec}; --spec chooses another")
        others: Mapping[str, AnyProgram] = {}
        if calibrates:
            others = calibration_programs(_calibrated(program, self.file), topology, self.target.target)
        reading = (self.target, self.collective)
        runnables = {self.file: runnable, **_reference_program(self.reference, self.file, topology, reading)}
        settings = {name: item.settings for name, item in runnables.items() if item.settings is not None}
        return topology, {**{name: item.program for name, item in runnables.items()}, **others}, settings


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured of the program of `file`."""

    file: str
    request: RunRequest
    outcome: AdaptiveMeasurement

    @property
    def program(self) -> AnyProgram:
        """The program itself."""
        return self.request.programs[self.file]

    def calibration(self) -> Calibration:
        """Return the cost model that fits what was measured."""
        topology, measurement = self.request.topology, self.outcome.measurement
        return calibrate(observations_of(measurement, self.request.without_plans, topology), topology.bandwidth_unit)

    def executions(self, trace: Path | None, plot: Path | None) -> list[dict[str, Any]] | None:
        """Write and draw what was traced; return a row for each execution, None where nothing was."""
        if not self.request.trace or not isinstance(self.program, Program):
            return None
        measurement = self.outcome.measurement
        traced = measurement.traces.get(self.file, ())
        return report_executions(self.program, self.request.topology, traced, measurement, trace, plot)

    def limit(self) -> LinkLimit | None:
        """Return what the links allow, where their rate is known."""
        return link_limit(
            self.request.topology, collective_of_ranks(self.program), self.outcome.measurement.environment
        )


def _calibrated(program: AnyProgram, file: str) -> Program:
    if not isinstance(program, Program):
        raise InvalidInput("a calibration needs messages, which a plan does not send", file, "leave --calibrate out")
    return program


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
    reference: str | None, file: str, topology: Topology, reading: tuple[LoweringOptions, CustomCollective | None]
) -> dict[str, Runnable]:
    if reference is None or reference.startswith(LIBRARY):
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
