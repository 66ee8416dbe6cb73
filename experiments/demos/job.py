"""`make demo-job`: record a training job's collectives, tune them on its network, and train with the table."""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from chorale.experiments.demos.ranks import run_ranks
from chorale.job.record import read_record
from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table, TableProgram
from chorale.job.table.verification import table_program
from chorale.runners.api.base import LIBRARY, RunFailure, RunRequest, bus_factor
from chorale.runners.api.registry import create_runner
from chorale.runners.fabric.fabric import EmulatedFabric, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.runners.measurement.machine import exclusive, load_average, machine_lock
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign_file import RecordedJob
from chorale.tuner.files.home import Home
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP

_CANDIDATES = (("bfb", None), ("bfb", 2), ("swing-latency", None), ("recursive-doubling", None))
"""Methods and chunks per shard (None: the fewest that are optimal): low link loads first, then few steps."""

_TIMEOUT_S = 120.0
TARGET = "oneccl-xml"


@dataclass(frozen=True, slots=True)
class Built:
    """A program with its name and its entry in a tuning table."""

    name: str
    program: Program
    entry: TableProgram


@dataclass(frozen=True, slots=True)
class Measured:
    """Median microseconds of every program and library algorithm (`library:NAME`) at each size in bytes."""

    collective: str
    times_us: Mapping[str, Mapping[int, float]]

    def best(self, size_bytes: int, runners: Sequence[str] = ()) -> tuple[float, str] | None:
        """Return the shortest time at a size in microseconds, and what took it; None if nothing was measured.

        runners: consider only the library algorithms of these runners; by default, consider only programs
        """
        begins = tuple(f"{LIBRARY}{runner}:" for runner in runners)
        times = [
            (sizes[size_bytes], name)
            for name, sizes in self.times_us.items()
            if (name.startswith(begins) if runners else not name.startswith(LIBRARY))
        ]
        return min(times, default=None)


def build_programs(topology: Topology, collective: str) -> list[Built]:
    """Return the different programs for `collective` that the methods can make."""
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
    """Return times on `fabric` for the programs and the algorithms of Gloo, MPI and oneCCL, and why any are missing.

    Raises:
        CheckFailed: if the programs themselves cannot be measured.
    """
    collective = built[0].program.collective.name.value
    times: dict[str, dict[int, float]] = {}
    missing = []
    for name in ("local", "mpi", "oneccl"):
        programs = {one.name: one.program for one in (built if name == "local" else built[:1])}
        with closing(create_runner(name, {"fabric": fabric.name, "where": "fabric"}, home)) as runner:
            library = runner.library(collective)
            request = RunRequest(topology, programs, tuple(sizes), repeats, 1, _TIMEOUT_S, library=library)
            outcome = runner.submit(request)
        if isinstance(outcome, RunFailure):
            missing.append(f"{name}: {outcome.kind}: {outcome.message}")
            if name == "local":
                raise CheckFailed("a program does not run on the fabric: {}", missing[-1], "see `chorale doctor`")
            continue
        for program, results in outcome.results.items():
            is_library = program.startswith(LIBRARY)
            if name == "local" or is_library:
                key = f"{LIBRARY}{name}:{program.removeprefix(LIBRARY)}" if is_library else program
                medians = [statistics.median(each.times_s) * 1e6 for each in results]
                times[key] = dict(zip(sizes, medians, strict=True))
    return Measured(collective, times), missing


_IN_THE_JOB = ("local",)
"""The runner whose library, Gloo, executes a job's collectives if there is no program."""


def make_table(topology: Topology, parts: Sequence[tuple[Measured, Sequence[Built]]]) -> Table:
    """Return the table for all ranks in their order, with one entry for each measured size.

    An entry is valid up to the geometric mean of its size and the next one.

    Args:
        topology: the network.
        parts: measurements and programs for each collective.
    """
    entries: list[JobEntry] = []
    for measured, built in parts:
        digests = {one.name: one.entry.digest for one in built}
        sizes = sorted(next(iter(measured.times_us.values())))
        ends = [math.isqrt(one * other) for one, other in pairwise(sizes)]
        for size, first, last in zip(sizes, [0, *(end + 1 for end in ends)], [*ends, None], strict=True):
            program, library = measured.best(size), measured.best(size, _IN_THE_JOB)
            assert program is not None
            faster = library is None or library[0] >= MIN_SPEEDUP * program[0]
            facts: dict[str, object] = {"size_bytes": size, "time_us": program[0]}
            facts |= {} if library is None else {"library": library[1], "library_us": library[0]}
            digest = digests[program[1]] if faster else None
            entries.append(JobEntry(measured.collective, ANY_DTYPE, None, None, first, last, digest, facts))
    named = {entry.program for entry in entries}
    programs = {one.entry.digest: one.entry for _, built in parts for one in built if one.entry.digest in named}
    network = {"spec": topology.spec, "id": topology.id}
    return Table(network, topology.compute_count, tuple(entries), programs, {"made by": "demo-job"})


Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Training:
    """A run of the training script: seconds per step, each rank's losses, and the job's report if there is one."""

    backend: str
    step_s: Sequence[float]
    losses: Sequence[Sequence[float]]
    report: Json | None = None


def size_rows(times: Sequence[Json], measured: Mapping[str, Measured], ranks: int) -> Iterator[Json]:
    """Yield a row for each recorded size, with the medians of a job that interleaves Gloo and Chorale.

    Rows also have the best time of MPI and oneCCL, measured by their runners; `library_us` is None if neither is
    available.

    Args:
        times: output of `collective_times.py`.
        measured: measurements by collective.
        ranks: number of ranks.
    """
    for row in times:
        gloo_us, chorale_us = (statistics.median(row["seconds"][name]) * 1e6 for name in ("gloo", "chorale"))
        size_bytes, collective = row["size_bytes"], row["collective"]
        library = measured[collective].best(size_bytes, ("mpi", "oneccl"))
        moved = size_bytes * bus_factor(collective, ranks) / 1e3  # kilobytes; kB divided by µs is GB/s
        yield {
            "collective": collective,
            "size_bytes": size_bytes,
            "gloo_us": gloo_us,
            "library_us": library and library[0],
            "chorale_us": chorale_us,
            "library": library and library[1],
            "gloo_busbw_gb_per_s": moved / gloo_us,
            "chorale_busbw_gb_per_s": moved / chorale_us,
        }


def part(trainings: Mapping[str, Training], rows: Sequence[Json]) -> Json:
    """Return the results of the demo for one kind of training, DDP or FSDP2."""
    gloo, chorale = trainings["gloo"], trainings["chorale"]
    assert chorale.report is not None
    return {
        "sizes": list(rows),
        "step_s": {name: statistics.median(training.step_s[1:]) for name, training in trainings.items()},
        "steps_s": {name: list(training.step_s) for name, training in trainings.items()},
        "losses_equal": gloo.losses == chorale.losses,
        "largest_loss_difference": max(
            abs(one - other)
            for of_gloo, of_chorale in zip(gloo.losses, chorale.losses, strict=True)
            for one, other in zip(of_gloo, of_chorale, strict=True)
        ),
        "fallbacks": chorale.report["fallbacks"],
        "programs": chorale.report["programs"],
        "communication_speedup": sum(row["gloo_us"] for row in rows) / sum(row["chorale_us"] for row in rows),
        "slower_at": [row["size_bytes"] for row in rows if row["chorale_us"] > row["gloo_us"]],
    }


SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "demo_job"
_LIMIT_S = 240.0
_RECORDED_STEPS = 2


_KINDS = {"ddp": "DDP", "fsdp2": "FSDP2"}
"""How the model is distributed over the ranks, and its name in pictures."""


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo on a running fabric.

    home:    folder for tables and runners' files
    steps:   training steps, at least two
    repeats: number of repetitions of each collective
    """

    topology: Topology
    fabric: EmulatedFabric
    home: Path
    steps: int
    repeats: int

    def show(self, kind: str) -> Json:
        table = self.home / f"demo-job-{kind}.table"
        job = self._recorded(kind)
        parts, missing = self._measured(job)
        table.write_bytes(table_bytes(make_table(self.topology, parts)))
        trainings = {
            "gloo": self._train(kind, "gloo", {}),
            "chorale": self._train(kind, "chorale", {"CHORALE_TABLE": str(table)}),
        }
        times = self._times(job, table)
        measured = {each.collective: each for each, _ in parts}
        figures = part(trainings, list(size_rows(times, measured, self.topology.compute_count)))
        _say(f"{kind}: a step takes {figures['step_s']['gloo']:.3g} s with gloo, {figures['step_s']['chorale']:.3g} s")
        return {**figures, "table": str(table), "missing": missing, "load_average": load_average()}

    def _recorded(self, kind: str) -> RecordedJob:
        """Run a few training steps without a table and return the collectives that the job called."""
        path = self.home / f"demo-job-{kind}.record.json"
        self._train(kind, "chorale", {"CHORALE_RECORD": str(path)}, _RECORDED_STEPS)
        return RecordedJob.of(read_record(path))

    def _measured(self, job: RecordedJob) -> tuple[list[tuple[Measured, Sequence[Built]]], list[str]]:
        parts: list[tuple[Measured, Sequence[Built]]] = []
        missing: list[str] = []
        for collective, seconds in job.seconds.items():
            built = build_programs(self.topology, collective)
            _say(f"measuring {len(built)} programs for {collective} at {len(seconds)} sizes")
            measured, absent = measure(self.topology, self.fabric, self.home, built, sorted(seconds), self.repeats)
            parts.append((measured, built))
            missing += [f"{collective}: {text}" for text in absent]
        return parts, missing

    def _train(self, kind: str, backend: str, environment: Mapping[str, str], steps: int | None = None) -> Training:
        _say(f"training ({kind}) with {backend}, {' '.join(environment) or 'as it is'}")
        with tempfile.TemporaryDirectory() as folder:
            output, report = Path(folder) / "training.json", Path(folder) / "report.json"
            options = ["--backend", backend, "--sharding", kind, "--steps", str(steps or self.steps)]
            arguments = [*options, "--output", str(output)]
            variables = {**environment, "CHORALE_REPORT": str(report)}
            run_ranks(self.topology, self.fabric, SCRIPTS / "train.py", arguments, _LIMIT_S, variables)
            figures = json.loads(output.read_text())
            counts = json.loads(report.read_text()) if report.exists() else None
        return Training(backend, figures["step_s"], figures["losses"], counts)

    def _times(self, job: RecordedJob, table: Path) -> list[dict[str, Any]]:
        """Repeat all recorded calls in one job that alternates between Gloo and Chorale; return their times."""
        calls = [(collective, size) for collective, seconds in job.seconds.items() for size in sorted(seconds)]
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "times.json"
            arguments = ["--calls", json.dumps(calls), "--repeats", str(self.repeats), "--output", str(output)]
            script, variables = SCRIPTS / "collective_times.py", {"CHORALE_TABLE": str(table)}
            run_ranks(self.topology, self.fabric, script, arguments, _LIMIT_S, variables)
            times: list[dict[str, Any]] = json.loads(output.read_text())
        return times


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def step_picture(document: Mapping[str, Any], path: Path) -> None:
    """Draw how many seconds a training step takes with each backend, for every kind of training in `document`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - it takes half a second to import

    parts = {document["training"]: document} | {name: document[name] for name in _KINDS if name in document}
    figure = Figure(figsize=(6.4, 0.9 + 0.9 * len(parts)), layout="constrained")
    axes = figure.add_subplot()
    for row, figures in enumerate(parts.values()):
        for shift, backend, colour in ((0.2, "gloo", "#9aa5b1"), (-0.2, "chorale", "#2b6cb0")):
            seconds = figures["step_s"][backend]
            label = backend if row == 0 else None
            axes.barh(row - shift, seconds, 0.36, color=colour, label=label)
            axes.text(seconds, row - shift, f" {seconds:.2f} s", va="center", fontsize=9)
    axes.set_yticks(range(len(parts)), [_KINDS[name] for name in parts])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds per training step, {document['network']}, links of {document['link_mbps']} Mbit/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.margins(x=0.12)
    figure.savefig(path, metadata={"Date": None})


SPEC = "hypercube:3"
_PATIENCE_S = 600.0


def main(arguments: list[str]) -> int:
    """Run the demo and write its results to `demo-job.json` in the data folder; return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-job", description=__doc__)
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=6, help="of training, with each backend")
    parser.add_argument("--repeats", type=int, default=7, help="of each collective")
    parser.add_argument("--only", choices=_KINDS, help="only one kind of training")
    parser.add_argument("--picture", type=Path, help="where to draw the step times (.svg)")
    options = parser.parse_args(arguments)
    topology, home = parse_topology(SPEC), Home.from_environment()
    try:
        root = home.create(home.root)
        with exclusive(machine_lock(), _PATIENCE_S):
            fabric = bring_up(topology, Fraction(options.link_mbps), f"demo-job-{os.getpid()}")
            try:
                demo = Demo(topology, fabric, root, options.steps, options.repeats)
                parts = {kind: demo.show(kind) for kind in ([options.only] if options.only else _KINDS)}
            finally:
                take_down(fabric)
    except ChoraleError as error:
        sys.stderr.write(f"demo-job: {error}\n")
        return error.exit_code
    first, *others = parts
    facts = {"network": SPEC, "link_mbps": options.link_mbps, "training": first}
    document = {**facts, **parts[first], **{name: parts[name] for name in others}}
    path = root / "demo-job.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"figures: {path}")
    if options.picture is not None:
        step_picture(document, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
