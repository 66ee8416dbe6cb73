"""Dense graphs: complete and complete bipartite."""

from __future__ import annotations

import numpy as np

from chorale.synth.topology.families.unit import bidirectional_arcs, unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import Topology


def plan_complete(call: FamilyCall) -> TopologyPlan:
    """Complete graph: a link between any two of m >= 2 nodes, both ways.

    Degree m - 1, diameter 1, reverse-symmetric. BFB is Moore- and bandwidth-optimal.
    """
    (m,) = fixed_numbers(call, "complete:m", 1)
    require(m >= 2, "complete:m must have m >= 2 nodes", call, "use complete:2 for a pair of nodes")
    return TopologyPlan(str(call), m, m * (m - 1), lambda: _complete(str(call), m))


def plan_bipartite(call: FamilyCall) -> TopologyPlan:
    """Complete bipartite K(d, d): ranks 0 to d - 1 are linked with ranks d to 2 d - 1, both ways.

    2 d nodes, degree d, diameter 2 (1 for d = 1), reverse-symmetric. BFB is Moore- and bandwidth-optimal.
    """
    (d,) = fixed_numbers(call, "bipartite:d", 1)
    require(d >= 1, "bipartite:d must have d >= 1", call, "use bipartite:2 or more")
    return TopologyPlan(str(call), 2 * d, 2 * d * d, lambda: _bipartite(str(call), d))


def _complete(spec: str, m: int) -> Topology:
    src = np.repeat(np.arange(m), m - 1)
    shift = np.tile(np.arange(1, m), m)
    return unit_topology(spec, m, [(src, (src + shift) % m)], [(np.arange(m) + 1) % m])


def _bipartite(spec: str, d: int) -> Topology:
    left = np.repeat(np.arange(d), d)
    right = np.tile(np.arange(d, 2 * d), d)
    turn = (np.arange(d) + 1) % d
    rotation = np.concatenate([turn, turn + d])
    swap = np.roll(np.arange(2 * d), d)
    return unit_topology(spec, 2 * d, bidirectional_arcs(left, right), [rotation, swap])


COMPLETE_FAMILIES = (
    Family("complete", "complete:m", "complete:4", "all pairs of m >= 2 nodes", plan_complete),
    Family("bipartite", "bipartite:d", "bipartite:4", "complete bipartite graph on d + d nodes", plan_bipartite),
)
