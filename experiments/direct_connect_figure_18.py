"""Figure 18: T_B of BFB on generalized Kautz graphs over the least possible one, for N up to 2,000."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from experiments.comparison import short
from experiments.experiment import Column, Experiment, Report, Row
from synth.finder.bounds import least_bandwidth_factor, least_steps
from synth.finder.kautz import kautz_score

DEGREES = (2, 4, 8, 16)
LARGEST = 2000
_STRIDE, _QUICK_STRIDE = 7, 50
_MOST = 2
"""What the caption says: T_B is at most twice the least one."""


def _run(report: Report, quick: bool) -> Sequence[Row]:
    rows: list[Row] = []
    for done, degree in enumerate(DEGREES):
        report(f"degree {degree}", done, len(DEGREES))
        sizes = range(degree + 1, LARGEST + 1, _QUICK_STRIDE if quick else _STRIDE)
        rows.append(_row(degree, sizes))
    return rows


def _row(degree: int, sizes: Sequence[int]) -> Row:
    over: list[tuple[Fraction, int]] = []
    late = 0
    for nodes in sizes:
        score = kautz_score(degree, nodes)
        over.append((score.bandwidth_factor / least_bandwidth_factor(nodes), nodes))
        late = max(late, score.steps - least_steps(nodes, degree))
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


def _plot(rows: Sequence[Row], path: Path) -> None:
    from experiments.line_panels import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    plot_panels({f"degree {row['degree']}": {"T_B over least": row["curve"]} for row in rows}, "N", "", path, "linear")


EXPERIMENT = Experiment(
    name="direct-connect-figure-18",
    question="Is T_B of BFB on generalized Kautz graphs at most twice the least, in at most one step more?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 18",
    columns=(
        Column("degree", lambda row: str(row["degree"])),
        Column("sizes", lambda row: str(row["sizes"])),
        Column("worst T_B over the least", lambda row: short(Fraction(row["worst"]))),
        Column("at", lambda row: str(row["spec"])),
        Column("most steps over the least", lambda row: str(row["steps_over_least"])),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    run=_run,
    plot=_plot,
)
