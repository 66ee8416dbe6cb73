"""Explain why an execution took as long as it did: causes of delay on its critical path, and ranks that were late."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chorale.runners.api.base import ExecutionTrace, Measurement
from chorale.runners.api.units import format_size
from chorale.runners.measurement.critical_path import Cause, CriticalPath, time_by_cause
from chorale.runners.measurement.driver import model_of_run
from chorale.synth.errors import Unavailable
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology
from chorale.tuner.costs.pricing import simulate_program
from chorale.tuner.files.read_write import write_file
from chorale.tuner.plots.trace_events import trace_events


def report_executions(
    program: Program,
    topology: Topology,
    executions: Sequence[ExecutionTrace],
    measurement: Measurement,
    trace: Path | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each of `executions`; if `trace` is given, also write the executions to that file.

    If the environment of `measurement` contains the link rate, each row includes the time that a simulation predicts.
    Raises Unavailable if nothing was traced.
    """
    if not executions:
        rule = "the runner {} cannot trace programs"
        raise Unavailable(rule, measurement.runner, "use --runner local, mpi or oneccl, or leave --trace out")
    network = model_of_run(topology, measurement.environment.get("link_mbps"))
    predicted = [
        (None if network is None else simulate_program(program, topology, network, one.size_bytes, None))
        for one in executions
    ]
    pairs = list(zip(executions, predicted, strict=True))
    rows = [execution_row(program, one, None if model is None else model.end_s) for one, model in pairs]
    if trace is not None:
        write_file(trace, trace_events(program, pairs, rows).encode())
    return rows


def execution_row(program: Program, trace: ExecutionTrace, predicted_s: float | None) -> dict[str, Any]:
    """Return the report row of one traced execution. predicted_s: time in a simulation; None if unknown."""
    by_cause = time_by_cause(CriticalPath(program, trace).segments())
    latest = max(range(len(trace.ranks)), key=lambda rank: trace.ranks[rank].start_s)
    slowest = max(range(len(trace.ranks)), key=lambda rank: trace.ranks[rank].end_s)
    busiest = max(range(len(trace.ranks)), key=lambda rank: trace.ranks[rank].cpu_s)
    return {
        "size_bytes": trace.size_bytes,
        "time_us": trace.time_s * 1e6,
        "predicted_us": None if predicted_s is None else predicted_s * 1e6,
        "critical_path_us": {cause.name.lower(): by_cause[cause] * 1e6 for cause in Cause},
        "latest_start": {"rank": latest, "us": trace.ranks[latest].start_s * 1e6},
        "last_end": {"rank": slowest, "us": trace.ranks[slowest].end_s * 1e6},
        "most_processor_time": {"rank": busiest, "us": trace.ranks[busiest].cpu_s * 1e6},
    }


def execution_line(row: dict[str, Any]) -> str:
    total_us = sum(row["critical_path_us"].values()) or 1.0
    parts = [f"{cause.value} {row['critical_path_us'][cause.name.lower()] / total_us:.0%}" for cause in Cause]
    start, busy = row["latest_start"], row["most_processor_time"]
    predicted = "" if row["predicted_us"] is None else f", predicted {row['predicted_us']:.0f} us"
    return (
        f"{format_size(row['size_bytes'])}: {row['time_us']:.0f} us{predicted}; causes of delay: {', '.join(parts)}; "
        f"rank {start['rank']} began last, {start['us']:.0f} us late; "
        f"rank {busy['rank']} used most processor time, {busy['us']:.0f} us"
    )
