"""The finder's frontier for every number of nodes to 2,000, beside what the paper's bases give and what it printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from chorale.experiments.direct_connect.figure_15 import Frontier, Frontiers, find_frontiers, frontiers_of
from chorale.experiments.framework.comparison import PublishedRow, digits_of, published, short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.finder.base_candidates import BaseSet
from chorale.synth.finder.candidate import TopologyCandidate, Workload
from chorale.synth.finder.query import FinderQuery

DEGREE, SMALLEST, LARGEST, QUICK_LARGEST = 4, 5, 2000, 300
ALPHA_US, NODE_GBPS = 10, 100
WORKLOADS: Mapping[str, Workload] = {
    name: Workload(Fraction(ALPHA_US), size_bytes, Fraction(NODE_GBPS))
    for name, size_bytes in (("1 MB", 10**6), ("100 MB", 10**8))
}
"""Of figure 15: an allreduce of 2 (T_L + T_B)."""

_OURS: BaseSet = "all"
_PAPERS: BaseSet = "paper"


def _cases(quick: bool) -> Sequence[tuple[BaseSet, int]]:
    """Return which bases are taken, and the largest number of nodes."""
    largest = QUICK_LARGEST if quick else LARGEST
    return [(_OURS, largest), (_PAPERS, largest)]


def _frontiers(case: tuple[BaseSet, int]) -> list[Any]:
    bases, largest = case
    return find_frontiers(FinderQuery(nodes, DEGREE, bases=bases) for nodes in range(SMALLEST, largest + 1))


def _conclude(parts: Sequence[Any]) -> list[Row]:
    ours, theirs = map(frontiers_of, parts)
    printed = [row for row in published("7").rows if not row.is_bound and row.nodes in ours]
    return [*_rows_by_size(ours, theirs), *(_printed_row(row, ours[row.nodes]) for row in printed)]


def _rows_by_size(ours: Frontiers, theirs: Frontiers) -> Iterator[Row]:
    """Yield a row for the sizes between two powers of two."""
    low = SMALLEST
    while low <= max(ours):
        high = min(2 ** low.bit_length() - 1, max(ours))
        yield _row(range(low, high + 1), ours, theirs)
        low = high + 1


def _row(sizes: range, ours: Frontiers, theirs: Frontiers) -> Row:
    ahead = [nodes for nodes in sizes if _is_ahead(ours[nodes], theirs[nodes])]
    behind = [nodes for nodes in sizes if not _covers_all(ours[nodes], theirs[nodes])]
    curves = {name: [_times(nodes, workload, ours, theirs) for nodes in sizes] for name, workload in WORKLOADS.items()}
    gains = {name: [(paper / own - 1, nodes) for nodes, own, paper, _ in curve] for name, curve in curves.items()}
    return {
        "nodes": sizes[-1],
        "spec": f"{sizes[0]} to {sizes[-1]} nodes, degree {DEGREE}",
        "sizes": len(sizes),
        "points": sum(len(ours[nodes]) for nodes in sizes),
        "bandwidth_optimal": sum(ours[nodes][-1].is_bandwidth_optimal for nodes in sizes),
        "fewest_steps": sum(ours[nodes][0].steps == FinderQuery(nodes, DEGREE).least_steps for nodes in sizes),
        "ahead": len(ahead),
        "behind": behind,
        "mean_gain": {name: sum(gain for gain, _ in of_sizes) / len(sizes) for name, of_sizes in gains.items()},
        "most_gain": {name: list(max(of_sizes)) for name, of_sizes in gains.items()},
        "curves": curves,
        "reason": f"behind the paper's bases at {behind}" if behind else None,
        "holds": not behind,
    }


def _times(nodes: int, workload: Workload, ours: Frontiers, theirs: Frontiers) -> tuple[int, float, float, float]:
    """Return nodes and microseconds: the fastest of ours, of the paper's bases, and what no network can beat."""
    query = FinderQuery(nodes, DEGREE)
    own, paper = (
        float(min(workload.time_us(candidate) for candidate in frontiers[nodes])) for frontiers in (ours, theirs)
    )
    least = 2 * (query.least_steps * workload.alpha_us + query.least_bandwidth_factor * _us_per_factor(workload))
    return nodes, own, paper, float(least)


def _us_per_factor(workload: Workload) -> Fraction:
    return Fraction(8 * workload.size_bytes, 1000) / workload.bandwidth_gbps


def _covers(one: TopologyCandidate, other: TopologyCandidate) -> bool:
    return one.steps <= other.steps and one.bandwidth_factor <= other.bandwidth_factor


def _covers_all(ours: Frontier, theirs: Frontier) -> bool:
    return all(any(_covers(one, other) for one in ours) for other in theirs)


def _is_ahead(ours: Frontier, theirs: Frontier) -> bool:
    """Whether one of ours is nowhere among theirs, and none of theirs is as good."""
    return any(not any(_covers(other, one) for other in theirs) for one in ours)


def _printed_row(row: PublishedRow, ours: Frontier) -> Row:
    """Compare a printed point with ours of no more steps, as far as digits were printed."""
    steps, digits = int(row.printed["steps"]), digits_of(row.printed["bandwidth_factor"])
    covers = [one for one in ours if one.steps <= steps and one.bandwidth_factor <= digits.high]
    better = [one for one in covers if one.steps < steps or one.bandwidth_factor < digits.low]
    best = next(iter(better or covers), None)
    return {
        "nodes": row.nodes,
        "spec": best.spec if best else row.spec,
        "topology": row.topology,
        "printed": {"steps": steps, "bandwidth_factor": row.printed["bandwidth_factor"]},
        "ours": {"steps": best.steps, "bandwidth_factor": str(best.bandwidth_factor)} if best else None,
        "us": {name: float(_printed_us(row, workload)) for name, workload in WORKLOADS.items()},
        "verdict": "better" if better else "match" if covers else "not reached",
        "reason": None if covers else "nothing of ours is as good",
        "holds": bool(covers),
    }


def _printed_us(row: PublishedRow, workload: Workload) -> Fraction:
    factor = Fraction(row.printed["bandwidth_factor"])
    return 2 * (int(row.printed["steps"]) * workload.alpha_us + factor * _us_per_factor(workload))


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.direct_connect.plots import plot_all_sizes  # noqa: PLC0415 (matplotlib is slow)

    plot_all_sizes(rows, tuple(WORKLOADS), path)


def _gain(row: Row, name: str) -> str:
    if "mean_gain" not in row:
        return ""
    most, nodes = row["most_gain"][name]
    return f"{row['mean_gain'][name]:.1%}, at most {most:.0%} ({nodes})"


def _cost(row: Row, key: str) -> str:
    if not row.get(key):
        return ""
    return f"{row[key]['steps']} steps, {short_text(Fraction(row[key]['bandwidth_factor']))}"


EXPERIMENT = Experiment(
    name="frontier-all",
    question="How far ahead of the paper's is our finder's frontier, for every number of nodes to 2,000?",
    source=f"ours; the paper's: its bases (tables 8 and 9) with our expansions, and its printed points, "
    f"{published('7').source}",
    columns=(
        Column("sizes", lambda row: row["topology"] if "topology" in row else str(row["spec"])),
        Column("nodes", lambda row: str(row["nodes"])),
        Column("points", lambda row: str(row.get("points", ""))),
        Column("fewest steps", lambda row: str(row.get("fewest_steps", ""))),
        Column("least T_B", lambda row: str(row.get("bandwidth_optimal", ""))),
        Column("ahead at", lambda row: f"{row['ahead']} of {row['sizes']}" if "ahead" in row else ""),
        Column("faster at 1 MB", lambda row: _gain(row, "1 MB")),
        Column("faster at 100 MB", lambda row: _gain(row, "100 MB")),
        Column("printed", lambda row: _cost(row, "printed")),
        Column("ours", lambda row: _cost(row, "ours")),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_frontiers,
    conclude=_conclude,
    plot=_plot,
)
