"""What `chorale run` says: a table for people or the JSON of the contract, of results or of a failure."""

from __future__ import annotations

from typing import Any, NoReturn

import typer
from rich.table import Table

from chorale.runners.api.base import FailureKind, Measurement, RunFailure, SizeMeasurement, bus_factor
from chorale.runners.api.units import format_size, format_us
from chorale.runners.measurement.analysis import SizeAnalysis, analyse
from chorale.runners.measurement.driver import AdaptiveMeasurement
from chorale.runners.simulated.calibration import Calibration
from chorale.synth.programs.program import Program
from chorale.tuner.cli.output import emit_json, people, print_error, results

UNAVAILABLE_EXIT_CODE = 3


def print_report(
    file: str,
    program: Program,
    driven: AdaptiveMeasurement,
    reference: str | None,
    calibration: Calibration | None,
    as_json: bool,
) -> None:
    """Print the results of `file`, compared with those of `reference` where there is one."""
    measurement, found = driven.measurement, analyse(driven.measurement, file, reference)
    _warn(file, program, measurement, found, reference)
    rows = [
        _row(one, program) | analysis.to_json(reference) | {"stopped": stop.value}
        for one, analysis, stop in zip(measurement.results[file], found, driven.stop_reasons, strict=True)
    ]
    if as_json:
        document = {"runner": measurement.runner, "results": rows, "environment": dict(measurement.environment)}
        if reference is not None:
            others = [_row(one, program) for one in measurement.results[reference]]
            document["reference"] = {"name": reference, "results": others}
        emit_json(document if calibration is None else document | {"calibration": calibration.to_json()})
        return
    results.print(_table(f"{file}: {program.collective} on {measurement.runner}", rows))
    if reference is not None:
        results.print("\n".join(map(_comparison, rows)), soft_wrap=True)
    if calibration is not None:
        results.print(_calibration_table(calibration))


def print_failure(runner: str, failure: RunFailure, as_json: bool) -> NoReturn:
    """Print why there are no results, and end with the exit code that says so."""
    print_error(f"{failure.kind}: {failure.message}")
    if as_json:
        facts = {"kind": failure.kind.value, "message": failure.message, "rank": failure.rank}
        places = [dict(zip(("rank", "block", "instruction"), place, strict=True)) for place in failure.blocked]
        environment = dict(failure.environment)
        emit_json(
            {"runner": runner, "results": [], "failure": {**facts, "blocked": places}, "environment": environment}
        )
    raise typer.Exit(UNAVAILABLE_EXIT_CODE if failure.kind is FailureKind.UNAVAILABLE else 1)


def _warn(
    file: str, program: Program, measurement: Measurement, found: tuple[SizeAnalysis, ...], reference: str | None
) -> None:
    for one, analysis in zip(measurement.results[file], found, strict=True):
        if one.size_bytes != one.requested_bytes:
            people.print(
                f"{format_size(one.requested_bytes)} is rounded up to {one.size_bytes} bytes, "
                f"so that its elements fill {program.chunks} chunks"
            )
        if analysis.drift.is_flagged:
            change = f"{analysis.drift.relative_change:+.0%}"
            people.print(f"warning: {reference or file} drifted by {change} while {format_size(one.size_bytes)} ran")
    if (warning := measurement.environment.get("warning")) is not None:
        people.print(f"warning: {warning}")


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
    for heading in ("size", "median us", "IQR us", "min us", "algbw GB/s", "busbw GB/s", "right"):
        table.add_column(heading, justify="right")
    for row in rows:
        times = (_short(row[key]) for key in ("time_us_median", "time_us_iqr", "time_us_min"))
        rates = (f"{row[key]:.3g}" for key in ("algbw_gb_per_s", "busbw_gb_per_s"))
        table.add_row(format_size(row["size_bytes"]), *times, *rates, "yes" if row["correct"] else "NO")
    return table


def _short(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}"


def _comparison(row: dict[str, Any]) -> str:
    ratio = row["ratio_to_reference"]
    interval = f"{ratio['low']:.3f} to {ratio['high']:.3f} with {ratio['confidence']:.0%}"
    size, stopped = format_size(row["size_bytes"]), f"{row['repeats']} repetitions, {row['stopped']}"
    return f"{size}: {ratio['median']:.3f} of the time of {ratio['reference']} ({interval}; {stopped})"


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
