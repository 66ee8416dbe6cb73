"""Table 9: what the paper says about its families of base graphs, on instances of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from chorale.experiments.direct_connect.quantities import measure_schedule
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

Steps = Literal["Moore", "at most one more", "more"] | int
"""What is said of T_L: the Moore bound, at most one step more, above it on this instance, or a number."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What table 9 says of an instance of `family`.

    bfb:  whether BFB is the schedule that does it, or a stored one
    note: why a property is another one, where it is
    """

    family: str
    spec: str
    degree: int
    nodes: int
    steps: Steps = "Moore"
    optimal: bool = True
    bfb: bool = True
    reverse_symmetric: bool = True
    self_loops: bool = False
    parallel_links: bool = False
    note: str = ""

    def __str__(self) -> str:
        return self.spec

    @property
    def printed(self) -> dict[str, object]:
        """The properties as they are compared; steps of a schedule in words where no number is said."""
        return {
            "degree": self.degree, "nodes": self.nodes, "reverse_symmetric": self.reverse_symmetric,
            "optimal": self.optimal, "steps": self.steps, "bfb": self.bfb, "self_loops": self.self_loops,
            "parallel_links": self.parallel_links,
        }  # fmt: skip


_LOOP = "a loop at every node is one of its d links here: T_B is optimal for the d - 1 that lead to others"
_CLAIMS = (
    _Claim("complete", "complete:5", 4, 5),
    _Claim("complete", "complete:9", 8, 9),
    _Claim("complete bipartite", "bipartite:4", 4, 8),
    _Claim("complete bipartite", "bipartite:7", 7, 14),
    _Claim("Hamming", "hamming:2,3", 4, 9, 2),
    _Claim("Hamming", "hamming:3,4", 9, 64, 3),
    _Claim("Kautz", "kautz:4,0", 4, 5),
    _Claim("Kautz", "kautz:2,2", 2, 12, optimal=False),
    _Claim("Kautz", "kautz:4,1", 4, 20, optimal=False),
    _Claim("generalized Kautz", "genkautz:4,5", 4, 5, "at most one more", reverse_symmetric=True),
    _Claim("generalized Kautz", "genkautz:4,25", 4, 25, "at most one more", False, reverse_symmetric=False),
    _Claim("generalized Kautz", "genkautz:4,37", 4, 37, "at most one more", False, True, False, self_loops=True),
    _Claim("circulant", "circulant:29,3,4", 4, 29, "more"),
    _Claim("circulant", "circulant:41,4,5", 4, 41, "more"),
    _Claim("directed circulant", "dicirculant:4", 4, 6),
    _Claim("directed circulant", "dicirculant:7", 7, 9),
    _Claim("bidirectional ring", "biring:2,9", 2, 9, 4),
    _Claim("bidirectional ring", "biring:4,10", 4, 10, 5, parallel_links=True),
    _Claim("unidirectional ring", "uniring:1,7", 1, 7, 6),
    _Claim("unidirectional ring", "uniring:3,6", 3, 6, 5, parallel_links=True),
    _Claim("diamond", "diamond", 2, 8, bfb=False, reverse_symmetric=False),
    _Claim("de Bruijn", "debruijn:3,1", 3, 3, self_loops=True, note=_LOOP),
    _Claim("de Bruijn", "debruijn:2,4", 2, 16, optimal=False, self_loops=True),
    _Claim("modified de Bruijn", "dbjmod:2,3", 2, 8, 4, bfb=False),
    _Claim("modified de Bruijn", "dbjmod:2,4", 2, 16, 5, bfb=False, reverse_symmetric=False),
    _Claim("modified de Bruijn", "dbjmod:3,2", 3, 9, 3, bfb=False, reverse_symmetric=False),
    _Claim("modified de Bruijn", "dbjmod:4,2", 4, 16, 3, bfb=False, reverse_symmetric=False),
    _Claim("distance-regular", "distreg:4,35", 4, 35),
    _Claim("distance-regular", "distreg:4,45", 4, 45, "more"),
)


def _cases(_quick: bool) -> Sequence[_Claim]:
    return _CLAIMS


def row_of(claim: _Claim) -> Row:
    """Return what is said of the instance beside what a verified schedule and the network itself show."""
    topology = parse_topology(claim.spec)
    least = least_bandwidth_factor(claim.nodes)
    by_bfb = measure_schedule(claim.spec, "bfb")
    measured = by_bfb if claim.bfb else measure_schedule(claim.spec, "expand")
    steps = measured.cost.steps
    ours = {
        "degree": topology.degree,
        "nodes": topology.compute_count,
        "reverse_symmetric": _is_its_own_transpose(topology),
        "optimal": measured.factor == least,
        "steps": claim.steps if _comes_out(claim, steps) else steps,
        "bfb": by_bfb.factor <= measured.factor and by_bfb.cost.steps <= steps,
        "self_loops": bool((topology.links.src == topology.links.dst).any()),
        "parallel_links": bool(topology.links.parallel_index().any()),
    }
    verdict = {key: "match" if ours[key] == value else "worse" for key, value in claim.printed.items()}
    off = [f"{key}: {claim.printed[key]} was printed, {ours[key]} is so" for key in verdict if verdict[key] != "match"]
    return {
        "family": claim.family, "nodes": claim.nodes, "spec": claim.spec, "printed": claim.printed, "ours": ours,
        "steps": steps, "bandwidth_factor": str(measured.factor), "verdict": verdict,
        "reason": "; ".join([*off, *filter(None, [claim.note])]) if off else None, "holds": not off or bool(claim.note),
    }  # fmt: skip


def _comes_out(claim: _Claim, steps: int) -> bool:
    least = least_steps(claim.nodes, claim.degree)
    said = {"Moore": steps == least, "at most one more": steps <= least + 1, "more": steps > least}
    return steps == claim.steps if isinstance(claim.steps, int) else said[claim.steps]


def _is_its_own_transpose(topology: Topology) -> bool:
    """Whether turning all links round gives the same network under other names; exact."""
    counts = Counter(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(topology.node_count))
    graph.add_edges_from((src, dst, {"links": count}) for (src, dst), count in counts.items())
    return bool(nx.is_isomorphic(graph, graph.reverse(), edge_match=lambda one, other: one == other))


def _both(key: str) -> Column:
    def text(row: Row) -> str:
        ours = row["ours"][key]
        word = {True: "yes", False: "no"}.get(ours, ours) if isinstance(ours, bool) else str(ours)
        return f"{word}" + ("" if row["verdict"][key] == "match" else " [off]")

    return Column(key.replace("_", " "), text)


EXPERIMENT = Experiment(
    name="direct-connect-table-9",
    question="Do the families of base graphs have the properties that the paper's summary says?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, table 9",
    columns=(
        Column("family", lambda row: str(row["family"])),
        Column("spec", lambda row: str(row["spec"])),
        _both("nodes"),
        _both("degree"),
        Column("T_L", lambda row: str(row["steps"])),
        Column("T_B (M/B)", lambda row: str(row["bandwidth_factor"])),
        *map(_both, ("optimal", "steps", "bfb", "reverse_symmetric", "self_loops", "parallel_links")),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=lambda claim: [row_of(claim)],
)
