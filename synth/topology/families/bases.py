"""Reads the database of base graphs: diamond, modified de Bruijn graphs, and others that are chosen by name.

The files in the folder `bases` contain, for each graph, its edges or the group that defines it, a claim about its cost
and, for some graphs, a stored schedule. They are part of the package and never change. This is the only module in
`synth` that reads files.
"""

import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from chorale.synth.errors import unknown_name
from chorale.synth.topology.families.builders import unit_topology
from chorale.synth.topology.families.directed import SemidirectProduct, build_cayley
from chorale.synth.topology.registry import Family, FamilyCall, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import Topology

BASE_FILES = ("special.json", "cayley.json", "searched.json")
_MODIFIED_DE_BRUIJN = ((2, 3), (2, 4), (3, 2), (4, 2))


@dataclass(frozen=True, slots=True)
class Claim:
    """The database's claim that an allgather takes `steps` steps and a bandwidth time of `bandwidth_factor` M / B.

    M is the total amount of data, B the bandwidth out of a node.
    method: schedule to which the claim applies: "bfb" for breadth-first broadcast, "own" for the stored schedule
    """

    method: str
    steps: int
    bandwidth_factor: Fraction


@dataclass(frozen=True, slots=True)
class StoredSends:
    """A stored schedule, with one row (step, link, shard, lo, hi) per transfer.

    In this step, the link carries chunks lo to hi - 1 of the shard. Steps are numbered from 0. `link` is an index into
    the entry's edges, which are sorted by link id. In a schedule for the transpose, `link` is a link id of the
    transpose.
    """

    chunks_per_shard: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A base graph, given either by its `edges` or as the Cayley digraph of a `group`.

    edges:      (source, target), sorted by (target, source)
    group:      parameters (m, k, r, l) of a `chorale.synth.topology.families.directed.SemidirectProduct`
    generators: ranks of the group elements that generate the group
    claim:      steps and time of an allgather, which a test recomputes; no code relies on them without verifying them
    schedule:   stored schedule that is better than BFB; None if there is none
    transposed_schedule: schedule for the transpose, if the transpose is a different network. It has the same link loads
                in each step as `schedule`, and the claim holds for both.
    source:     paper or search from which the graph comes
    """

    name: str
    nodes: int
    degree: int
    claim: Claim
    source: str
    edges: tuple[tuple[int, int], ...] | None = None
    group: tuple[int, int, int, int] | None = None
    generators: tuple[int, ...] = ()
    schedule: StoredSends | None = None
    transposed_schedule: StoredSends | None = None

    @property
    def has_stored_schedule(self) -> bool:
        return self.schedule is not None


def base_documents(file_name: str) -> list[dict[str, Any]]:
    """Return the entries of a database file as parsed JSON. The `id` of each entry is a hash of its other members."""
    content = pkgutil.get_data("chorale.synth.topology.bases", file_name)
    assert content is not None  # the package is in a folder or a zip file
    return list(json.loads(content)["entries"])


@cache
def load_bases() -> Mapping[str, BaseEntry]:
    """Return all entries of the database by name, in file order."""
    entries: dict[str, BaseEntry] = {}
    for facts in (facts for file_name in BASE_FILES for facts in base_documents(file_name)):
        claim, edges, group = facts["claim"], facts.get("edges"), facts.get("group")
        schedules = {
            key: StoredSends(facts[key]["chunks_per_shard"], tuple(map(tuple, facts[key]["rows"])))
            for key in ("schedule", "transposed_schedule")
            if key in facts
        }
        entries[facts["name"]] = BaseEntry(
            name=facts["name"],
            nodes=facts["nodes"],
            degree=facts["degree"],
            claim=Claim(claim["method"], claim["steps"], Fraction(claim["bandwidth_factor"])),
            source=facts["source"],
            edges=None if edges is None else tuple((source, target) for source, target in edges),
            group=None if group is None else (group[0], group[1], group[2], group[3]),
            generators=tuple(facts.get("generators", ())),
            **schedules,
        )
    return entries


@cache
def names_of(nodes: int, degree: int) -> tuple[str, ...]:
    """Return the names of the entries with this node count and degree, in file order."""
    return tuple(name for name, entry in load_bases().items() if (entry.nodes, entry.degree) == (nodes, degree))


def base_entry(name: str) -> BaseEntry:
    """Return the entry called `name`. Raises UnknownName with similar names."""
    entries = load_bases()
    if name not in entries:
        raise unknown_name("base", name, entries, f"choose from {', '.join(list(entries)[:8])}, …")
    return entries[name]


def plan_base(call: FamilyCall) -> TopologyPlan:
    """A base graph from the database, chosen by name.

    d3: 8 nodes, degree 2, reverse-symmetric, not from a paper; BFB is Moore- and bandwidth-optimal.
    diamond, dbjmod-2-3, …: as in the families diamond and dbjmod. cayley-N-d: Cayley digraph of N nodes and degree d,
    with its known symmetries; BFB on it is bandwidth-optimal, in the fewest steps that a search found for such graphs.
    Every entry names its source and states its cost, which the tests recompute.
    """
    entry = base_entry(call.text)
    return _plan(entry, str(call))


def plan_diamond(call: FamilyCall) -> TopologyPlan:
    """Diamond: 8 nodes, degree 2, directed, not reverse-symmetric, diameter 3.

    Its stored schedule (`synth expand`) is bandwidth-optimal in 3 steps, the Moore bound; BFB also takes 3 steps, but
    8/7 of the optimal bandwidth time. The paper only draws this graph; the edges here were found by search and agree
    with the paper in degree, size, steps and all-to-all rate.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table 9, figure 19.
    """
    require(call.text == "", "diamond must have no arguments", call, "write diamond")
    return _plan(base_entry("diamond"), str(call))


def plan_dbjmod(call: FamilyCall) -> TopologyPlan:
    """Modified de Bruijn graph DBJMod(d, n): one cycle in place of the self-loops and 2-cycles of DBJ(d, n).

    Available for (2, 3), (2, 4), (3, 2) and (4, 2); d^n nodes, degree d, directed, no self-loops. The stored schedules
    (`synth expand`) are bandwidth-optimal in 4, 5, 3 and 3 steps, one above the Moore bound; BFB is not optimal. The
    paper gives one example of such a cycle; the cycles here were found by search.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table 9, figure 20.
    """
    d, n = fixed_numbers(call, "dbjmod:d,n", 2)
    available = ", ".join(f"dbjmod:{d_known},{n_known}" for d_known, n_known in _MODIFIED_DE_BRUIJN)
    rule = "dbjmod:d,n must have a stored schedule"
    require((d, n) in _MODIFIED_DE_BRUIJN, rule, call, f"choose from {available}")
    return _plan(base_entry(f"dbjmod-{d}-{n}"), str(call))


def base_topology(entry: BaseEntry, spec: str) -> Topology:
    """Return the network that `entry` describes. If `entry` lists edges, the links are in the same order."""
    if entry.group is not None:
        return build_cayley(spec, SemidirectProduct(*entry.group), list(entry.generators))
    edges = np.array(entry.edges, dtype=np.int64)
    return unit_topology(spec, entry.nodes, [(edges[:, 0], edges[:, 1])])


def _plan(entry: BaseEntry, spec: str) -> TopologyPlan:
    return TopologyPlan(spec, entry.nodes, entry.nodes * entry.degree, lambda: base_topology(entry, spec))


BASE_FAMILIES = (
    Family("diamond", "diamond", "diamond", "directed, 8 nodes, degree 2; its own schedule is optimal", plan_diamond),
    Family("dbjmod", "dbjmod:d,n", "dbjmod:2,3", "de Bruijn without self-loops: 2,3 2,4 3,2 4,2", plan_dbjmod),
    Family("base", "base:NAME", "base:d3", "an entry of the shipped database of base graphs", plan_base),
)
