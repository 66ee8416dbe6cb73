"""Compares our finder's Pareto frontiers and best kinds of networks with those of the direct-connect paper."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from statistics import fmean
from typing import Any, TypeAlias

from chorale.experiments.framework.experiment import (
    DIRECT_CONNECT,
    Column,
    Experiment,
    PublishedRow,
    Row,
    columns,
    digits_of,
    published,
    short_text,
)
from chorale.experiments.framework.plots import Chart, Point, curve_points, line_points
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.candidate import TopologyCandidate, Traits, Workload, least_bandwidth_factor, least_steps
from chorale.synth.finder.constructions import BaseSet
from chorale.synth.finder.find import FinderQuery, find, find_all
from chorale.synth.topology.registry import FamilyCall, FunctionCall, Number, Option, SpecTree, parse_spec

DEGREE = 4
_PRINTED = [row for row in published("7").rows if not row.is_bound]

Frontier: TypeAlias = Sequence[TopologyCandidate]
"""Pareto-optimal candidates, ordered by steps."""
NODES = (32, 64, 128, 256, 512, 1024)
_QUICK_NODES = 256


def _beside_printed(row: PublishedRow, ours: Frontier) -> tuple[str, Frontier, Frontier]:
    """Compare our frontier with a point that the paper printed, at the precision of its digits.

    Returns:
        The verdict, our candidates that are at least as good in both costs, and those that are also better in one.
    """
    steps, digits = int(row.printed["steps"]), digits_of(row.printed["bandwidth_factor"])
    covers = [one for one in ours if one.steps <= steps and one.bandwidth_factor <= digits.high]
    better = [one for one in covers if one.steps < steps or one.bandwidth_factor < digits.low]
    return "better" if better else "match" if covers else "not reached", covers, better


def _finder_rows(nodes: int) -> list[Row]:
    """Return rows for our frontier, whose schedules are all verified, then rows for the printed frontier."""
    query = FinderQuery(nodes, DEGREE)
    frontier = find(query, SerialExecutor(), confirmed_nodes=nodes).frontier
    ours = [finding.candidate for finding in frontier]
    theirs = [(row, *_beside_printed(row, ours)) for row in _PRINTED if row.nodes == nodes]
    rows: list[Row] = []
    for finding in frontier:
        one = finding.candidate
        beaten = [row.topology for row, _, _, better in theirs if one in better]
        met = {"steps": one.steps == query.least_steps, "T_B": one.is_bandwidth_optimal}
        rows.append({
            "nodes": nodes, "whose": "ours", "steps": one.steps, "bandwidth_factor": str(one.bandwidth_factor),
            "method": one.method, "spec": one.spec, "bounds_met": [name for name in met if met[name]], "beats": beaten,
            "verified": finding.confirmed, "reason": f"beats {', '.join(beaten)}" if beaten else None,
            "holds": finding.confirmed,
        })  # fmt: skip
    for row, verdict, covers, _ in theirs:
        rows.append({
            "nodes": nodes, "whose": "paper", "steps": int(row.printed["steps"]),
            "bandwidth_factor": row.printed["bandwidth_factor"], "method": row.method, "spec": row.spec,
            "bounds_met": [], "beats": [], "verified": False, "verdict": verdict,
            "reason": None if covers else "nothing of ours is as good", "holds": bool(covers),
        })  # fmt: skip
    return rows


FINDER_FRONTIER = Experiment(
    name="finder-frontier",
    question="Does the finder's frontier cover and beat the one that the paper printed, with verified schedules?",
    source=published("7").source,
    columns=columns(
        "nodes | whose | T_L=steps | T_B (M/B)=bandwidth_factor",
        Column("", lambda row: short_text(row["bandwidth_factor"])),
        Column("bounds met", lambda row: ", ".join(row["bounds_met"])),
        "method | spec",
        Column("verified", lambda row: "yes" if row["verified"] else ""),
        "reason",
    ),
    cases=NODES,
    quick=[nodes for nodes in NODES if nodes <= _QUICK_NODES],
    evaluate=_finder_rows,
    plot=Chart(line_points("{nodes} nodes", "{whose}", "steps", "bandwidth_factor"), "steps T_L", "T_B in M/B", log=""),
)


Frontiers: TypeAlias = Mapping[int, Frontier]
"""Number of nodes -> frontier."""


def find_frontiers(queries: Iterable[FinderQuery]) -> list[Any]:
    """Find each query's Pareto frontier; return them as JSON for `frontiers_of`. Queries share intermediate results."""

    def document(candidate: TopologyCandidate) -> dict[str, Any]:
        exact = {"bandwidth_factor": str(candidate.bandwidth_factor), "least_factor": str(candidate.least_factor)}
        return {**asdict(candidate), **exact}

    frontiers = find_all(list(queries), SerialExecutor())
    return [[query.nodes, list(map(document, frontier))] for query, frontier in frontiers.items()]


def frontiers_of(part: Sequence[Any]) -> Frontiers:
    """Read the frontiers that `find_frontiers` returned as JSON."""

    def candidate(document: Mapping[str, Any]) -> TopologyCandidate:
        changed: dict[str, Any] = {key: Fraction(document[key]) for key in ("bandwidth_factor", "least_factor")}
        changed |= {"traits": Traits(**document["traits"]), "origin": tuple(document["origin"])}
        return TopologyCandidate(**{**document, **changed})

    return {nodes: tuple(map(candidate, frontier)) for nodes, frontier in part}


LARGEST, _QUICK_STRIDE = 2000, 13
_SMALLEST = DEGREE + 2
WORKLOADS: Mapping[str, Workload] = {
    f"{megabytes} MB": Workload(Fraction(10), megabytes * 10**6, Fraction(100)) for megabytes in (1, 100)
}
_MOST_POPULAR = {"1 MB": "GenKautz", "100 MB": "Circulant"}
_LINE = "L"
_FUNCTIONS = {"line": _LINE, "power": "P", "product": "C", "degree": "D", "bidirectional": "B"}
_FAMILIES = {"genkautz": "GenKautz", "distreg": "DistReg", "circulant": "Circulant"}
_BIDIRECTIONAL, _BOUND = "best bidirectional", "bound"
_POPULAR = 3
"""The paper calls line graphs popular: they must be among this many kinds of networks that are best most often."""


def kind_of(spec: str) -> str:
    """Return figure 15's name for the kind of a topology: the letters of its expansions, such as LC, or its family."""

    def letters(tree: SpecTree | Number | Option) -> set[str]:
        if not isinstance(tree, FunctionCall):
            return set()
        return {_FUNCTIONS[tree.name]}.union(*map(letters, tree.arguments))

    tree = parse_spec(spec)
    found = "".join(sorted(letters(tree)))
    return found or _FAMILIES.get(tree.name if isinstance(tree, FamilyCall) else spec, "other base")


def _least_us(workload: Workload, nodes: int) -> float:
    """Return a lower bound on the workload's time in µs on any network of this size and degree."""
    return float(workload.us_of(least_steps(nodes, DEGREE), least_bandwidth_factor(nodes)))


def _figure_15_frontiers(case: tuple[bool, int, int]) -> list[Any]:
    bidirectional, largest, stride = case
    return find_frontiers(
        FinderQuery(nodes, DEGREE, bidirectional, "paper") for nodes in range(_SMALLEST, largest + 1, stride)
    )


def _figure_15_rows(parts: Sequence[Any]) -> list[Row]:
    one_way, two_way = map(frontiers_of, parts)
    rows: list[Row] = []
    for name, workload in WORKLOADS.items():
        by_kind: dict[str, list[tuple[int, TopologyCandidate]]] = {}
        for nodes, frontier in one_way.items():
            best = workload.best(frontier)
            by_kind.setdefault(kind_of(best.spec), []).append((nodes, best))
        ranking = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
        both_ways = [(nodes, workload.best(frontier)) for nodes, frontier in two_way.items()]
        chosen = {**{kind: by_kind[kind] for kind in ranking}, _BIDIRECTIONAL: both_ways}
        first = len(rows)
        for kind, best_of_kind in chosen.items():
            nodes, example = best_of_kind[-1]
            rows.append({
                "size": name, "kind": kind, "count": len(best_of_kind), "nodes": nodes, "spec": example.spec,
                "method": example.method, "curve": [[n, float(workload.time_us(one))] for n, one in best_of_kind],
                "reason": "the paper saw none of degree expansion" if "D" in kind and kind.isupper() else None,
                "holds": True,
            })  # fmt: skip
        bound = [[nodes, _least_us(workload, nodes)] for nodes in one_way]
        over = [float(workload.time_us(workload.best(one_way[int(n)]))) / least_us for n, least_us in bound]
        rows.append({
            "size": name, "kind": _BOUND, "count": len(bound), "nodes": int(bound[-1][0]), "spec": "", "method": "",
            "curve": bound, "over_bound": fmean(over), "reason": None, "holds": min(over) >= 1 - 1e-12,
        })  # fmt: skip
        holds = ranking[0] == _MOST_POPULAR[name] and _LINE in ranking[:_POPULAR]
        rows.append({
            "size": name, "kind": "finding", "nodes": rows[first]["nodes"], "spec": "",
            "finding": f"{_MOST_POPULAR[name]} is best most often, line graphs are popular",
            "ranking": ranking, "verdict": "match" if holds else "not reached",
            "reason": None if holds else f"the order is {', '.join(ranking[:4])}", "holds": holds,
        })  # fmt: skip
    return rows


FIGURE_15 = Experiment(
    name="direct-connect-figure-15",
    question="Which kinds of topologies of degree 4 have the shortest allreduce for N up to 2,000, at 1 and 100 MB?",
    source=f"{DIRECT_CONNECT}, figure 15",
    columns=columns(
        "size | kind | best at so many N=count | largest of them=spec",
        Column("us there", lambda row: f"{row['curve'][-1][1]:.5g}" if "curve" in row else ""),
        "over the bound, mean=over_bound:.3f | finding | reason",
    ),
    cases=[(False, LARGEST, 1), (True, LARGEST, 1)],  # bidirectional, largest node count, step between counts
    quick=[(False, LARGEST, _QUICK_STRIDE), (True, LARGEST, _QUICK_STRIDE)],
    evaluate=_figure_15_frontiers,
    conclude=_figure_15_rows,
    plot=Chart(curve_points("{size}", "{kind}"), "N", "allreduce in us", log="", dots=True),
)


SMALLEST, QUICK_LARGEST = 5, 300
_BASES: tuple[BaseSet, BaseSet] = ("all", "paper")


def _all_frontiers(case: tuple[BaseSet, int]) -> list[Any]:
    bases, largest = case
    return find_frontiers(FinderQuery(nodes, DEGREE, bases=bases) for nodes in range(SMALLEST, largest + 1))


def _frontier_all_rows(parts: Sequence[Any]) -> list[Row]:
    """Return a row for each range of node counts from one power of two to the next, then rows for printed points."""
    ours, theirs = map(frontiers_of, parts)
    rows, low = list[Row](), SMALLEST
    while low <= max(ours):
        high = min(2 ** low.bit_length() - 1, max(ours))
        rows.append(_row_of_sizes(range(low, high + 1), ours, theirs))
        low = high + 1
    for row in _PRINTED:
        if row.nodes not in ours:
            continue
        verdict, covers, better = _beside_printed(row, ours[row.nodes])
        best = next(iter(better or covers), None)
        steps, factor = int(row.printed["steps"]), row.printed["bandwidth_factor"]
        rows.append({
            "nodes": row.nodes, "spec": best.spec if best else row.spec, "topology": row.topology,
            "printed": {"steps": steps, "bandwidth_factor": factor},
            "ours": {"steps": best.steps, "bandwidth_factor": str(best.bandwidth_factor)} if best else None,
            "us": {name: float(workload.us_of(steps, Fraction(factor))) for name, workload in WORKLOADS.items()},
            "verdict": verdict, "reason": None if covers else "nothing of ours is as good", "holds": bool(covers),
        })  # fmt: skip
    return rows


def _row_of_sizes(sizes: range, ours: Frontiers, theirs: Frontiers) -> Row:
    def lacks(frontier: Frontier, other: Frontier) -> bool:
        """Return whether `other` has a point that no point of `frontier` equals or beats in steps and bandwidth."""
        return any(
            not any(one.steps <= point.steps and one.bandwidth_factor <= point.bandwidth_factor for one in frontier)
            for point in other
        )

    def times(nodes: int, workload: Workload) -> tuple[int, float, float, float]:
        """Return the node count, the best times in µs with all bases and with the paper's bases, and a lower bound."""
        own, paper = (float(workload.time_us(workload.best(frontiers[nodes]))) for frontiers in (ours, theirs))
        return nodes, own, paper, _least_us(workload, nodes)

    behind = [nodes for nodes in sizes if lacks(ours[nodes], theirs[nodes])]
    curves = {name: [times(nodes, workload) for nodes in sizes] for name, workload in WORKLOADS.items()}
    gains = {name: [(paper / own - 1, nodes) for nodes, own, paper, _ in curve] for name, curve in curves.items()}
    return {
        "nodes": sizes[-1],
        "spec": f"{sizes[0]} to {sizes[-1]} nodes, degree {DEGREE}",
        "sizes": len(sizes),
        "points": sum(len(ours[nodes]) for nodes in sizes),
        "bandwidth_optimal": sum(ours[nodes][-1].is_bandwidth_optimal for nodes in sizes),
        "fewest_steps": sum(ours[nodes][0].steps == least_steps(nodes, DEGREE) for nodes in sizes),
        "ahead": sum(lacks(theirs[nodes], ours[nodes]) for nodes in sizes),
        "behind": behind,
        "mean_gain": {name: sum(gain for gain, _ in of_sizes) / len(sizes) for name, of_sizes in gains.items()},
        "most_gain": {name: list(max(of_sizes)) for name, of_sizes in gains.items()},
        "curves": curves,
        "reason": f"behind the paper's bases at {behind}" if behind else None,
        "holds": not behind,
    }


def _gain(name: str, row: Row) -> str:
    if "mean_gain" not in row:
        return ""
    most, nodes = row["most_gain"][name]
    return f"{row['mean_gain'][name]:.1%}, at most {most:.0%} ({nodes})"


def _cost(key: str, row: Row) -> str:
    cost = row.get(key)
    return f"{cost['steps']} steps, {short_text(cost['bandwidth_factor'])}" if cost else ""


def _frontier_all_points(rows: Sequence[Row]) -> Iterator[Point]:
    """Yield times and gains by node count, without printed points that are far slower than the curves."""
    for name in WORKLOADS:
        times, gains = f"allreduce of {name}, us", f"{name}: faster than the paper's bases by"
        slowest = 0.0
        for nodes, own, paper, least in (point for row in rows if "curves" in row for point in row["curves"][name]):
            slowest = max(slowest, paper)
            yield from ((times, "the paper's bases", nodes, paper), (times, "all bases", nodes, own))
            yield from ((times, "no network is faster", nodes, least), (gains, "all bases", nodes, paper / own - 1))
        printed = ((row["nodes"], row["us"][name]) for row in rows if "us" in row)
        yield from ((times, "printed points", nodes, us) for nodes, us in printed if us <= slowest)


FRONTIER_ALL = Experiment(
    name="frontier-all",
    question="How far ahead of the paper's is our finder's frontier, for every number of nodes to 2,000?",
    source=f"ours; the paper's: its bases (tables 8 and 9) with our expansions, and its printed points, "
    f"{published('7').source}",
    columns=columns(
        Column("sizes", lambda row: row["topology"] if "topology" in row else str(row["spec"])),
        "nodes | points | fewest steps=fewest_steps | least T_B=bandwidth_optimal",
        Column("ahead at", lambda row: f"{row['ahead']} of {row['sizes']}" if "ahead" in row else ""),
        *(Column(f"faster at {name}", partial(_gain, name)) for name in WORKLOADS),
        *(Column(whose, partial(_cost, whose)) for whose in ("printed", "ours")),
        "reason",
    ),
    cases=[(bases, LARGEST) for bases in _BASES],
    quick=[(bases, QUICK_LARGEST) for bases in _BASES],
    evaluate=_all_frontiers,
    conclude=_frontier_all_rows,
    plot=Chart(_frontier_all_points, "nodes", "", log="", dots=True),
)
