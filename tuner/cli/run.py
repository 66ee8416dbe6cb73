"""`chorale run`: execute a schedule or a program, check its results and time it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from runners.api import FailureKind, Measurement, RunFailure, RunRequest, SizeMeasurement, bus_factor
from runners.calibration import Calibration, calibrate, observations_of
from runners.registry import RUNNERS, create_runner
from runners.sizes import format_size, parse_sizes
from synth.errors import CheckFailed, InvalidInput
from synth.lowering.lift import lift_with_findings, violations_on
from synth.lowering.lower import lower
from synth.lowering.options import LoweringOptions
from synth.lowering.program import Program
from synth.topology.topology import Topology
from synth.verify.verify import verify
from tuner.cli.output import emit_json, people, print_error, results
from tuner.costs.calibration_programs import calibration_programs
from tuner.files import read_file
from tuner.home import Home
from tuner.schedule_files import SUFFIXES, load_schedule
from tuner.specs import load_topology

TARGET = "oneccl-xml"  # the dialect of programs that run on CPUs
UNAVAILABLE_EXIT_CODE = 3


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("run")(run)


def run(
    file: Annotated[str, typer.Argument(help="Schedule file (.parquet, .json) or program file (.xml).")],
    runner: Annotated[str, typer.Option(help=f"What executes it: {', '.join(RUNNERS)}.")],
    sizes: Annotated[str, typer.Option(help="Sizes of the whole vector: 64KiB, 1M,4M or 4KiB:1GiB:x4.")],
    spec: Annotated[str | None, typer.Option(help="The topology, for a program file.")] = None,
    link_mbps: Annotated[
        float | None, typer.Option(help="Rate of a link in Mbit/s; default: as the runner does.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repetitions per size.")] = 5,
    dtype: Annotated[str, typer.Option(help="Element type: float32, float64 or int32.")] = "float32",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a run counts as hung.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the data.")] = 0,
    wants_calibration: Annotated[
        bool, typer.Option("--calibrate", help="Fit latency, overhead and bandwidth, measuring a few more programs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Execute a schedule or program, check every element of every result, and time it.

    Example: chorale run torus.parquet --runner local --sizes 64KiB,1M --link-mbps 50
    """
    sizes_bytes = parse_sizes(sizes)
    options: dict[str, Any] = {} if link_mbps is None else {"link_mbps": link_mbps}
    if runner == "local":
        options["home"] = Home.from_environment().root
    running = create_runner(runner, options)
    try:
        topology, program = load_runnable(file, spec)
        others = calibration_programs(program, topology, TARGET) if wants_calibration else {}
        programs = {file: program, **others}
        request = RunRequest(topology, programs, sizes_bytes, repeats, 1, timeout, dtype, seed)
        outcome = running.submit(request)
    finally:
        running.close()
    if isinstance(outcome, RunFailure):
        _report_failure(runner, outcome, as_json)
    else:
        calibration = None
        if wants_calibration:
            calibration = calibrate(observations_of(outcome, programs, topology), topology.bandwidth_unit)
        _report(file, program, outcome, calibration, as_json)


def load_runnable(file: str, spec: str | None) -> tuple[Topology, Program]:
    """Return the topology and the checked program of a schedule file, or of a program file and `spec`."""
    given = None if spec is None else load_topology(spec)
    if Path(file).suffix in SUFFIXES:
        verified = verify(load_schedule(file))
        topology = verified.schedule.topology
        if given is not None and given.id != topology.id:
            raise InvalidInput(f"--spec must be the topology of the schedule, {topology.spec}", spec, "leave it out")
        return topology, lower(verified, LoweringOptions(TARGET))
    if given is None:
        raise InvalidInput("a program file needs the topology it runs on", file, "add --spec, such as --spec torus:4x4")
    lifted = lift_with_findings(read_file(file))
    for violation in violations_on(lifted, given):
        rule = f"a program must do what its collective says on the topology ({violation.rule})"
        raise CheckFailed(rule, violation.message, "see all of it with `chorale lift`")
    return given, lifted.program


def _report(
    file: str, program: Program, measurement: Measurement, calibration: Calibration | None, as_json: bool
) -> None:
    measured = measurement.results[file]
    for one in measured:
        if one.size_bytes != one.requested_bytes:
            people.print(
                f"{format_size(one.requested_bytes)} is rounded up to {one.size_bytes} bytes, "
                f"so that its elements fill {program.chunks} chunks"
            )
    if (warning := measurement.environment.get("warning")) is not None:
        people.print(f"warning: {warning}")
    rows = [_row(one, program) for one in measured]
    if as_json:
        document = {"runner": measurement.runner, "results": rows, "environment": dict(measurement.environment)}
        emit_json(document if calibration is None else document | {"calibration": calibration.to_json()})
        return
    results.print(_table(f"{file}: {program.collective} on {measurement.runner}", rows))
    if calibration is not None:
        results.print(_calibration_table(calibration))


def _row(measured: SizeMeasurement, program: Program) -> dict[str, Any]:
    algbw = measured.size_bytes / measured.median_s / 1e9
    return {
        "size_bytes": measured.size_bytes,
        "time_us_median": measured.median_s * 1e6,
        "time_us_iqr": measured.iqr_s * 1e6,
        "time_us_min": measured.min_s * 1e6,
        "repeats": len(measured.times_s),
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * bus_factor(program.collective.name, len(program.ranks)),
        "correct": measured.correct,
    }


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for heading in ("size", "median us", "IQR us", "min us", "algbw GB/s", "busbw GB/s", "every element right"):
        table.add_column(heading, justify="right")
    for row in rows:
        times = (f"{row[key]:.1f}" for key in ("time_us_median", "time_us_iqr", "time_us_min"))
        rates = (f"{row[key]:.4g}" for key in ("algbw_gb_per_s", "busbw_gb_per_s"))
        table.add_row(format_size(row["size_bytes"]), *times, *rates, "yes" if row["correct"] else "NO")
    return table


def _calibration_table(calibration: Calibration) -> Table:
    table = Table(title=f"calibration from {calibration.observations} measurements", show_header=False)
    table.add_row("constant", f"{calibration.constant_s * 1e6:.4g} us")
    table.add_row("alpha, for each message that must follow another", f"{calibration.alpha_s * 1e6:.4g} us")
    table.add_row("overhead, for each message of a rank", f"{calibration.overhead_s * 1e6:.4g} us")
    unit = "a link" if calibration.bandwidth_unit == "link" else f"1 {calibration.bandwidth_unit}"
    table.add_row(f"{unit} carries", f"{calibration.unit_bytes_per_s * 8 / 1e9:.4g} Gbit/s")
    table.add_row("relative error, mean and largest", f"{calibration.mean_error:.2%}, {calibration.max_error:.2%}")
    if calibration.unseen_error is not None:
        table.add_row("of programs that were left out of the fit", f"{calibration.unseen_error:.2%}")
    return table


def _report_failure(runner: str, failure: RunFailure, as_json: bool) -> None:
    print_error(f"{failure.kind}: {failure.message}")
    if as_json:
        facts = {"kind": failure.kind.value, "message": failure.message, "rank": failure.rank}
        places = [dict(zip(("rank", "block", "instruction"), place, strict=True)) for place in failure.blocked]
        environment = dict(failure.environment)
        emit_json(
            {"runner": runner, "results": [], "failure": {**facts, "blocked": places}, "environment": environment}
        )
    raise typer.Exit(UNAVAILABLE_EXIT_CODE if failure.kind is FailureKind.UNAVAILABLE else 1)
