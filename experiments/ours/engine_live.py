"""How close the engine comes to what links allow, and to the libraries' own algorithms, on emulated fabrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.live import LiveRun, measure_on_fabric
from chorale.runners.api.base import LIBRARY, Measurement, RunFailure, RunRequest
from chorale.runners.api.programs import busiest_share
from chorale.runners.api.units import format_size
from chorale.runners.fabric.links import WIRE_MTU_BYTES, carried_bytes
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildFailure, BuildRequest, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology

_METHODS = ("bfb", "recursive-doubling", "swing-latency")
"""By loads of links, and by steps: for small sizes."""

_TIMEOUT_S = 300.0
_SIZES, _QUICK_SIZES = tuple(2**power for power in range(12, 25, 2)), (2**16, 2**18)
_LARGEST_BYTES = {25: 2**20, 100: 2**22, 400: 2**24}
"""By rate: what takes no longer than a fraction of a second."""
_REPEATS, _QUICK_REPEATS = 7, 3


_RUNNERS: dict[str, tuple[str, dict[str, str]]] = {
    "local": ("local", {}),
    "mpi over tcp": ("mpi", {"transport": "tcp"}),
    "mpi": ("mpi", {}),
    "oneccl": ("oneccl", {}),
}


@dataclass(frozen=True, slots=True)
class LiveCase:
    """Allreduce on one fabric by one runner, beside all that the library below it has."""

    spec: str
    link_mbps: int
    runner: str
    sizes: tuple[int, ...]
    repeats: int


def _cases(quick: bool) -> Sequence[LiveCase]:
    sizes, repeats = (_QUICK_SIZES, _QUICK_REPEATS) if quick else (_SIZES, _REPEATS)
    specs = ("hypercube:3",) if quick else ("hypercube:3", "bipartite:4", "torus:3x3")
    rates = (25,) if quick else (25, 100, 400)
    runners = ("local",) if quick else tuple(_RUNNERS)
    return [
        LiveCase(spec, rate, runner, tuple(size for size in sizes if size <= _LARGEST_BYTES[rate]), repeats)
        for spec in specs
        for rate in rates
        for runner in runners
    ]


def _answer(case: LiveCase) -> list[Row]:
    topology, programs = parse_topology(case.spec), _programs(case.spec)
    request = RunRequest(topology, programs, case.sizes, case.repeats, timeout_s=_TIMEOUT_S)
    live = measure_on_fabric(request, case.link_mbps, *_RUNNERS[case.runner])
    if isinstance(live.outcome, RunFailure):
        reason = f"{live.outcome.kind}: {live.outcome.message}"
        return [{**_identity(case), "reason": reason, "holds": False}]
    return list(_rows(case, live, live.outcome, busiest_share(programs["bfb"], topology)))


def _programs(spec: str) -> dict[str, Program]:
    """Return the program of every method that has one for this network."""
    programs = {}
    for method in _METHODS:
        source = ScheduleRequest(parse_topology(spec), ALLREDUCE, method, Options(), 1)
        result = build(BuildRequest(source, LoweringOptions("oneccl-xml", in_place=False)))
        if not isinstance(result, BuildFailure) and isinstance(result.program, Program):
            programs[method] = result.program
    return programs


def _identity(case: LiveCase) -> Row:
    ranks = parse_topology(case.spec).compute_count
    return {"nodes": ranks, "spec": case.spec, "link_mbps": case.link_mbps, "runner": case.runner}


def _rows(case: LiveCase, live: LiveRun, measurement: Measurement, busiest: Fraction) -> Iterator[Row]:
    """Yield a row for each size. What links allow counts the headers of full frames, not acknowledgements."""
    names = [name for name in measurement.results if not name.startswith(LIBRARY)]
    for index, size in enumerate(case.sizes):
        times = {name: sizes[index] for name, sizes in measurement.results.items()}
        allowed_s = carried_bytes(int(busiest * times["bfb"].size_bytes), WIRE_MTU_BYTES) * 8 / (case.link_mbps * 1e6)
        engine = min(names, key=lambda name: times[name].median_s)
        own = times[engine]
        best = min((name for name in times if name not in names), key=lambda name: times[name].median_s, default=None)
        yield {
            **_identity(case),
            "size_bytes": size,
            "program": engine,
            "time_us": own.median_s * 1e6,
            "efficiency": allowed_s / own.median_s,
            "best_library": best,
            "best_library_over_engine": None if best is None else times[best].median_s / own.median_s,
            "spread": own.iqr_s / own.median_s,
            "load_average": measurement.environment.get("load_average"),
            "reason": live.substitution,
            "holds": best is None or times[best].median_s >= own.median_s,
        }


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.ours.plots import plot_efficiency  # noqa: PLC0415 (matplotlib is slow)

    plot_efficiency([row for row in rows if "efficiency" in row], path)


def _ratio(row: Row) -> str:
    ratio = row.get("best_library_over_engine")
    return "" if ratio is None else f"{ratio:.2f} ({row['best_library']})"


EXPERIMENT = Experiment(
    name="engine-live",
    question="How close does the engine come to what links allow, and is it ever behind a library's own algorithms?",
    source="ours; allreduce on honest emulated links, interleaved with the built-ins of gloo, MPI and oneCCL",
    columns=(
        Column("network", lambda row: row["spec"]),
        Column("Mbit/s", lambda row: str(row["link_mbps"])),
        Column("runner", lambda row: row["runner"]),
        Column("size", lambda row: format_size(row["size_bytes"]) if "size_bytes" in row else ""),
        Column("program", lambda row: row.get("program", "")),
        Column("us", lambda row: f"{row['time_us']:.0f}" if "time_us" in row else ""),
        Column("of what links allow", lambda row: f"{row['efficiency']:.2f}" if "efficiency" in row else ""),
        Column("best built-in over it", _ratio),
        Column("spread", lambda row: f"{row['spread']:.0%}" if "spread" in row else ""),
        Column("load", lambda row: f"{row['load_average']:.1f}" if "load_average" in row else ""),
        Column("reason", lambda row: row.get("reason") or ""),
    ),
    cases=_cases,
    evaluate=_answer,
    alone=True,
    plot=_plot,
)
