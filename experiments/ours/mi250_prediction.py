"""How far simulated times are from those that others measured: MSCCL programs on sixteen MI250 GPUs."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from chorale.experiments.framework.experiment import Column, Experiment, Row, columns
from chorale.experiments.framework.plots import SIZE, Chart, Point
from chorale.runners.api.units import format_size
from chorale.runners.recorded.table import MI250_SOURCE, mi250_table
from chorale.runners.simulated.calibration import Calibration, Observation, TimeTerms, calibrate
from chorale.runners.simulated.runner import buffer_splits
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from chorale.synth.topology.spec import parse_topology

_DATA = files("chorale.experiments") / "data"
FABRIC = "mi250half:2"
MI250_PROGRAMS = {
    "mi250-allgather": "amd_allgather_half_split_k1_inst1",
    "mi250-allreduce": "amd_allreduce_half_split_k1_inst2",
    "mi250-reduce-scatter": "amd_reduceScatter_half_split_k2_inst1",
}
"""Our names of programs, and those of the schedules in the record."""

BUFFERS_BYTES = (2**20, 2**18, 2**23)
SIZES_BYTES = tuple(4**power for power in range(6, 16))


@dataclass(frozen=True, slots=True)
class Mi250Run:
    """A program in place at a size, with buffers of connections of a size, and the time that it took."""

    program: str
    buffer_bytes: int
    size_bytes: int
    time_us: float


def mi250_runs() -> tuple[Mi250Run, ...]:
    """Return the runs of our programs with three sizes of buffers, at every other size from 4 KiB to 1 GiB."""
    table = mi250_table()
    made = {
        (one.origin.schedule, one.buffer_bytes): one
        for collective in table.collectives("mi250_8+8")
        for one in table.configurations("mi250_8+8", collective)
        if one.in_place
    }
    return tuple(
        Mi250Run(program, buffer_bytes, size_bytes, table.times_s(made[schedule, buffer_bytes], size_bytes)[0] * 1e6)
        for program, schedule in MI250_PROGRAMS.items()
        for buffer_bytes in BUFFERS_BYTES
        for size_bytes in SIZES_BYTES
    )


def mi250_program(name: str) -> Program:
    """Return the program that was measured under `name`."""
    return lift(gzip.decompress((_DATA / f"{name}.xml.gz").read_bytes()))


FITTED_BUFFER_BYTES = 2**20
"""Only runs with these buffers are in the fit; the others test what the model says about buffers."""
MAX_ERROR = 0.4
LARGE_BYTES, MAX_LARGE_ERROR = 2**28, 0.25

NOTICEABLE_ERROR = 0.1
SHORT_PIPELINE = "blind: few slices flow, and what a GPU does between receiving and sending is not in the model"
OTHER_BUFFERS = "blind: the cost of a loop over a buffer is taken as alpha, whatever the buffer"
SIMILAR_PROGRAMS = "the other two programs have equally many messages: they cannot tell overhead from the constant"


def _rows(fitted_only: bool) -> list[Row]:
    runs = [run for run in mi250_runs() if not fitted_only or run.buffer_bytes == FITTED_BUFFER_BYTES]
    observations = _observations(runs)
    fitted = [one for run, one in zip(runs, observations, strict=True) if run.buffer_bytes == FITTED_BUFFER_BYTES]
    everything = calibrate(fitted, "GB/s")
    without = {
        name: calibrate([one for one in fitted if one.program != name], "GB/s")
        for name in {run.program for run in runs}
    }
    return [_row(run, one, everything, without[run.program]) for run, one in zip(runs, observations, strict=True)]


def _observations(runs: Sequence[Mi250Run]) -> list[Observation]:
    topology = parse_topology(FABRIC)
    programs = {name: mi250_program(name) for name in sorted({run.program for run in runs})}
    known: dict[tuple[str, int], TimeTerms] = {}
    found = []
    for run in runs:
        program = programs[run.program]
        chunk_bytes = run.size_bytes / program.chunks
        loops, slices = buffer_splits(chunk_bytes, run.buffer_bytes)
        if (run.program, loops) not in known:
            known[run.program, loops] = TimeTerms.of(program, topology, loops, slices)
        found.append(Observation(run.program, known[run.program, loops], chunk_bytes, run.time_us / 1e6))
    return found


def _row(run: Mi250Run, one: Observation, everything: Calibration, without: Calibration) -> Row:
    predicted_us, unseen_us = everything.seconds(one) * 1e6, without.seconds(one) * 1e6
    error, unseen = predicted_us / run.time_us - 1, unseen_us / run.time_us - 1
    most = MAX_LARGE_ERROR if run.size_bytes >= LARGE_BYTES else MAX_ERROR
    return {
        "program": run.program,
        "buffer_bytes": run.buffer_bytes,
        "size_bytes": run.size_bytes,
        "measured_us": run.time_us,
        "predicted_us": predicted_us,
        "error": error,
        "unseen_error": unseen,
        "holds": abs(error) <= most,
        "reason": _reason(run, error, unseen),
    }


def _reason(run: Mi250Run, error: float, unseen: float) -> str | None:
    if abs(unseen) > MAX_ERROR >= abs(error):
        return SIMILAR_PROGRAMS
    if abs(error) <= NOTICEABLE_ERROR:
        return None
    return OTHER_BUFFERS if run.size_bytes >= LARGE_BYTES else SHORT_PIPELINE


def _points(rows: Sequence[Row]) -> Iterator[Point]:
    for row in rows:
        for name in ("measured", "predicted"):
            line = f"buffer {format_size(row['buffer_bytes'])}, {name}"
            yield row["program"], line, row["size_bytes"], row[f"{name}_us"]


EXPERIMENT = Experiment(
    name="mi250-prediction",
    question="How far are simulated times from those that MI250 GPUs took, with alpha, overhead and bandwidth fitted?",
    source=MI250_SOURCE,
    columns=columns(
        "program",
        Column("buffer", lambda row: format_size(row["buffer_bytes"])),
        Column("size", lambda row: format_size(row["size_bytes"])),
        "measured us=measured_us:.1f, predicted us=predicted_us:.1f, error=error:+.0%",
        "not in the fit=unseen_error:+.0%, reason",
    ),
    cases=[False],  # whether only runs in the fit count: a fit needs all of them
    quick=[True],
    evaluate=_rows,
    plot=Chart(_points, SIZE, "us"),
)
