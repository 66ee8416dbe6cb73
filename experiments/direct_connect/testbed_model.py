"""Figure 14: is the time of an allreduce a straight line in steps, and in the bandwidth factor? Fitted live."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, linear_regression

from chorale.experiments.direct_connect.testbed import (
    LINK_MBPS,
    LINKS_OF_A_NODE,
    TREES,
    contenders,
    measure_contenders,
    min_us,
)
from chorale.experiments.framework.experiment import Column, Experiment, Row, concatenate_rows

NODES, _QUICK_NODES = (5, 6, 7, 8, 10, 12), (5,)
SIZES_BYTES = (2**10, 2**21)
"""Steps decide at one, bandwidth at the other; the paper took 1 KB and 1 GB."""
_REPEATS = 7
_NODE_MBPS = LINK_MBPS * LINKS_OF_A_NODE
_BUSY = (
    "a step here is a hand-over between processes that share a few cores, so it takes the longer the more of them "
    "there are; the testbed has a GPU for each"
)


@dataclass(frozen=True, slots=True)
class _LinearFit:
    """What is fitted.

    errors: mean and largest relative error that were printed
    close:  the largest mean error that matches them
    most:   the largest mean error that is explained by cores that are shared
    """

    title: str
    x: str
    y: str
    through_zero: bool
    printed: str
    errors: tuple[float, float]
    max_match_error: float
    max_explained_error: float
    picture: str

    def row(self, points: Sequence[Row]) -> Row:
        """Return the line through `points`, and how far they are from it."""
        xs, ys = [float(point[self.x]) for point in points], [point[self.y] for point in points]
        slope, fixed = linear_regression(xs, ys, proportional=self.through_zero)
        errors = [abs(slope * x + fixed - y) / y for x, y in zip(xs, ys, strict=True)]
        reached = fmean(errors) <= self.max_match_error
        return {
            "kind": "fit", "line": self.title, "nodes": max(point["nodes"] for point in points), "spec": "",
            "printed": self.printed, "printed_errors": self.errors, "slope": slope, "fixed_us": fixed,
            "mean_error": fmean(errors), "max_error": max(errors), "verdict": "match" if reached else "not reached",
            "reason": None if reached else _BUSY, "holds": fmean(errors) <= self.max_explained_error,
        }  # fmt: skip


_LINES = (
    _LinearFit("T_L", "steps", "small_us", False, "13.33 us a step + 21.60 us", (0.0171, 0.0621), 0.1, math.inf,
          "1 KiB against steps"),
    _LinearFit("T_B", "factor_us", "large_us", True, "79 of 100 Gbit/s", (0.0047, 0.0132), 0.02, 0.1,
          "2 MiB against T_B in us"),
)  # fmt: skip


def _cases(quick: bool) -> Sequence[int]:
    """Return numbers of nodes."""
    return _QUICK_NODES if quick else NODES


def _conclude(parts: Sequence[Sequence[Row]]) -> list[Row]:
    points = concatenate_rows(parts)
    return [*points, *(line.row(points) for line in _LINES)]


def _points(nodes: int) -> list[Row]:
    """Return what each bandwidth-optimal contender takes live; `factor_us` is T_B at the full rate of the links."""
    rivals = [rival for rival in contenders(nodes) if rival.name != TREES]
    times = measure_contenders(rivals, SIZES_BYTES, _REPEATS)
    rows: list[Row] = []
    for rival in rivals:
        cost = rival.verified().cost
        factor = cost.time_per_byte * LINKS_OF_A_NODE
        rows.append({
            "kind": "point", "nodes": nodes, "spec": rival.spec, "network": rival.name, "steps": cost.steps,
            "bandwidth_factor": str(factor), "factor_us": float(factor * SIZES_BYTES[1] * 8 / _NODE_MBPS),
            "small_us": min_us(times, rival, 0), "large_us": min_us(times, rival, 1),
            "ran_on": times[rival.name].where, "reason": times[rival.name].substitution, "holds": True,
        })  # fmt: skip
    return rows


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    points = [row for row in rows if row["kind"] == "point"]
    panels = {}
    for line, fit in zip(_LINES, (row for row in rows if row["kind"] == "fit"), strict=True):
        names = dict.fromkeys(point["network"] for point in points)
        ends = [min(point[line.x] for point in points), max(point[line.x] for point in points)]
        drawn = {
            name: sorted((point[line.x], point[line.y]) for point in points if point["network"] == name)
            for name in names
        }
        panels[line.picture] = {
            **drawn, "fit": [(x, fit["slope"] * x + fit["fixed_us"]) for x in ends]
        }  # fmt: skip
    plot_panels(panels, "", "us", path, "lines")


def _fitted(row: Row) -> str:
    if row["line"] == "T_L":
        return f"{row['slope']:.4g} us a step + {row['fixed_us']:.4g} us"
    return f"{_NODE_MBPS / row['slope']:.4g} of {_NODE_MBPS} Mbit/s"


EXPERIMENT = Experiment(
    name="direct-connect-figure-14",
    question="Is the time of an allreduce a straight line in the steps, and in the bandwidth factor?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 14; "
    f"live on emulated links of {LINK_MBPS} Mbit/s instead of 25 Gbit/s",
    columns=(
        Column("nodes", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("network", lambda row: row.get("network", "")),
        Column("T_L", lambda row: str(row.get("steps", ""))),
        Column("T_B (M/B)", lambda row: row.get("bandwidth_factor", "")),
        Column("1 KiB, us", lambda row: f"{row['small_us']:.4g}" if "small_us" in row else ""),
        Column("2 MiB, us", lambda row: f"{row['large_us']:.5g}" if "large_us" in row else ""),
        Column("printed", lambda row: row.get("printed", "")),
        Column("fitted", lambda row: _fitted(row) if "slope" in row else ""),
        Column("mean and largest error", lambda row: f"{row['mean_error']:.1%}, {row['max_error']:.1%}"
               if "slope" in row else ""),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_points,
    conclude=_conclude,
    alone=True,
    plot=_plot,
)  # fmt: skip
