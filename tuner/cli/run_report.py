"""What `chorale run` prints: the measurement and what is to be said of it, or why there is none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NoReturn

import typer

from chorale.runners.api.base import FailureKind, Measurement, RunFailure, SizeMeasurement, bus_factor
from chorale.runners.api.units import format_size, format_us
from chorale.runners.measurement.driver import AdaptiveMeasurement, LinkLimit
from chorale.runners.measurement.precision import SizeAnalysis, analyse
from chorale.runners.simulated.calibration import Calibration
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.switch_processes import collective_of_ranks, rank_count
from chorale.tuner.cli.output import emit_json, people, print_error, results
from chorale.tuner.launch.executions import execution_line
from chorale.tuner.reports.lazy_rich import Table
from chorale.tuner.reports.quantities import speed_text

UNAVAILABLE_EXIT_CODE = 3


def print_report(
    file: str,
    program: AnyProgram,
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
    results.print(_table(f"{file}: {collective_of_ranks(program)} on {measurement.runner}", rows))
    if limit is not None:
        results.print(_of_what_links_allow(rows[-1], limit, measurement.environment["link_mbps"]))
    if reference is not None:
        results.print("\n".join(map(_comparison, rows)))
    for row in rows:
        if not row.get("precision", {"met": True})["met"]:
            results.print(_missed_precision(row))
    if calibration is not None:
        results.print(_calibration_table(calibration))
    for execution in executions or ():
        results.print(execution_line(execution))


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
    file: str, program: AnyProgram, measurement: Measurement, analyses: tuple[SizeAnalysis, ...], reference: str | None
) -> None:
    pieces = " in pieces of 16 bytes" if program.one_sided else ""
    for size, analysis in zip(measurement.results[file], analyses, strict=True):
        if size.size_bytes != size.requested_bytes:
            people.print(
                f"{format_size(size.requested_bytes)} is rounded up to {size.size_bytes} bytes, "
                f"so that its elements fill {program.chunks} chunks{pieces}"
            )
        if analysis.drift.is_flagged:
            change = f"{analysis.drift.relative_change:+.0%}"
            people.print(f"warning: {reference or file} drifted by {change} while {format_size(size.size_bytes)} ran")
    for key in ("memory_channels", "port_channels", "switch_channels", "switches"):
        if (stand_in := measurement.environment.get(key)) is not None:
            people.print(f"{key.replace('_', ' ')}: {stand_in}")
    if (warning := measurement.environment.get("warning")) is not None:
        people.print(f"warning: {warning}")


def _row(measured: SizeMeasurement, program: AnyProgram, limit: LinkLimit | None) -> dict[str, Any]:
    algbw = measured.size_bytes / measured.median_s / 1e9
    of_limit = {} if limit is None else {"efficiency": limit.efficiency(measured.median_s, measured.size_bytes)}
    return {
        "size_bytes": measured.size_bytes,
        "time_us_median": measured.median_s * 1e6,
        "time_us_iqr": measured.iqr_s * 1e6,
        "time_us_min": measured.min_s * 1e6,
        "repeats": len(measured.times_s),
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * bus_factor(collective_of_ranks(program).name, rank_count(program)),
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


def _of_what_links_allow(row: dict[str, Any], limit: LinkLimit, link_mbps: Any) -> str:
    """Say why bandwidths are low where links are paced: what they allow, and how near the last size came to it."""
    allowed, size = 1 / limit.seconds_per_byte / 1e9, format_size(row["size_bytes"])
    reached = f"{size} came to {row['efficiency']:.0%} of that"
    return f"links of {float(Fraction(str(link_mbps))):g} Mbit/s allow an algbw of {allowed:.3g} GB/s; {reached}"


_RIGHT = {True: "yes", False: "NO", None: "unchecked"}


def _short(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}"


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
