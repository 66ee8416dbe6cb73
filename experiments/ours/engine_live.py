"""How close the engine comes to what links allow, and to the libraries' own algorithms, on emulated fabrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.live import LiveRun, measure_on_fabric
from chorale.runners.api.base import LIBRARY, Measurement, RunFailure, RunRequest
from chorale.runners.api.units import format_size
from chorale.runners.fabric.link_shape import carried_bytes
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

_MTU_BYTES = 1500
_TIMEOUT_S = 300.0
_SIZES, _QUICK_SIZES = tuple(2**power for power in (12, 14, 16, 18, 20, 22)), (2**16, 2**18)
_REPEATS, _QUICK_REPEATS = 7, 3


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
    runners = ("local",) if quick else ("local", "mpi", "oneccl")
    return [LiveCase(spec, rate, runner, sizes, repeats) for spec in specs for rate in rates for runner in runners]


def _answer(case: LiveCase) -> list[Row]:
    topology = parse_topology(case.spec)
    built = _built(case.spec)
    request = RunRequest(topology, {"bfb": built.program}, case.sizes, case.repeats, timeout_s=_TIMEOUT_S)
    live = measure_on_fabric(request, case.link_mbps, case.runner)
    if isinstance(live.outcome, RunFailure):
        reason = f"{live.outcome.kind}: {live.outcome.message}"
        return [{**_identity(case), "reason": reason, "holds": False}]
    return list(_rows(case, live, live.outcome, Fraction(built.time_per_byte)))


def _built(spec: str) -> BuildResult:
    source = ScheduleRequest(parse_topology(spec), ALLREDUCE, "bfb", Options(), 1)
    result = build(BuildRequest(source, LoweringOptions("oneccl-xml", in_place=False)))
    if isinstance(result, BuildFailure):
        raise ValueError(f"{spec}: {result.message}")
    return result


def _identity(case: LiveCase) -> Row:
    ranks = parse_topology(case.spec).compute_count
    return {"nodes": ranks, "spec": case.spec, "link_mbps": case.link_mbps, "runner": case.runner}


def _rows(case: LiveCase, live: LiveRun, measurement: Measurement, time_per_byte: Fraction) -> Iterator[Row]:
    """Yield a row for each size. What links allow counts the headers of full frames, not acknowledgements."""
    for index, own in enumerate(measurement.results["bfb"]):
        link_bytes = int(time_per_byte * own.size_bytes)
        allowed_s = carried_bytes(link_bytes, _MTU_BYTES) * 8 / (case.link_mbps * 1e6)
        others = {name: sizes[index] for name, sizes in measurement.results.items() if name.startswith(LIBRARY)}
        best = min(others, key=lambda name: others[name].median_s, default=None)
        yield {
            **_identity(case),
            "size_bytes": own.size_bytes,
            "time_us": own.median_s * 1e6,
            "efficiency": allowed_s / own.median_s,
            "best_library": best,
            "best_library_over_engine": None if best is None else others[best].median_s / own.median_s,
            "spread": own.iqr_s / own.median_s,
            "load_average": measurement.environment.get("load_average"),
            "reason": live.substitution,
            "holds": best is None or others[best].median_s >= own.median_s,
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
    source="ours; allreduce by BFB on honest emulated links, interleaved with the built-ins of gloo, MPI and oneCCL",
    columns=(
        Column("network", lambda row: row["spec"]),
        Column("Mbit/s", lambda row: str(row["link_mbps"])),
        Column("runner", lambda row: row["runner"]),
        Column("size", lambda row: format_size(row["size_bytes"]) if "size_bytes" in row else ""),
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
