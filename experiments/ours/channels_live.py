"""What trees per root, chunks and channels do to real runs on an emulated fabric, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.live import LiveRun, measure_live
from chorale.runners.api.base import Measurement, RunFailure, RunRequest
from chorale.runners.api.units import format_size
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLGATHER
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

NETWORK, LINK_MBPS = "hypercube:3", 50
SIZES, QUICK_SIZES = (2**18, 2**20, 2**22), (2**18,)
REPEATS, QUICK_REPEATS = 7, 3
_TIMEOUT_S = 300.0
_TARGET = "oneccl-xml"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A program: its method, trees per root, chunks per shard (of trees: parts that stream) and channels."""

    method: str
    k: int | None = None
    chunks: int | None = None
    channels: int = 1

    def request(self) -> BuildRequest:
        """Return how the program is built."""
        is_trees = self.k is not None
        options = Options(k=self.k, chunks=None if is_trees else self.chunks)
        depth = (self.chunks or 1) if is_trees else 1
        lowering = LoweringOptions(_TARGET, channels=self.channels)
        source = ScheduleRequest(parse_topology(NETWORK), ALLGATHER, self.method, options, depth)
        return BuildRequest(source, lowering)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Values of one parameter, everything else the same; the first value is what the others are compared with."""

    method: str
    parameter: str
    values: Mapping[int, SweepPoint]


_ENOUGH = 3
"""Trees per root, and chunks per shard, with which both methods reach the optimum of the network."""
SWEEPS = (
    Sweep("forest", "k", {k: SweepPoint("forest", k, 1) for k in (1, 2, 3, 6)}),
    Sweep("forest", "chunks", {parts: SweepPoint("forest", _ENOUGH, parts) for parts in (1, 2, 4, 8)}),
    Sweep("forest", "channels", {count: SweepPoint("forest", _ENOUGH, 1, count) for count in (1, 2, 4)}),
    Sweep("bfb", "chunks", {chunks: SweepPoint("bfb", None, chunks) for chunks in (1, 2, 3, 6, 12)}),
    Sweep("bfb", "channels", {count: SweepPoint("bfb", None, _ENOUGH, count) for count in (1, 2, 4)}),
)


Case: TypeAlias = tuple[tuple[Sweep, ...], tuple[int, ...], int]
"""Sweeps, sizes in bytes, and how often. All programs run side by side, round by round."""


def _cases(quick: bool) -> Sequence[Case]:
    return [(SWEEPS, QUICK_SIZES, QUICK_REPEATS) if quick else (SWEEPS, SIZES, REPEATS)]


def _answer(case: Case) -> list[Row]:
    sweeps, sizes, repeats = case
    built = {point: _built(point) for sweep in sweeps for point in sweep.values.values()}
    programs = {str(point): one.program for point, one in built.items()}
    request = RunRequest(parse_topology(NETWORK), programs, sizes, repeats, timeout_s=_TIMEOUT_S)
    live = measure_live(request, LINK_MBPS)
    if isinstance(live.outcome, RunFailure):
        return [_failure(live.outcome)]
    per_byte = {point: Fraction(one.time_per_byte) for point, one in built.items()}
    return [row for sweep in sweeps for row in _rows(sweep, live, live.outcome, per_byte)]


def _built(point: SweepPoint) -> BuildResult:
    result = build(point.request())
    if isinstance(result, BuildFailure):
        raise ValueError(f"{point}: {result.message}")
    return result


def _failure(failure: RunFailure) -> Row:
    reason = f"{failure.kind}: {failure.message}"
    return {"nodes": parse_topology(NETWORK).compute_count, "spec": NETWORK, "reason": reason, "holds": False}


def _rows(
    sweep: Sweep, live: LiveRun, measurement: Measurement, per_byte: Mapping[SweepPoint, Fraction]
) -> Iterator[Row]:
    """Yield a row for each value and size; a runner only returns times of results in which every element is right."""
    first = next(iter(sweep.values.values()))
    for value, point in sweep.values.items():
        for own, base in zip(measurement.results[str(point)], measurement.results[str(first)], strict=True):
            ideal_s = float(per_byte[point]) * own.size_bytes * 8 / (LINK_MBPS * 1e6)
            yield {
                "nodes": parse_topology(NETWORK).compute_count,
                "spec": NETWORK,
                "method": sweep.method,
                "parameter": sweep.parameter,
                "value": value,
                "size_bytes": own.requested_bytes,
                "over_first": own.median_s / base.median_s,
                "over_first_in_theory": float(per_byte[point] / per_byte[first]),
                "over_links": own.median_s / ideal_s,
                "spread": own.iqr_s / own.median_s,
                "runner": live.runner,
                "load_average": measurement.environment.get("load_average"),
                "reason": live.substitution,
                "holds": True,
            }


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.ours.plots import plot_sweeps  # noqa: PLC0415 (matplotlib is slow)

    plot_sweeps([row for row in rows if "value" in row], path)


EXPERIMENT = Experiment(
    name="channels-live",
    question="What do trees per root, chunks and channels change in real runs on an emulated fabric?",
    source=f"ours; allgather on {NETWORK}, links of {LINK_MBPS} Mbit/s, programs interleaved; ratios of medians",
    columns=(
        Column("method", lambda row: row.get("method", "")),
        Column("parameter", lambda row: row.get("parameter", "")),
        Column("value", lambda row: str(row.get("value", ""))),
        Column("size", lambda row: format_size(row["size_bytes"]) if "size_bytes" in row else ""),
        Column("over the first", lambda row: f"{row['over_first']:.2f}" if "value" in row else ""),
        Column("by the links alone", lambda row: f"{row['over_first_in_theory']:.2f}" if "value" in row else ""),
        Column("over what links take", lambda row: f"{row['over_links']:.2f}" if "value" in row else ""),
        Column("spread", lambda row: f"{row['spread']:.0%}" if "value" in row else ""),
        Column("runner", lambda row: row.get("runner", "")),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_answer,
    alone=True,
    plot=_plot,
)
