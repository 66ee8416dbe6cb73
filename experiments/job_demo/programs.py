"""Programs of several methods for the collectives of a job, measured beside the libraries on the job's fabric."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chorale.job.table.making import table_program
from chorale.job.table.model import TableProgram
from chorale.runners.api.base import LIBRARY, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology

_CANDIDATES = (("bfb", None), ("bfb", 2), ("swing-latency", None), ("recursive-doubling", None))
"""Methods, and chunks per shard (None: as few as reach the optimum): by loads of links, and by steps."""

_TIMEOUT_S = 120.0
TARGET = "oneccl-xml"


@dataclass(frozen=True, slots=True)
class Built:
    """A program, ready for the runner and for a table."""

    name: str
    program: Program
    entry: TableProgram


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds, medians, of every program and every library algorithm (`library:NAME`) at each size in bytes."""

    collective: str
    times_us: Mapping[str, Mapping[int, float]]

    def best_program(self, size_bytes: int) -> tuple[str, float]:
        """Return the fastest program at a size, and its time."""
        times = [(sizes[size_bytes], name) for name, sizes in self.times_us.items() if not name.startswith(LIBRARY)]
        return min(times)[1], min(times)[0]

    def best_library(self, size_bytes: int, runners: Sequence[str]) -> tuple[str, float] | None:
        """Return the fastest algorithm of the libraries of `runners`, and its time; None if none was measured."""
        begins = tuple(f"{LIBRARY}{runner}:" for runner in runners)
        times = [(sizes[size_bytes], name) for name, sizes in self.times_us.items() if name.startswith(begins)]
        return (min(times)[1], min(times)[0]) if times else None


def build_programs(topology: Topology, collective: str) -> list[Built]:
    """Return the programs for `collective`, without those that a method cannot make and without duplicates."""
    programs: dict[str, Built] = {}
    for method, chunks in _CANDIDATES:
        options = Options(chunks)
        source = ScheduleRequest(topology, parse_collective(collective), method, options)
        built = build(BuildRequest(source, LoweringOptions(TARGET)))
        if isinstance(built, BuildResult) and isinstance(built.program, Program):
            entry = table_program(built.program_text.encode(), TARGET, method, {"chunks": chunks})
            name = method if chunks is None else f"{method} chunks={chunks}"
            programs.setdefault(entry.digest, Built(name, built.program, entry))
    return list(programs.values())


def measure(
    topology: Topology, fabric: EmulatedFabric, home: Path, built: Sequence[Built], sizes: Sequence[int], repeats: int
) -> tuple[Measured, list[str]]:
    """Return times on `fabric`, of the programs and of Gloo's, MPI's and oneCCL's algorithms, and what is missing.

    CheckFailed where the programs themselves cannot be measured.
    """
    collective = built[0].program.collective.name.value
    times: dict[str, dict[int, float]] = {}
    missing = []
    for runner in ("local", "mpi", "oneccl"):
        programs = built if runner == "local" else built[:1]
        outcome = _outcome(runner, topology, fabric, home, programs, sizes, repeats)
        if isinstance(outcome, RunFailure):
            missing.append(f"{runner}: {outcome.kind}: {outcome.message}")
            if runner == "local":
                raise CheckFailed("programs must run on the fabric", missing[-1], "see `chorale doctor`")
        else:
            times |= dict(_times(outcome, runner, sizes))
    return Measured(collective, times), missing


def _outcome(
    name: str,
    topology: Topology,
    fabric: EmulatedFabric,
    home: Path,
    built: Sequence[Built],
    sizes: Sequence[int],
    repeats: int,
) -> Outcome:
    collective = built[0].program.collective.name.value
    runner = create_runner(name, {"fabric": fabric.name, "where": "fabric"}, home)
    programs = {one.name: one.program for one in built}
    try:
        library = runner.library(collective)
        return runner.submit(RunRequest(topology, programs, tuple(sizes), repeats, 1, _TIMEOUT_S, library=library))
    finally:
        runner.close()


def _times(outcome: Measurement, runner: str, sizes: Sequence[int]) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield the medians by name; of other runners than the local one only those of their libraries."""
    for name, results in outcome.results.items():
        if runner == "local" or name.startswith(LIBRARY):
            key = f"{LIBRARY}{runner}:{name.removeprefix(LIBRARY)}" if name.startswith(LIBRARY) else name
            medians = [statistics.median(each.times_s) * 1e6 for each in results]
            yield key, dict(zip(sizes, medians, strict=True))
