"""Topologies stored in the database of base graphs: diamond, modified de Bruijn graphs, and entries by name."""

import numpy as np

from chorale.synth.topology.bases.database import BaseEntry, base_entry
from chorale.synth.topology.families.builders import unit_topology
from chorale.synth.topology.families.directed import SemidirectProduct, build_cayley
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import Topology

_MODIFIED_DE_BRUIJN = ((2, 3), (2, 4), (3, 2), (4, 2))


def plan_base(call: FamilyCall) -> TopologyPlan:
    """An entry in the shipped database of base graphs, chosen by name.

    d3: 8 nodes, degree 2, reverse-symmetric, not from a paper; BFB is Moore- and bandwidth-optimal.
    diamond, dbjmod-2-3, …: same as the families with these names. cayley-N-d: Cayley digraph of N nodes and degree d,
    including its symmetries; BFB is bandwidth-optimal in the fewest steps that a search found. Every entry names its
    source and makes a claim that the tests re-derive.
    """
    entry = base_entry(call.text)
    return _plan(entry, str(call))


def plan_diamond(call: FamilyCall) -> TopologyPlan:
    """Diamond: 8 nodes, degree 2, directed, not reverse-symmetric, diameter 3.

    Its stored schedule (`synth expand`) is bandwidth-optimal in 3 steps, the Moore bound; BFB also takes 3 steps, but
    8/7 of the optimal time. The paper only draws this graph; the edges here were found by search and agree with the
    paper in degree, size, steps and all-to-all rate.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table 9, figure 19.
    """
    require(call.text == "", "diamond must have no arguments", call, "write diamond")
    return _plan(base_entry("diamond"), str(call))


def plan_dbjmod(call: FamilyCall) -> TopologyPlan:
    """Modified de Bruijn graph DBJMod(d, n): one cycle in place of the self-loops and 2-cycles of DBJ(d, n).

    Known for (2, 3), (2, 4), (3, 2) and (4, 2); d^n nodes, degree d, directed, no self-loops. The stored schedules
    (`synth expand`) are bandwidth-optimal in 4, 5, 3 and 3 steps, one above the Moore bound; BFB is not optimal. The
    paper gives one example of such a cycle; the cycles here were found by search.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table 9, figure 20.
    """
    d, n = fixed_numbers(call, "dbjmod:d,n", 2)
    available = ", ".join(f"dbjmod:{d_known},{n_known}" for d_known, n_known in _MODIFIED_DE_BRUIJN)
    rule = "dbjmod:d,n must be one whose schedule is known"
    require((d, n) in _MODIFIED_DE_BRUIJN, rule, call, f"choose from {available}")
    return _plan(base_entry(f"dbjmod-{d}-{n}"), str(call))


def base_topology(entry: BaseEntry, spec: str) -> Topology:
    """Return the network that `entry` describes. Links have the same order as the entry's edges, if it has any."""
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
