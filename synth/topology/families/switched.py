"""Switched networks: a single switch, fat trees and dragonflies."""

from fractions import Fraction
from itertools import combinations

import numpy as np

from chorale.synth.topology.families.builders import FabricBuilder, grid_ids, positive_bandwidth, switch_ids
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import Topology

_SYNTAX = "switch:m,bw"


def plan_switch(call: FamilyCall) -> TopologyPlan:
    """One non-blocking switch (`switch:0`): m compute nodes, each linked to it both ways at bw GB/s.

    m >= 2; bw is positive: a whole number, a decimal or p/q. The allgather optimum is bw m / (m - 1) GB/s, limited by
    the link into each node. Rotations of the nodes are known symmetries.
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


_LINK = Fraction(25)


def plan_fattree(call: FamilyCall) -> TopologyPlan:
    """Three-level fat tree of k-port switches: k pods, k^3 / 4 hosts, all links 25 GB/s in both directions.

    k is even. A pod has k / 2 edge switches (`edge:pod.e`) with k / 2 hosts each (`pod.e.host`) and k / 2
    aggregation switches (`agg:pod.a`). Every edge switch is linked to every aggregation switch in its pod, and
    aggregation switch a of every pod to `core:a.0`, …, `core:a.(k/2-1)`. Hosts are ranked by pod, edge, host.

    Allgather optimum with n hosts: 25 n / (n - 1) GB/s, limited by the single link into each host.
    The known symmetries (rotations of pods, edge switches and hosts) act regularly.
    Source: Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", 2008.
    """
    (k,) = fixed_numbers(call, "fattree:k", 1)
    require(k >= 2 and k % 2 == 0, "fattree:k must have an even k >= 2", call, "use fattree:4")
    hosts = k**3 // 4
    return TopologyPlan(str(call), hosts + 5 * k * k // 4, 6 * hosts, lambda: _fattree(str(call), k))


def plan_dragonfly(call: FamilyCall) -> TopologyPlan:
    """Dragonfly: a h + 1 groups of a routers with p hosts each, all links 25 GB/s in both directions.

    All routers in a group (`router:group.r`) are linked to each other. Each router is linked to its p hosts
    (`group.r.host`) and, by h global links, to other groups, so that any two groups share one link. Global port
    q = r h + j of group g leads to port a h - 1 - q of group g + q + 1 (modulo the number of groups), so that all
    groups look the same. Hosts are ranked by group, router, host. a, p, h >= 1.

    Allgather optimum with n hosts: 25 n / (n - 1) GB/s, as on a fat tree. The known symmetries rotate the groups
    and the hosts of a router.
    Source: Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology", 2008, section 3, which
    does not prescribe the router of each global link.
    """
    a, p, h = fixed_numbers(call, "dragonfly:a,p,h", 3)
    require(min(a, p, h) >= 1, "dragonfly:a,p,h must have a, p and h >= 1", call, "use dragonfly:4,2,2")
    groups = a * h + 1
    routers = groups * a
    return TopologyPlan(
        str(call), routers * (1 + p), routers * (2 * p + a - 1 + h), lambda: _dragonfly(str(call), a, p, h)
    )


def _fattree(spec: str, k: int) -> Topology:
    half = k // 2
    fabric = FabricBuilder(spec, grid_ids(k, half, half))
    host = np.arange(fabric.compute_count).reshape(k, half, half)
    edge = fabric.add_switches(switch_ids("edge", k, half), (k, half))
    aggregation = fabric.add_switches(switch_ids("agg", k, half), (k, half))
    core = fabric.add_switches(switch_ids("core", half, half), (half, half))
    fabric.wire(host, edge[:, :, None], _LINK)
    fabric.wire(edge[:, :, None], aggregation[:, None, :], _LINK)
    fabric.wire(aggregation[:, :, None], core, _LINK)
    fabric.add_rotation((host, 0), (edge, 0), (aggregation, 0))
    fabric.add_rotation((host, 1), (edge, 1))
    fabric.add_rotation((host, 2))
    return fabric.topology()


def _dragonfly(spec: str, a: int, p: int, h: int) -> Topology:
    groups = a * h + 1
    fabric = FabricBuilder(spec, grid_ids(groups, a, p))
    host = np.arange(fabric.compute_count).reshape(groups, a, p)
    router = fabric.add_switches(switch_ids("router", groups, a), (groups, a))
    fabric.wire(host, router[:, :, None], _LINK)
    for one, other in combinations(range(a), 2):
        fabric.wire(router[:, one], router[:, other], _LINK)
    group, port = np.divmod(np.arange(groups * a * h), a * h)
    target = (group + port + 1) % groups
    once = group < target
    near = router[group, port // h]
    far = router[target, (a * h - 1 - port) // h]
    fabric.wire(near[once], far[once], _LINK)
    fabric.add_rotation((host, 0), (router, 0))
    fabric.add_rotation((host, 2))
    return fabric.topology()


SWITCHED_FAMILIES = (
    Family("switch", _SYNTAX, "switch:8,50", "m nodes on one switch, bw GB/s each", plan_switch),
    Family("fattree", "fattree:k", "fattree:4", "three levels, k^3/4 hosts, all links 25 GB/s", plan_fattree),
    Family("dragonfly", "dragonfly:a,p,h", "dragonfly:4,2,2", "groups of routers, links of 25 GB/s", plan_dragonfly),
)
