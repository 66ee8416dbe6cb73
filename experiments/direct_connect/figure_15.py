"""Figure 15: which topology of degree 4 has the shortest allreduce, for every number of nodes up to 2,000.

The frontiers of the finder are stored as JSON, between its search and the conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import TopologyCandidate, Traits, Workload, least_bandwidth_factor, least_steps
from chorale.synth.finder.find_all import find_all
from chorale.synth.finder.query import FinderQuery
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, Number, Option, SpecTree, parse_spec

Frontier: TypeAlias = tuple[TopologyCandidate, ...]
Frontiers: TypeAlias = Mapping[int, Frontier]
"""Pareto-efficient candidates by rising steps, by number of nodes."""


def find_frontiers(queries: Iterable[FinderQuery]) -> list[Any]:
    """Return the frontier of every query as JSON has it; the queries share their work."""
    frontiers = find_all(list(queries), SerialExecutor())
    return [[query.nodes, [_json(candidate) for candidate in frontier]] for query, frontier in frontiers.items()]


def frontiers_of(part: Sequence[Any]) -> Frontiers:
    """Return the frontiers that `find_frontiers` wrote as JSON."""
    return {nodes: tuple(map(_candidate, frontier)) for nodes, frontier in part}


def _json(candidate: TopologyCandidate) -> dict[str, Any]:
    exact = {"bandwidth_factor": str(candidate.bandwidth_factor), "least_factor": str(candidate.least_factor)}
    return {**asdict(candidate), **exact}


def _candidate(document: Mapping[str, Any]) -> TopologyCandidate:
    exact = {key: Fraction(document[key]) for key in ("bandwidth_factor", "least_factor")}
    return TopologyCandidate(
        **{**document, **exact, "traits": Traits(**document["traits"]), "origin": tuple(document["origin"])}
    )


DEGREE, _LARGEST, _QUICK_STRIDE = 4, 2000, 13
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
"""Line graphs are among so many most frequent kinds where the text calls them popular."""


def kind_of(spec: str) -> str:
    """Return what the figure calls a topology: letters of its expansions, such as LC, or the name of its family."""
    tree = parse_spec(spec)
    letters = "".join(sorted(_letters(tree)))
    if letters:
        return letters
    name = tree.name if isinstance(tree, FamilyCall) else spec
    return _FAMILIES.get(name, "other base")


def _letters(tree: SpecTree | Number | Option) -> set[str]:
    if not isinstance(tree, FunctionCall):
        return set()
    return {_FUNCTIONS[tree.name]}.union(*map(_letters, tree.arguments))


def _cases(quick: bool) -> Sequence[tuple[bool, int, int]]:
    """Return whether topologies are bidirectional, the largest number of nodes, and the distance between them."""
    stride = _QUICK_STRIDE if quick else 1
    return [(False, _LARGEST, stride), (True, _LARGEST, stride)]


def _frontiers(case: tuple[bool, int, int]) -> list[Any]:
    bidirectional, largest, stride = case
    return find_frontiers(
        FinderQuery(nodes, DEGREE, bidirectional, "paper") for nodes in range(_SMALLEST, largest + 1, stride)
    )


def _conclude(parts: Sequence[Any]) -> list[Row]:
    one_way, two_way = map(frontiers_of, parts)
    rows: list[Row] = []
    for name, workload in WORKLOADS.items():
        kinds = _rows_of_kinds(name, workload, one_way)
        both_ways = [(nodes, workload.best(frontier)) for nodes, frontier in two_way.items()]
        bound = [[nodes, _bound_us(workload, nodes)] for nodes in one_way]
        rows += [*kinds, _row(name, _BIDIRECTIONAL, workload, both_ways), _row_of_bound(name, bound, one_way, workload)]
        rows.append(_finding(name, kinds))
    return rows


def _rows_of_kinds(name: str, workload: Workload, frontiers: Frontiers) -> list[Row]:
    """Return a row for each kind that is best somewhere, the most frequent first."""
    by_kind: dict[str, list[tuple[int, TopologyCandidate]]] = {}
    for nodes, frontier in frontiers.items():
        best = workload.best(frontier)
        by_kind.setdefault(kind_of(best.spec), []).append((nodes, best))
    ordered = sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_row(name, kind, workload, chosen) for kind, chosen in ordered]


def _row(name: str, kind: str, workload: Workload, chosen: Sequence[tuple[int, TopologyCandidate]]) -> Row:
    nodes, example = chosen[-1]
    return {
        "size": name, "kind": kind, "count": len(chosen), "nodes": nodes, "spec": example.spec,
        "method": example.method, "curve": [[n, float(workload.time_us(one))] for n, one in chosen],
        "reason": "the paper saw none of degree expansion" if "D" in kind and kind.isupper() else None, "holds": True,
    }  # fmt: skip


def _bound_us(workload: Workload, nodes: int) -> float:
    """Return what no network of this size and degree can beat."""
    per_factor_us = Fraction(8 * workload.size_bytes, 1000) / workload.bandwidth_gbps
    return float(2 * (least_steps(nodes, DEGREE) * workload.alpha_us + least_bandwidth_factor(nodes) * per_factor_us))


def _row_of_bound(name: str, bound: Sequence[Sequence[float]], frontiers: Frontiers, workload: Workload) -> Row:
    """Return the bound; nothing may be below it."""
    over = [float(workload.time_us(workload.best(frontiers[int(n)]))) / least_us for n, least_us in bound]
    return {
        "size": name, "kind": _BOUND, "count": len(bound), "nodes": int(bound[-1][0]), "spec": "", "method": "",
        "curve": bound, "over_bound": fmean(over), "reason": None, "holds": min(over) >= 1 - 1e-12,
    }  # fmt: skip


def _finding(name: str, kinds: Sequence[Row]) -> Row:
    """Return which kind is best most often, beside what the text says; line graphs are popular in both."""
    ranking = [row["kind"] for row in kinds]
    line_rank = ranking.index(_LINE) + 1 if _LINE in ranking else len(ranking) + 1
    holds = ranking[0] == _MOST_POPULAR[name] and line_rank <= _POPULAR
    return {
        "size": name, "kind": "finding", "nodes": kinds[0]["nodes"], "spec": "",
        "finding": f"{_MOST_POPULAR[name]} is best most often, line graphs are popular",
        "ranking": ranking, "verdict": "match" if holds else "not reached",
        "reason": None if holds else f"the order is {', '.join(ranking[:4])}", "holds": holds,
    }  # fmt: skip


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.direct_connect.plots import plot_kinds  # noqa: PLC0415 (matplotlib is slow)

    panels = {name: [row for row in rows if row["size"] == name and "curve" in row] for name in WORKLOADS}
    plot_kinds(panels, {_BIDIRECTIONAL: "0.6", _BOUND: "black"}, path)


EXPERIMENT = Experiment(
    name="direct-connect-figure-15",
    question="Which kinds of topologies of degree 4 have the shortest allreduce for N up to 2,000, at 1 and 100 MB?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 15",
    columns=(
        Column("size", lambda row: str(row["size"])),
        Column("kind", lambda row: str(row["kind"])),
        Column("best at so many N", lambda row: str(row.get("count", ""))),
        Column("largest of them", lambda row: str(row["spec"])),
        Column("us there", lambda row: f"{row['curve'][-1][1]:.5g}" if "curve" in row else ""),
        Column("over the bound, mean", lambda row: f"{row['over_bound']:.3f}" if "over_bound" in row else ""),
        Column("finding", lambda row: row.get("finding", "")),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_frontiers,
    conclude=_conclude,
    plot=_plot,
)
