"""Frontiers of our finder: against the printed one, for every size to 2,000 nodes, by kind (figure 15)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from statistics import fmean
from typing import Any, TypeAlias

from chorale.experiments.framework import experiment as framework
from chorale.experiments.framework.plots import Chart, Point
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.base_candidates import BaseSet
from chorale.synth.finder.candidate import TopologyCandidate, Traits, Workload, least_bandwidth_factor, least_steps
from chorale.synth.finder.find import FinderQuery, FrontierPoint, find, find_all
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, Number, Option, SpecTree, parse_spec

NODES = (32, 64, 128, 256, 512, 1024)
DEGREE = 4
_QUICK_NODES = 256


def _rows(nodes: int) -> list[framework.Row]:
    """Return our frontier, every row of it synthesized and verified, then the printed one, which it must cover."""
    query = FinderQuery(nodes, DEGREE)
    ours = find(query, SerialExecutor(), confirmed_nodes=nodes).frontier
    theirs = [row for row in framework.published("7").rows if row.nodes == nodes and not row.is_bound]
    return [*(_ours(finding, query, theirs) for finding in ours), *(_theirs(row, ours) for row in theirs)]


def _ours(finding: FrontierPoint, query: FinderQuery, theirs: Sequence[framework.PublishedRow]) -> framework.Row:
    candidate = finding.candidate
    beaten = [row.topology for row in theirs if _finder_frontier_covers(finding, row) and _differs(finding, row)]
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


def _theirs(row: framework.PublishedRow, ours: Sequence[FrontierPoint]) -> framework.Row:
    covers = [finding for finding in ours if _finder_frontier_covers(finding, row)]
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


def _finder_frontier_covers(finding: FrontierPoint, row: framework.PublishedRow) -> bool:
    """Whether `finding` is at least as good in both costs, as far as digits were printed."""
    candidate = finding.candidate
    most = framework.digits_of(row.printed["bandwidth_factor"]).high
    return candidate.steps <= int(row.printed["steps"]) and candidate.bandwidth_factor <= most


def _differs(finding: FrontierPoint, row: framework.PublishedRow) -> bool:
    least = framework.digits_of(row.printed["bandwidth_factor"]).low
    return finding.candidate.steps < int(row.printed["steps"]) or finding.candidate.bandwidth_factor < least


def _finder_points(rows: Sequence[framework.Row]) -> Iterator[Point]:
    for row in rows:
        yield f"{row['nodes']} nodes", row["whose"], row["steps"], float(Fraction(row["bandwidth_factor"]))


FINDER_FRONTIER = framework.Experiment(
    name="finder-frontier",
    question="Does the finder's frontier cover and beat the one that the paper printed, with verified schedules?",
    source=framework.published("7").source,
    columns=framework.columns(
        "nodes, whose, T_L=steps, T_B (M/B)=bandwidth_factor",
        framework.Column("", lambda row: framework.short_text(Fraction(row["bandwidth_factor"]))),
        framework.Column("bounds met", lambda row: ", ".join(row["bounds_met"])),
        "method, spec",
        framework.Column("verified", lambda row: "yes" if row["verified"] else ""),
        "reason",
    ),
    cases=NODES,
    quick=[nodes for nodes in NODES if nodes <= _QUICK_NODES],
    evaluate=_rows,
    plot=Chart(_finder_points, "steps T_L", "T_B in M/B", log=""),
)


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


def _figure_15_frontiers(case: tuple[bool, int, int]) -> list[Any]:
    bidirectional, largest, stride = case
    return find_frontiers(
        FinderQuery(nodes, DEGREE, bidirectional, "paper") for nodes in range(_SMALLEST, largest + 1, stride)
    )


def _figure_15_conclude(parts: Sequence[Any]) -> list[framework.Row]:
    one_way, two_way = map(frontiers_of, parts)
    rows: list[framework.Row] = []
    for name, workload in WORKLOADS.items():
        kinds = _rows_of_kinds(name, workload, one_way)
        both_ways = [(nodes, workload.best(frontier)) for nodes, frontier in two_way.items()]
        bound = [[nodes, _bound_us(workload, nodes)] for nodes in one_way]
        rows += [
            *kinds,
            _figure_15_row(name, _BIDIRECTIONAL, workload, both_ways),
            _row_of_bound(name, bound, one_way, workload),
        ]
        rows.append(_finding(name, kinds))
    return rows


def _rows_of_kinds(name: str, workload: Workload, frontiers: Frontiers) -> list[framework.Row]:
    """Return a row for each kind that is best somewhere, the most frequent first."""
    by_kind: dict[str, list[tuple[int, TopologyCandidate]]] = {}
    for nodes, frontier in frontiers.items():
        best = workload.best(frontier)
        by_kind.setdefault(kind_of(best.spec), []).append((nodes, best))
    ordered = sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_figure_15_row(name, kind, workload, chosen) for kind, chosen in ordered]


def _figure_15_row(
    name: str, kind: str, workload: Workload, chosen: Sequence[tuple[int, TopologyCandidate]]
) -> framework.Row:
    nodes, example = chosen[-1]
    return {
        "size": name, "kind": kind, "count": len(chosen), "nodes": nodes, "spec": example.spec,
        "method": example.method, "curve": [[n, float(workload.time_us(one))] for n, one in chosen],
        "reason": "the paper saw none of degree expansion" if "D" in kind and kind.isupper() else None, "holds": True,
    }  # fmt: skip


def _bound_us(workload: Workload, nodes: int) -> float:
    """Return what no network of this size and degree can beat."""
    least = least_steps(nodes, DEGREE) * workload.alpha_us + least_bandwidth_factor(nodes) * _us_per_factor(workload)
    return float(2 * least)


def _row_of_bound(
    name: str, bound: Sequence[Sequence[float]], frontiers: Frontiers, workload: Workload
) -> framework.Row:
    """Return the bound; nothing may be below it."""
    over = [float(workload.time_us(workload.best(frontiers[int(n)]))) / least_us for n, least_us in bound]
    return {
        "size": name, "kind": _BOUND, "count": len(bound), "nodes": int(bound[-1][0]), "spec": "", "method": "",
        "curve": bound, "over_bound": fmean(over), "reason": None, "holds": min(over) >= 1 - 1e-12,
    }  # fmt: skip


def _finding(name: str, kinds: Sequence[framework.Row]) -> framework.Row:
    """Compare which kind is best most often with the paper, in which line graphs are popular too."""
    ranking = [row["kind"] for row in kinds]
    line_rank = ranking.index(_LINE) + 1 if _LINE in ranking else len(ranking) + 1
    holds = ranking[0] == _MOST_POPULAR[name] and line_rank <= _POPULAR
    return {
        "size": name, "kind": "finding", "nodes": kinds[0]["nodes"], "spec": "",
        "finding": f"{_MOST_POPULAR[name]} is best most often, line graphs are popular",
        "ranking": ranking, "verdict": "match" if holds else "not reached",
        "reason": None if holds else f"the order is {', '.join(ranking[:4])}", "holds": holds,
    }  # fmt: skip


_SHOWN = 5
"""Kinds with a line of their own; the rare ones share one."""


def _figure_15_points(rows: Sequence[framework.Row]) -> Iterator[Point]:
    for name in WORKLOADS:
        of_size = [row for row in rows if row["size"] == name and "curve" in row]
        for place, row in enumerate(of_size):
            known = place < _SHOWN or row["kind"] in (_BIDIRECTIONAL, _BOUND)
            yield from ((name, row["kind"] if known else "others", *point) for point in row["curve"])


FIGURE_15 = framework.Experiment(
    name="direct-connect-figure-15",
    question="Which kinds of topologies of degree 4 have the shortest allreduce for N up to 2,000, at 1 and 100 MB?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, figure 15",
    columns=framework.columns(
        "size, kind, best at so many N=count, largest of them=spec",
        framework.Column("us there", lambda row: f"{row['curve'][-1][1]:.5g}" if "curve" in row else ""),
        framework.Column("over the bound, mean", lambda row: f"{row['over_bound']:.3f}" if "over_bound" in row else ""),
        "finding, reason",
    ),
    cases=[(False, LARGEST, 1), (True, LARGEST, 1)],  # bidirectional, most nodes, distance between sizes
    quick=[(False, LARGEST, _QUICK_STRIDE), (True, LARGEST, _QUICK_STRIDE)],
    evaluate=_figure_15_frontiers,
    conclude=_figure_15_conclude,
    plot=Chart(_figure_15_points, "N", "allreduce in us", log="", dots=True),
)


SMALLEST, QUICK_LARGEST = 5, 300
_OURS: BaseSet = "all"
_PAPERS: BaseSet = "paper"


def _frontier_all_frontiers(case: tuple[BaseSet, int]) -> list[Any]:
    bases, largest = case
    return find_frontiers(FinderQuery(nodes, DEGREE, bases=bases) for nodes in range(SMALLEST, largest + 1))


def _frontier_all_conclude(parts: Sequence[Any]) -> list[framework.Row]:
    ours, theirs = map(frontiers_of, parts)
    printed = [row for row in framework.published("7").rows if not row.is_bound and row.nodes in ours]
    return [*_rows_by_size(ours, theirs), *(_printed_row(row, ours[row.nodes]) for row in printed)]


def _rows_by_size(ours: Frontiers, theirs: Frontiers) -> Iterator[framework.Row]:
    """Yield a row for the sizes between two powers of two."""
    low = SMALLEST
    while low <= max(ours):
        high = min(2 ** low.bit_length() - 1, max(ours))
        yield _frontier_all_row(range(low, high + 1), ours, theirs)
        low = high + 1


def _frontier_all_row(sizes: range, ours: Frontiers, theirs: Frontiers) -> framework.Row:
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
    own, paper = (float(workload.time_us(workload.best(frontiers[nodes]))) for frontiers in (ours, theirs))
    return nodes, own, paper, _bound_us(workload, nodes)


def _us_per_factor(workload: Workload) -> Fraction:
    return Fraction(8 * workload.size_bytes, 1000) / workload.bandwidth_gbps


def _frontier_all_covers(one: TopologyCandidate, other: TopologyCandidate) -> bool:
    return one.steps <= other.steps and one.bandwidth_factor <= other.bandwidth_factor


def _covers_all(ours: Frontier, theirs: Frontier) -> bool:
    return all(any(_frontier_all_covers(one, other) for one in ours) for other in theirs)


def _is_ahead(ours: Frontier, theirs: Frontier) -> bool:
    """Whether one of ours is nowhere among theirs, and none of theirs is as good."""
    return any(not any(_frontier_all_covers(other, one) for other in theirs) for one in ours)


def _printed_row(row: framework.PublishedRow, ours: Frontier) -> framework.Row:
    """Compare a printed point with ours of no more steps, as far as digits were printed."""
    steps, digits = int(row.printed["steps"]), framework.digits_of(row.printed["bandwidth_factor"])
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


def _printed_us(row: framework.PublishedRow, workload: Workload) -> Fraction:
    factor = Fraction(row.printed["bandwidth_factor"])
    return 2 * (int(row.printed["steps"]) * workload.alpha_us + factor * _us_per_factor(workload))


def _gain(row: framework.Row, name: str) -> str:
    if "mean_gain" not in row:
        return ""
    most, nodes = row["most_gain"][name]
    return f"{row['mean_gain'][name]:.1%}, at most {most:.0%} ({nodes})"


def _cost(row: framework.Row, key: str) -> str:
    if not row.get(key):
        return ""
    return f"{row[key]['steps']} steps, {framework.short_text(Fraction(row[key]['bandwidth_factor']))}"


def _frontier_all_points(rows: Sequence[framework.Row]) -> Iterator[Point]:
    """Yield times and gains by number of nodes; printed points may be far slower."""
    for name in WORKLOADS:
        times, gains = f"allreduce of {name}, us", f"{name}: faster than the paper's bases by"
        slowest = 0.0
        for nodes, own, paper, least in (point for row in rows if "curves" in row for point in row["curves"][name]):
            slowest = max(slowest, paper)
            yield from ((times, "the paper's bases", nodes, paper), (times, "all bases", nodes, own))
            yield from ((times, "no network is faster", nodes, least), (gains, "all bases", nodes, paper / own - 1))
        printed = ((row["nodes"], row["us"][name]) for row in rows if "us" in row)
        yield from ((times, "printed points", nodes, us) for nodes, us in printed if us <= slowest)


FRONTIER_ALL = framework.Experiment(
    name="frontier-all",
    question="How far ahead of the paper's is our finder's frontier, for every number of nodes to 2,000?",
    source=f"ours; the paper's: its bases (tables 8 and 9) with our expansions, and its printed points, "
    f"{framework.published('7').source}",
    columns=framework.columns(
        framework.Column("sizes", lambda row: row["topology"] if "topology" in row else str(row["spec"])),
        "nodes, points, fewest steps=fewest_steps, least T_B=bandwidth_optimal",
        framework.Column("ahead at", lambda row: f"{row['ahead']} of {row['sizes']}" if "ahead" in row else ""),
        framework.Column("faster at 1 MB", lambda row: _gain(row, "1 MB")),
        framework.Column("faster at 100 MB", lambda row: _gain(row, "100 MB")),
        framework.Column("printed", lambda row: _cost(row, "printed")),
        framework.Column("ours", lambda row: _cost(row, "ours")),
        "reason",
    ),
    cases=[(_OURS, LARGEST), (_PAPERS, LARGEST)],
    quick=[(_OURS, QUICK_LARGEST), (_PAPERS, QUICK_LARGEST)],
    evaluate=_frontier_all_frontiers,
    conclude=_frontier_all_conclude,
    plot=Chart(_frontier_all_points, "nodes", "", log="", dots=True),
)
