"""Measurements that others made on MI250 GPUs, and the programs that were measured."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from importlib.resources import files

from synth.lowering.lift import lift
from synth.lowering.program import Program

_DATA = files("experiments") / "data"
FABRIC = "mi250half:2"


@dataclass(frozen=True, slots=True)
class Mi250Run:
    """A row of a log: a program in place at a size, with buffers of connections of a size."""

    program: str
    buffer_bytes: int
    size_bytes: int
    time_us: float


def mi250_runs() -> tuple[Mi250Run, ...]:
    """Return all rows."""
    document = json.loads((_DATA / "mi250-runs.json").read_text())
    return tuple(Mi250Run(**row) for row in document["runs"])


def mi250_source() -> str:
    """Return who measured what, and where it was published."""
    return str(json.loads((_DATA / "mi250-runs.json").read_text())["source"])


def mi250_program(name: str) -> Program:
    """Return the program that was measured under `name`."""
    return lift(gzip.decompress((_DATA / f"{name}.xml.gz").read_bytes()))
