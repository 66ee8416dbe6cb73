"""One switch in the middle."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from chorale.synth.topology.families.fabric import FabricBuilder, grid_ids, positive_bandwidth, switch_ids
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, require, whole_numbers
from chorale.synth.topology.topology import Topology

_SYNTAX = "switch:m,bw"


def plan_switch(call: FamilyCall) -> TopologyPlan:
    """One non-blocking switch (`switch:0`): m compute nodes, each linked with it both ways at bw GB/s.

    m >= 2; bw is positive, a whole number, a decimal or p/q. The optimum of allgather is bw m / (m - 1) GB/s: the link
    into one node decides. Rotations of the nodes are known symmetries.
    """
    count_text, comma, bandwidth_text = call.text.partition(",")
    (m,) = whole_numbers(call, _SYNTAX, text=count_text)
    require(bool(comma), "switch:m,bw must have a number of nodes and a bandwidth", call, f"write {_SYNTAX}")
    require(m >= 2, "switch:m,bw must have m >= 2 nodes", call, "add nodes")
    bandwidth = positive_bandwidth(bandwidth_text, call, _SYNTAX)
    return TopologyPlan(str(call), m + 1, 2 * m, lambda: _switch(str(call), m, bandwidth))


def _switch(spec: str, m: int, bandwidth: Fraction) -> Topology:
    fabric = FabricBuilder(spec, grid_ids(m))
    nodes = np.arange(m)
    fabric.wire(nodes, fabric.add_switches(switch_ids("switch", 1), (1,)), bandwidth)
    fabric.add_rotation((nodes, 0))
    return fabric.topology()


SWITCH_FAMILIES = (Family("switch", _SYNTAX, "switch:8,50", "m nodes on one switch, bw GB/s each", plan_switch),)
