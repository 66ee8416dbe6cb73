"""Experiments on emulated fabrics: effects of trees per root, chunks and channels, and the engine's overhead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from chorale.experiments.framework.experiment import Column, Experiment, Row, columns
from chorale.experiments.framework.live import measure_live, measure_on_fabric
from chorale.experiments.framework.plots import SIZE, Chart, all_points, line_points
from chorale.runners.api.base import LIBRARY, RunFailure, RunRequest
from chorale.runners.api.programs import busiest_share
from chorale.runners.fabric.plan import carried_bytes
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology

NETWORK, LINK_MBPS = "hypercube:3", 50
SIZES, QUICK_SIZES = (2**18, 2**20, 2**22), (2**18,)
REPEATS, QUICK_REPEATS = 7, 3
_CHANNELS_LIVE_TIMEOUT_S = 300.0
_TARGET = "oneccl-xml"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A program to measure. `chunks` counts chunks per shard or, with `k` trees per root, the streamed parts."""

    method: str
    k: int | None = None
    chunks: int | None = None
    channels: int = 1

    def request(self) -> BuildRequest:
        is_trees = self.k is not None
        options = Options(k=self.k, chunks=None if is_trees else self.chunks)
        depth = (self.chunks or 1) if is_trees else 1
        lowering = LoweringOptions(_TARGET, channels=self.channels)
        source = ScheduleRequest(parse_topology(NETWORK), ALLGATHER, self.method, options, depth)
        return BuildRequest(source, lowering)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Programs that differ in one parameter. `values`: value -> its program; the first is the baseline."""

    method: str
    parameter: str
    values: Mapping[int, SweepPoint]


_ENOUGH = 3
"""Number of trees per root (forest) or chunks per shard (bfb) with which the method reaches the network's optimum."""
SWEEPS = (
    Sweep("forest", "k", {k: SweepPoint("forest", k, 1) for k in (1, 2, 3, 6)}),
    Sweep("forest", "chunks", {parts: SweepPoint("forest", _ENOUGH, parts) for parts in (1, 2, 4, 8)}),
    Sweep("forest", "channels", {count: SweepPoint("forest", _ENOUGH, 1, count) for count in (1, 2, 4)}),
    Sweep("bfb", "chunks", {chunks: SweepPoint("bfb", None, chunks) for chunks in (1, 2, 3, 6, 12)}),
    Sweep("bfb", "channels", {count: SweepPoint("bfb", None, _ENOUGH, count) for count in (1, 2, 4)}),
)


Case: TypeAlias = tuple[tuple[Sweep, ...], tuple[int, ...], int]
"""Sweeps, sizes in bytes, and repeats. All programs run interleaved, round by round."""


def _channels_live_rows(case: Case) -> list[Row]:
    """Return a row for each parameter value and size. Runners only return times if every result element is correct."""
    sweeps, sizes, repeats = case
    topology, built = parse_topology(NETWORK), dict[SweepPoint, BuildResult]()
    for point in {point: None for sweep in sweeps for point in sweep.values.values()}:
        result = build(point.request())
        if isinstance(result, BuildFailure):
            raise ValueError(f"{point}: {result.message}")
        built[point] = result
    programs = {str(point): one.program for point, one in built.items()}
    request = RunRequest(topology, programs, sizes, repeats, timeout_s=_CHANNELS_LIVE_TIMEOUT_S)
    live = measure_live(request, LINK_MBPS)
    network: Row = {"nodes": topology.compute_count, "spec": NETWORK}
    if isinstance(live.outcome, RunFailure):
        return [{**network, "reason": f"{live.outcome.kind}: {live.outcome.message}", "holds": False}]
    results, rows = live.outcome.results, list[Row]()
    per_byte = {point: Fraction(one.time_per_byte) for point, one in built.items()}
    for sweep in sweeps:
        first = next(iter(sweep.values.values()))
        for value, point in sweep.values.items():
            for own, base in zip(results[str(point)], results[str(first)], strict=True):
                ideal_s = float(per_byte[point]) * own.size_bytes * 8 / (LINK_MBPS * 1e6)
                rows.append({
                    **network, "method": sweep.method, "parameter": sweep.parameter, "value": value,
                    "size_bytes": own.requested_bytes, "over_first": own.median_s / base.median_s,
                    "over_first_in_theory": float(per_byte[point] / per_byte[first]),
                    "over_links": own.median_s / ideal_s, "spread": own.iqr_s / own.median_s, "runner": live.runner,
                    "load_average": live.outcome.environment.get("load_average"), "reason": live.substitution,
                    "holds": True,
                })  # fmt: skip
    return rows


CHANNELS_LIVE = Experiment(
    name="channels-live",
    question="What do trees per root, chunks and channels change in real runs on an emulated fabric?",
    source=f"ours; allgather on {NETWORK}, links of {LINK_MBPS} Mbit/s, programs interleaved; ratios of medians",
    columns=columns(
        "method | parameter | value | size=size_bytes:bytes | over the first=over_first:.2f",
        "by the links alone=over_first_in_theory:.2f | over what links take=over_links:.2f | spread=spread:.0%",
        "runner | reason",
    ),
    cases=[(SWEEPS, SIZES, REPEATS)],
    quick=[(SWEEPS, QUICK_SIZES, QUICK_REPEATS)],
    evaluate=_channels_live_rows,
    alone=True,
    plot=Chart(
        all_points(
            line_points("{method}: {parameter}", "{size_bytes} B", "value", "over_first"),
            line_points("{method}: {parameter}", "links alone", "value", "over_first_in_theory"),
        ),
        "value",
        "time over the first",
        log="x",
    ),
)


_METHODS = ("bfb", "recursive-doubling", "swing-latency")
"""The method with the lowest link loads, then two methods with the fewest steps, which are fast at small sizes."""

_ENGINE_LIVE_TIMEOUT_S = 300.0
_SIZES, _QUICK_SIZES = tuple(2**power for power in range(12, 25, 2)), (2**16, 2**18)
_LARGEST_BYTES = {25: 2**20, 100: 2**22, 400: 2**24}
"""Link bandwidth in Mbit/s -> largest size in bytes to measure, chosen so that a run takes a fraction of a second."""
_REPEATS, _QUICK_REPEATS = 7, 3


_RUNNERS: dict[str, tuple[str, dict[str, str]]] = {
    "local": ("local", {}),
    "mpi over tcp": ("mpi", {"transport": "tcp"}),
    "mpi": ("mpi", {}),
    "oneccl": ("oneccl", {}),
}


@dataclass(frozen=True, slots=True)
class LiveCase:
    """An allreduce that one runner measures on one fabric, together with all algorithms of the runner's library."""

    spec: str
    link_mbps: int
    runner: str
    sizes: tuple[int, ...]
    repeats: int


def _live_cases(
    specs: Sequence[str], rates: Sequence[int], runners: Sequence[str], sizes: Sequence[int], repeats: int
) -> list[LiveCase]:
    return [
        LiveCase(spec, rate, runner, tuple(size for size in sizes if size <= _LARGEST_BYTES[rate]), repeats)
        for spec in specs
        for rate in rates
        for runner in runners
    ]


def _engine_live_rows(case: LiveCase) -> list[Row]:
    """Return a row for each size. The links' minimum times include frame headers, but not acknowledgements."""
    topology, programs = parse_topology(case.spec), dict[str, Program]()
    for method in _METHODS:
        source = ScheduleRequest(topology, ALLREDUCE, method, Options(), 1)
        result = build(BuildRequest(source, LoweringOptions("oneccl-xml", in_place=False)))
        if not isinstance(result, BuildFailure) and isinstance(result.program, Program):
            programs[method] = result.program
    request = RunRequest(topology, programs, case.sizes, case.repeats, timeout_s=_ENGINE_LIVE_TIMEOUT_S)
    live = measure_on_fabric(request, case.link_mbps, *_RUNNERS[case.runner])
    network = {"nodes": topology.compute_count, "spec": case.spec, "link_mbps": case.link_mbps, "runner": case.runner}
    if isinstance(live.outcome, RunFailure):
        return [{**network, "reason": f"{live.outcome.kind}: {live.outcome.message}", "holds": False}]
    busiest, rows = busiest_share(programs["bfb"], topology), list[Row]()
    names = [name for name in live.outcome.results if not name.startswith(LIBRARY)]
    for index, size in enumerate(case.sizes):
        times = {name: sizes[index] for name, sizes in live.outcome.results.items()}
        allowed_s = carried_bytes(int(busiest * times["bfb"].size_bytes)) * 8 / (case.link_mbps * 1e6)
        engine = min(names, key=lambda name: times[name].median_s)
        own = times[engine]
        best = min((name for name in times if name not in names), key=lambda name: times[name].median_s, default=None)
        over_engine = None if best is None else times[best].median_s / own.median_s
        rows.append({
            **network, "size_bytes": size, "program": engine, "time_us": own.median_s * 1e6,
            "efficiency": allowed_s / own.median_s, "best_library": best, "best_library_over_engine": over_engine,
            "spread": own.iqr_s / own.median_s, "load_average": live.outcome.environment.get("load_average"),
            "reason": live.substitution, "holds": over_engine is None or over_engine >= 1,
        })  # fmt: skip
    return rows


def _ratio(row: Row) -> str:
    ratio = row.get("best_library_over_engine")
    return "" if ratio is None else f"{ratio:.2f} ({row['best_library']})"


ENGINE_LIVE = Experiment(
    name="engine-live",
    question="How close does the engine come to what links allow, and is it ever behind a library's own algorithms?",
    source="ours; allreduce on honest emulated links, interleaved with the built-ins of gloo, MPI and oneCCL",
    columns=columns(
        "network=spec | Mbit/s=link_mbps | runner | size=size_bytes:bytes | program | us=time_us:.0f",
        "of what links allow=efficiency:.2f",
        Column("best built-in over it", _ratio),
        "spread=spread:.0% | load=load_average:.1f | reason",
    ),
    cases=_live_cases(("hypercube:3", "bipartite:4", "torus:3x3"), (25, 100, 400), tuple(_RUNNERS), _SIZES, _REPEATS),
    quick=_live_cases(("hypercube:3",), (25,), ("local",), _QUICK_SIZES, _QUICK_REPEATS),
    evaluate=_engine_live_rows,
    alone=True,
    plot=Chart(
        line_points("{spec}, {link_mbps} Mbit/s", "{runner}", "size_bytes", "efficiency"),
        SIZE,
        "of what links allow",
        log="x",
    ),
)
