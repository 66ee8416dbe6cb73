"""`chorale run`: execute a schedule or a program, check its results and time it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.base import LIBRARY, RunFailure, Runner, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.registry import RUNNERS, runner_config
from chorale.runners.api.units import parse_sizes
from chorale.runners.measurement.driver import AdaptiveMeasurement, measure_once, measure_until
from chorale.runners.measurement.precision import Goal, parse_budget, parse_precision
from chorale.runners.simulated.calibration import calibrate, observations_of
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.run_report import print_failure, print_report
from chorale.tuner.cli.shared_options import AsJson, RunnableFile, Sizes
from chorale.tuner.costs.calibration_programs import calibration_programs
from chorale.tuner.home import Home
from chorale.tuner.runnables import Runnable, load_runnable
from chorale.tuner.schedule_files import SUFFIXES
from chorale.tuner.specs import load_topology

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
    as_json: AsJson = False,
) -> None:
    """Execute a schedule or program, check every element of every result, and time it.

    Example: chorale run torus.parquet --runner local --sizes 64KiB,1M --link-mbps 50 --reference ring.parquet
    """
    sizes_bytes, goal = parse_sizes(sizes), _goal(precision, budget, reference)
    flags = {"link_mbps": link_mbps, "fabric": fabric, "where": where, "hosts": hosts}
    config = runner_config(runner, _given(flags, options or []))
    running = config.create(Home.from_environment().root)
    try:
        target = config.lowering()
        runnable = load_runnable(file, None if spec is None else load_topology(spec), target)
        topology, program = runnable.topology, runnable.program
        others = calibration_programs(program, topology, target.target) if wants_calibration else {}
        runnables = {file: runnable, **_reference_program(reference, file, topology, target)}
        programs = {**{name: one.program for name, one in runnables.items()}, **others}
        settings = {name: one.settings for name, one in runnables.items() if one.settings is not None}
        library = () if reference is None or not reference.startswith(LIBRARY) else (reference.removeprefix(LIBRARY),)
        request = RunRequest(topology, programs, sizes_bytes, repeats, 1, timeout, dtype, seed, library, settings)
        outcome = _measured(running, request, goal)
    finally:
        running.close()
    if isinstance(outcome, RunFailure):
        print_failure(runner, outcome, as_json)
    calibration = None
    if wants_calibration:
        calibration = calibrate(observations_of(outcome.measurement, programs, topology), topology.bandwidth_unit)
    print_report(file, program, outcome, reference, calibration, as_json)


def _goal(precision: str | None, budget: str | None, reference: str | None) -> Goal | None:
    if precision is None:
        if budget is not None:
            raise InvalidInput("a budget is for what --precision costs", budget, "add --precision 2%, or use --repeats")
        return None
    return Goal(parse_precision(precision), reference, *(() if budget is None else parse_budget(budget)))


def _measured(runner: Runner, request: RunRequest, goal: Goal | None) -> AdaptiveMeasurement | RunFailure:
    return measure_once(runner, request) if goal is None else measure_until(runner, request, goal, time.monotonic)


def _given(flags: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    """Return the options of the runner: those of --set, over which `flags` go that were given."""
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
