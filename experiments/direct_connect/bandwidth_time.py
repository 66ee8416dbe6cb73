"""Figures 3 and 18: bandwidth time over the least possible, of line graphs of four optimal bases of degree 4 and of
generalized Kautz graphs with up to 2,000 nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any

from chorale.experiments.direct_connect.quantities import measure_schedule
from chorale.experiments.framework.comparison import short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row, concatenate_rows
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps
from chorale.synth.finder.score_cache import kautz_score
from chorale.synth.methods.expand.prediction import predict_allgather

DEGREE = 4
BASES: Mapping[str, int] = {"complete:5": 5, "dicirculant:4": 6, "bipartite:4": 8, "hamming:2,3": 9}
"""Number of nodes by spec."""
FIGURE_3_MAX_NODES = 10_000
_VERIFIED, _QUICK_VERIFIED = 600, 160
"""Up to so many nodes the schedule is made and verified, beyond that its exact cost is predicted."""
_SHAPE = "Moore-optimal at every size, T_B ever closer to 1 + 1 / (3 N) of the least: the larger base is the better one"


def _figure_3_cases(quick: bool) -> Sequence[tuple[str, int, int, int]]:
    """Return bases, their numbers of nodes, how often the line graph is taken, and up to what schedules are made."""
    most = _QUICK_VERIFIED if quick else _VERIFIED
    return [(base, size, times, most) for base, size in BASES.items() for times in _times(size)]


def _times(size: int) -> list[int]:
    return list(takewhile(lambda times: size * DEGREE**times <= FIGURE_3_MAX_NODES, count()))


def _figure_3_conclusion(parts: Sequence[Sequence[Row]]) -> list[Row]:
    rows = concatenate_rows(parts)
    return [*rows, _finding(rows)]


def _figure_3_row(base: str, size: int, times: int, most_verified: int) -> Row:
    """Return what `times` line graphs of `base` cost beside corollary 7.1, which is exact for BFB (theorem 10)."""
    nodes, spec = size * DEGREE**times, f"line({base};{times})" if times else base
    if nodes <= most_verified:
        measured = measure_schedule(spec, "bfb")
        steps, factor, known_by = measured.cost.steps, measured.factor, "verified schedule"
    else:
        predicted = predict_allgather(spec, SerialExecutor())
        steps, factor, known_by = predicted.steps, predicted.bandwidth_factor, "exact prediction"
    added = Fraction(DEGREE, DEGREE - 1) * (Fraction(1, size) - Fraction(1, nodes))
    printed = least_bandwidth_factor(size) + added
    verdict = {
        "steps": "match" if steps == least_steps(nodes, DEGREE) else "worse",
        "bandwidth_factor": "match" if factor == printed else "better" if factor < printed else "worse",
    }
    return {
        "base": base, "times": times, "nodes": nodes, "spec": spec, "steps": steps, "bandwidth_factor": str(factor),
        "printed_factor": str(printed), "over_least": str(factor / least_bandwidth_factor(nodes)),
        "limit": str(1 + Fraction(1, (DEGREE - 1) * size)), "known_by": known_by, "verdict": verdict, "reason": None,
        "holds": "worse" not in verdict.values(),
    }  # fmt: skip


def _finding(rows: Sequence[Row]) -> Row:
    """Return what the figure shows: no curve passes the limit of theorem 9, and larger bases lie lower."""
    below = all(Fraction(row["over_least"]) <= Fraction(row["limit"]) for row in rows)
    last = {row["base"]: Fraction(row["over_least"]) for row in rows}
    ordered = all(first > second for first, second in pairwise(last[base] for base in BASES))
    holds = below and ordered
    return {
        "base": "all", "nodes": max(row["nodes"] for row in rows), "spec": "", "finding": _SHAPE,
        "verdict": "match" if holds else "not reached", "reason": None if holds else "the order is another",
        "holds": holds,
    }  # fmt: skip


def _plot_figure_3(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    def lines(key: str) -> dict[str, list[tuple[float, float]]]:
        return {
            base: [(row["nodes"], float(Fraction(row[key]))) for row in rows if row["base"] == base] for base in BASES
        }

    panels = {"steps T_L, all Moore-optimal": lines("steps"), "T_B over the least": lines("over_least")}
    plot_panels(panels, "N", "", path, "flat")


def _number(heading: str, key: str) -> Column:
    return Column(heading, lambda row: short_text(Fraction(row[key])) if key in row else "")


FIGURE_3 = Experiment(
    name="direct-connect-figure-3",
    question="How far do line graphs of optimal bases move from the least T_B, and do they stay Moore-optimal?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 3",
    columns=(
        Column("base", lambda row: str(row["base"])),
        Column("nodes", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("T_L", lambda row: str(row.get("steps", ""))),
        Column("T_B (M/B)", lambda row: str(row.get("bandwidth_factor", ""))),
        _number("over the least", "over_least"),
        _number("limit", "limit"),
        Column("known by", lambda row: row.get("known_by", "")),
        Column("finding", lambda row: row.get("finding", "")),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_figure_3_cases,
    evaluate=lambda case: [_figure_3_row(*case)],
    conclude=_figure_3_conclusion,
    plot=_plot_figure_3,
)


DEGREES = (2, 4, 8, 16)
FIGURE_18_MAX_NODES = 2000
_STRIDE, _QUICK_STRIDE = 7, 50
_BATCHES = 8
_MAX_RATIO = 2
"""What the caption says: T_B is at most twice the least one."""


def _figure_18_cases(quick: bool) -> Sequence[tuple[int, int, int]]:
    """Return degrees, and the first and the distance of the numbers of nodes: batches that take equally long."""
    stride = _QUICK_STRIDE if quick else _STRIDE
    firsts = range(0, _BATCHES * stride, stride)
    return [(degree, degree + 1 + first, _BATCHES * stride) for degree in DEGREES for first in firsts]


def _scores(case: tuple[int, int, int]) -> list[dict[str, Any]]:
    degree, first, distance = case
    return [_score(degree, nodes) for nodes in range(first, FIGURE_18_MAX_NODES + 1, distance)]


def _score(degree: int, nodes: int) -> dict[str, Any]:
    score = kautz_score(degree, nodes)
    over = score.bandwidth_factor / least_bandwidth_factor(nodes)
    return {"degree": degree, "nodes": nodes, "over": str(over), "late": score.steps - least_steps(nodes, degree)}


def _figure_18_conclusion(batches: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    scores = sorted((score for batch in batches for score in batch), key=lambda score: score["nodes"])
    return [_figure_18_row(degree, [score for score in scores if score["degree"] == degree]) for degree in DEGREES]


def _figure_18_row(degree: int, scores: Sequence[Mapping[str, Any]]) -> Row:
    over = [(Fraction(score["over"]), score["nodes"]) for score in scores]
    late = max(score["late"] for score in scores)
    worst, nodes = max(over)
    holds = worst <= _MAX_RATIO and late <= 1
    return {
        "nodes": nodes,
        "spec": f"genkautz:{degree},{nodes}",
        "degree": degree,
        "sizes": len(over),
        "worst": str(worst),
        "steps_over_least": late,
        "curve": [[size, float(value)] for value, size in over],
        "verdict": "match" if holds else "not reached",
        "reason": None if holds else "above what the caption and theorem 21 say",
        "holds": holds,
    }


def _plot_figure_18(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    plot_panels({f"degree {row['degree']}": {"T_B over least": row["curve"]} for row in rows}, "N", "", path, "linear")


FIGURE_18 = Experiment(
    name="direct-connect-figure-18",
    question="Is T_B of BFB on generalized Kautz graphs at most twice the least, in at most one step more?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 18",
    columns=(
        Column("degree", lambda row: str(row["degree"])),
        Column("sizes", lambda row: str(row["sizes"])),
        Column("worst T_B over the least", lambda row: short_text(Fraction(row["worst"]))),
        Column("at", lambda row: str(row["spec"])),
        Column("most steps over the least", lambda row: str(row["steps_over_least"])),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_figure_18_cases,
    evaluate=_scores,
    conclude=_figure_18_conclusion,
    plot=_plot_figure_18,
)
