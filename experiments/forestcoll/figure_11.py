"""ForestColl's figure 11: how long schedules of many boxes of GPUs take to make, and how good they are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from chorale.experiments.framework.comparison import short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.references import max_flows_reach, min_seconds
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

FAMILIES: Mapping[str, tuple[int, ...]] = {"a100": (2, 4, 8, 16, 32, 64, 128), "mi250": (2, 4, 8, 16, 32, 64)}
"""Boxes of each kind; the first of a family is what the others are compared with."""
_QUICK_NODES = 256
_REFERENCE_NODES = 64
_SUB_SECOND, _TENS_OF_MINUTES = "below 1 s", "tens of minutes"
_PRINTED: Mapping[str, str] = {"a100:2": _SUB_SECOND, "a100:4": _SUB_SECOND, "a100:128": _TENS_OF_MINUTES}
"""What is said in words of the time to make a schedule; the points of the figure are not printed as numbers."""
_MOST_S = {_SUB_SECOND: 1.0, _TENS_OF_MINUTES: 600.0}
_PUBLIC_CODE = {"a100:4": "the public Python code takes 60 CPU seconds here"}
_REPEATS = 3
_SLOWER = "one core, which may be slower than theirs"


def _cases(quick: bool) -> Sequence[str]:
    """Return specs."""
    specs = [f"{family}:{boxes}" for family, counts in FAMILIES.items() for boxes in counts]
    return [spec for spec in specs if not quick or parse_topology(spec).compute_count <= _QUICK_NODES]


def _conclude(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their times over those of the first network of their family."""
    first: dict[str, float] = {}
    over = [row["seconds"] / first.setdefault(row["spec"].partition(":")[0], row["seconds"]) for row in rows]
    return [{**row, "times_the_first": times} for row, times in zip(rows, over, strict=True)]


def _made(topology: Topology) -> Schedule:
    return synthesize_unverified("forest", topology, ALLGATHER, None, SerialExecutor()).expand()


def _row(spec: str) -> Row:
    topology = parse_topology(spec)
    schedule = _made(topology)
    seconds = min_seconds(lambda: _made(topology), _REPEATS, time.process_time)
    cost, bound = verify(schedule).cost, lower_bound(topology, ALLGATHER)
    is_optimal = cost.time_per_byte == bound.value
    return {
        "nodes": topology.compute_count,
        "spec": spec,
        "k": schedule.trees_per_root,
        "steps": cost.steps,
        "algbw_gb_per_s": float(1 / cost.time_per_byte),
        "algbw": short_text(1 / cost.time_per_byte),
        "seconds": seconds,
        "flows_over_ours": _flows_seconds(topology, cost.time_per_byte) / seconds if _is_small(topology) else None,
        "printed": _PRINTED.get(spec),
        **_judged(spec, seconds, is_optimal),
        "holds": is_optimal,
    }


def _is_small(topology: Topology) -> bool:
    return topology.compute_count <= _REFERENCE_NODES


def _flows_seconds(topology: Topology, time_per_byte: Fraction) -> float:
    """Return what NetworkX takes to see only that a time is possible."""
    return min_seconds(lambda: max_flows_reach(topology, time_per_byte), 1, time.process_time)


def _judged(spec: str, seconds: float, is_optimal: bool) -> Row:
    """Return verdicts and the reason: that trees are optimal is claimed of every network, a time of some."""
    verdict = {"quality": "match" if is_optimal else "worse"}
    printed = _PRINTED.get(spec)
    if printed is None:
        return {"verdict": verdict, "reason": None}
    if seconds > _MOST_S[printed]:
        return {"verdict": {**verdict, "seconds": "not reached"}, "reason": _SLOWER}
    ahead = "better" if printed == _TENS_OF_MINUTES else "match"
    return {"verdict": {**verdict, "seconds": ahead}, "reason": _PUBLIC_CODE.get(spec)}


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    def lines(key: str) -> dict[str, list[tuple[float, float]]]:
        return {
            family: [(row["nodes"], row[key]) for row in rows if row["spec"].startswith(family)] for family in FAMILIES
        }

    panels = {
        "time to make it, over that of two boxes": lines("times_the_first"),
        "algbw in GB/s": lines("algbw_gb_per_s"),
    }
    plot_panels(panels, "GPUs", "", path)


EXPERIMENT = Experiment(
    name="forestcoll-figure-11",
    question="How long do optimal trees for up to 1,024 GPUs take to make, and are they optimal at every size?",
    source="Zhao et al., ForestColl, section 5.4 and figure 11, whose points are not printed; TACCL is not ours to run",
    columns=(
        Column("nodes", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("k", lambda row: str(row["k"])),
        Column("height", lambda row: str(row["steps"])),
        Column("algbw, GB/s", lambda row: str(row["algbw"])),
        Column("printed time", lambda row: row["printed"] or ""),
        Column("our CPU s", lambda row: f"{row['seconds']:.3g}"),
        Column("over two boxes", lambda row: f"{row['times_the_first']:.3g}"),
        Column(
            "NetworkX's flows over ours",
            lambda row: f"{row['flows_over_ours']:.3g}" if row["flows_over_ours"] else "",
        ),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_row,
    conclude=_conclude,
    alone=True,
    plot=_plot,
)
