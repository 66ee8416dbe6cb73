"""From measurements to a tuning table: the fastest program at each size, the library's own where none is faster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from chorale.experiments.job_demo.programs import Built, Measured
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.synth.topology.topology import Topology
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP

_IN_THE_JOB = ("local",)
"""The runner whose library serves a job without a program: Gloo."""


def make_table(topology: Topology, parts: Sequence[tuple[Measured, Sequence[Built]]]) -> Table:
    """Return the table for all ranks in their order.

    parts: for each collective its measurements and programs
    """
    entries = [entry for measured, built in parts for entry in _entries(measured, built)]
    named = {entry.program for entry in entries}
    programs = {one.entry.digest: one.entry for _, built in parts for one in built if one.entry.digest in named}
    facts = {"spec": topology.spec, "id": topology.id}
    return Table(facts, topology.compute_count, tuple(entries), programs, {"made by": "demo-job"})


def _entries(measured: Measured, built: Sequence[Built]) -> Iterator[JobEntry]:
    """Yield one entry for each measured size; between two sizes the border is their geometric mean."""
    digests = {one.name: one.entry.digest for one in built}
    sizes = sorted(next(iter(measured.times_us.values())))
    borders = [math.isqrt(one * other) for one, other in pairwise(sizes)]
    for size, first, last in zip(sizes, [0, *(border + 1 for border in borders)], [*borders, None], strict=True):
        program, library = measured.best_program(size), measured.best_library(size, _IN_THE_JOB)
        faster = library is None or library[1] >= MIN_SPEEDUP * program[1]
        facts: dict[str, object] = {"size_bytes": size, "time_us": program[1]}
        facts |= {} if library is None else {"library": library[0], "library_us": library[1]}
        digest = digests[program[0]] if faster else None
        yield JobEntry(measured.collective, ANY_DTYPE, None, None, first, last, digest, facts)
