"""Figure 18: T_B of BFB on generalized Kautz graphs over the least possible one, for N up to 2,000."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from chorale.experiments.comparison import short_text
from chorale.experiments.experiment import Column, Experiment, Row
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps
from chorale.synth.finder.score_cache import kautz_score

DEGREES = (2, 4, 8, 16)
FIGURE_18_MAX_NODES = 2000
_STRIDE, _QUICK_STRIDE = 7, 50
_BATCHES = 8
_MOST = 2
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
    holds = worst <= _MOST and late <= 1
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
    from chorale.experiments.line_panels import plot_panels  # noqa: PLC0415 (matplotlib is slow)

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
