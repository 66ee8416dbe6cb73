"""The finder's Pareto frontier beside the one that the paper printed, for 32 to 1,024 nodes of degree 4."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from chorale.experiments.framework.comparison import PublishedRow, digits_of, published, short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.find import FrontierPoint, find
from chorale.synth.finder.query import FinderQuery

NODES = (32, 64, 128, 256, 512, 1024)
DEGREE = 4
_QUICK_NODES = 256


def _cases(quick: bool) -> Sequence[int]:
    """Return numbers of nodes."""
    return [nodes for nodes in NODES if not quick or nodes <= _QUICK_NODES]


def _rows(nodes: int) -> list[Row]:
    """Return our frontier, every row of it synthesized and verified, then the printed one, which it must cover."""
    query = FinderQuery(nodes, DEGREE)
    ours = find(query, SerialExecutor(), confirmed_nodes=nodes).frontier
    theirs = [row for row in published("7").rows if row.nodes == nodes and not row.is_bound]
    return [*(_ours(finding, query, theirs) for finding in ours), *(_theirs(row, ours) for row in theirs)]


def _ours(finding: FrontierPoint, query: FinderQuery, theirs: Sequence[PublishedRow]) -> Row:
    candidate = finding.candidate
    beaten = [row.topology for row in theirs if _covers(finding, row) and _differs(finding, row)]
    bounds = [
        name
        for name, met in (
            ("steps", candidate.steps == query.least_steps),
            ("T_B", candidate.is_bandwidth_optimal),
        )
        if met
    ]
    return {
        "nodes": candidate.nodes,
        "whose": "ours",
        "steps": candidate.steps,
        "bandwidth_factor": str(candidate.bandwidth_factor),
        "method": candidate.method,
        "spec": candidate.spec,
        "bounds_met": bounds,
        "beats": beaten,
        "verified": finding.confirmed,
        "reason": f"beats {', '.join(beaten)}" if beaten else None,
        "holds": finding.confirmed,
    }


def _theirs(row: PublishedRow, ours: Sequence[FrontierPoint]) -> Row:
    covers = [finding for finding in ours if _covers(finding, row)]
    verdict = "not reached" if not covers else "match"
    if any(_differs(finding, row) for finding in covers):
        verdict = "better"
    return {
        "nodes": row.nodes,
        "whose": "paper",
        "steps": int(row.printed["steps"]),
        "bandwidth_factor": row.printed["bandwidth_factor"],
        "method": row.method,
        "spec": row.spec,
        "bounds_met": [],
        "beats": [],
        "verified": False,
        "verdict": verdict,
        "reason": None if covers else "nothing of ours is as good",
        "holds": bool(covers),
    }


def _covers(finding: FrontierPoint, row: PublishedRow) -> bool:
    """Whether `finding` is at least as good in both costs, as far as digits were printed."""
    candidate = finding.candidate
    most = digits_of(row.printed["bandwidth_factor"]).high
    return candidate.steps <= int(row.printed["steps"]) and candidate.bandwidth_factor <= most


def _differs(finding: FrontierPoint, row: PublishedRow) -> bool:
    least = digits_of(row.printed["bandwidth_factor"]).low
    return finding.candidate.steps < int(row.printed["steps"]) or finding.candidate.bandwidth_factor < least


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.direct_connect.plots import plot_frontiers  # noqa: PLC0415 (matplotlib is slow)

    plot_frontiers(rows, path)


EXPERIMENT = Experiment(
    name="finder-frontier",
    question="Does the finder's frontier cover and beat the one that the paper printed, with verified schedules?",
    source=published("7").source,
    columns=(
        Column("nodes", lambda row: str(row["nodes"])),
        Column("whose", lambda row: str(row["whose"])),
        Column("T_L", lambda row: str(row["steps"])),
        Column("T_B (M/B)", lambda row: str(row["bandwidth_factor"])),
        Column("", lambda row: short_text(Fraction(row["bandwidth_factor"]))),
        Column("bounds met", lambda row: ", ".join(row["bounds_met"])),
        Column("method", lambda row: str(row["method"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("verified", lambda row: "yes" if row["verified"] else ""),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
    plot=_plot,
)
