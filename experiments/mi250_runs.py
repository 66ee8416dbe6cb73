"""Measurements that others made on MI250 GPUs, of programs that are at hand."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.resources import files

from chorale.runners.recorded.table import MI250_SOURCE, mi250_table
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift

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


def mi250_source() -> str:
    """Return who measured what, and where it was published."""
    return MI250_SOURCE


def mi250_program(name: str) -> Program:
    """Return the program that was measured under `name`."""
    return lift(gzip.decompress((_DATA / f"{name}.xml.gz").read_bytes()))
