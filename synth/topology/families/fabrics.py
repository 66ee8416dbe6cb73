"""Builds switched networks: a single switch, fat trees, dragonflies, and GPU boxes joined by their NICs.

The boxes have an NVSwitch (DGX A100 to B200, NVL72, rail-optimised Clos networks), or their GPUs are linked directly to
each other (AMD MI250, MI300X, MI355X).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

import numpy as np

from chorale.synth.topology.families.builders import FabricBuilder, grid_ids, positive_bandwidth, switch_ids
from chorale.synth.topology.registry import Family, FamilyCall, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import NVSWITCH, SwitchAbility, Topology

_SWITCH_SYNTAX = "switch:m,bw"
_LINK = Fraction(25)
_CLOS_SYNTAX = "railclos:boxes,gpus,nic,spines"
_H100_NVSWITCH = Fraction(450)
_NDR_NIC = Fraction(50)


def plan_switch(call: FamilyCall) -> TopologyPlan:
    """m compute nodes around one non-blocking switch (`switch:0`), each linked to it both ways at bw GB/s.

    m >= 2; bw is positive: a whole number, a decimal or p/q. The allgather optimum is bw m / (m - 1) GB/s, limited by
    the link into each node. Rotations of the nodes are known symmetries.
    """
    count_text, comma, bandwidth_text = call.text.partition(",")
    (m,) = whole_numbers(call, _SWITCH_SYNTAX, text=count_text)
    require(bool(comma), "switch:m,bw must have a number of nodes and a bandwidth", call, f"write {_SWITCH_SYNTAX}")
    require(m >= 2, "switch:m,bw must have m >= 2 nodes", call, "add nodes")
    bandwidth = positive_bandwidth(bandwidth_text, call, _SWITCH_SYNTAX)

    def build() -> Topology:
        fabric = FabricBuilder(str(call), grid_ids(m))
        nodes = np.arange(m)
        fabric.wire(nodes, fabric.add_switches(switch_ids("switch", 1), (1,)), bandwidth)
        fabric.add_rotation((nodes, 0))
        return fabric.topology()

    return TopologyPlan(str(call), m + 1, 2 * m, build)


def plan_fattree(call: FamilyCall) -> TopologyPlan:
    """Three-level fat tree of k-port switches: k pods, k^3 / 4 hosts, all links 25 GB/s in both directions.

    k is even. A pod has k / 2 edge switches (`edge:pod.e`) with k / 2 hosts each (`pod.e.host`) and k / 2
    aggregation switches (`agg:pod.a`). Every edge switch is linked to every aggregation switch in its pod, and
    aggregation switch a of every pod to `core:a.0`, …, `core:a.(k/2-1)`. Hosts are ranked by pod, edge, host.

    Allgather optimum with n hosts: 25 n / (n - 1) GB/s, limited by the single link into each host. For any two hosts,
    exactly one product of the known symmetries (rotations of pods, edge switches, hosts) maps one to the other.
    Source: Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", 2008.
    """
    (k,) = fixed_numbers(call, "fattree:k", 1)
    require(k >= 2 and k % 2 == 0, "fattree:k must have an even k >= 2", call, "use fattree:4")
    hosts = k**3 // 4

    def build() -> Topology:
        half = k // 2
        fabric = FabricBuilder(str(call), grid_ids(k, half, half))
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

    return TopologyPlan(str(call), hosts + 5 * k * k // 4, 6 * hosts, build)


def plan_dragonfly(call: FamilyCall) -> TopologyPlan:
    """Dragonfly: a h + 1 groups of a routers with p hosts each, all links 25 GB/s in both directions.

    All routers in a group (`router:group.r`) are linked to each other. Each router is linked to its p hosts
    (`group.r.host`) and, by h global links, to other groups, so that any two groups share one link. Global port
    q = r h + j of group g (port j of router r) leads to port a h - 1 - q of group g + q + 1, modulo the number of
    groups, so that all groups look the same. Hosts are ranked by group, router, host. a, p, h >= 1.

    Allgather optimum with n hosts: 25 n / (n - 1) GB/s, as on a fat tree. The known symmetries rotate the groups
    and the hosts of a router.
    Source: Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology", 2008, section 3, which
    does not prescribe to which routers a global link is attached.
    """
    a, p, h = fixed_numbers(call, "dragonfly:a,p,h", 3)
    require(min(a, p, h) >= 1, "dragonfly:a,p,h must have a, p and h >= 1", call, "use dragonfly:4,2,2")
    groups = a * h + 1
    routers = groups * a

    def build() -> Topology:
        fabric = FabricBuilder(str(call), grid_ids(groups, a, p))
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

    return TopologyPlan(str(call), routers * (1 + p), routers * (2 * p + a - 1 + h), build)


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Shape of a network of identical GPU boxes. Bandwidths are in GB/s.

    boxes, gpus: number of boxes, and of GPUs per box
    inner:   bandwidth between a GPU and the NVSwitch of its box, or between every two GPUs if `is_mesh`
    nic:     bandwidth of each GPU's NIC
    joint_kind: name of the switches to which NICs are linked, for example "rail"
    joints:  number of these switches; NIC i of every box is linked to switch i modulo `joints`
    spines:  number of spine switches that join these switches
    ability: what the NVSwitches can do besides forwarding; all other switches only forward data
    is_mesh: whether the GPUs of a box are linked directly, without an NVSwitch
    """

    boxes: int
    gpus: int
    inner: Fraction
    nic: Fraction
    joint_kind: str
    joints: int
    spines: int = 0
    ability: SwitchAbility | None = NVSWITCH
    is_mesh: bool = False

    @property
    def has_nvswitch(self) -> bool:
        return self.gpus > 1 and not self.is_mesh

    @property
    def is_joined(self) -> bool:
        return self.boxes > 1

    @property
    def spine_count(self) -> int:
        return self.spines if self.is_joined and self.joints > 1 else 0


_BOXES = {
    "a100": _Boxes(1, 8, Fraction(300), Fraction(25), "ib", 2, ability=None),
    "h100": _Boxes(1, 8, _H100_NVSWITCH, _NDR_NIC, "rail", 8),
    "h200": _Boxes(1, 8, _H100_NVSWITCH, _NDR_NIC, "rail", 8),
    "b200": _Boxes(1, 8, Fraction(900), _NDR_NIC, "rail", 8),
    "nvl72": _Boxes(1, 72, Fraction(900), _NDR_NIC, "rail", 72),
    "mi300x": _Boxes(1, 8, Fraction(64), _NDR_NIC, "ib", 1, is_mesh=True),
    "mi355x": _Boxes(1, 8, Fraction("76.8"), _NDR_NIC, "ib", 1, is_mesh=True),
}
"""Shape of one box (or, for nvl72, one rack) of each family.

Sources: NVIDIA, "DGX A100 System Architecture", data sheets of DGX H100, H200 and B200 (18 NVLinks of 25 or 50 GB/s
each way, eight NICs of 400 Gbit/s) and of GB200 NVL72; AMD, data sheets of Instinct MI300X and MI355X (seven Infinity
Fabric links of 64 or 76.8 GB/s each way); Zhao et al., "ForestColl", evaluation on 2 x 8 A100.
"""


def plan_boxes(call: FamilyCall) -> TopologyPlan:
    """Boxes of GPUs (`box.gpu`) linked to an NVSwitch (`nvswitch:box`), or to each other (MI300X, MI355X).

    With several boxes, each GPU is also linked to its NIC (`nic:box.gpu`, a switch node). The NIC of GPU g is linked to
    `ib:i` or `rail:i`; i is g modulo the number of these switches, which are not linked to one another. All links are
    bidirectional. NVSwitches in H100 and newer boxes can multicast and reduce data (NVLink SHARP) at the rate of their
    links.

    Allgather optimum with n GPUs, if switches only forward: n / (n - 1) times the bandwidth into a GPU, including its
    NIC if there are several boxes. With several boxes, there is a second limit: boxes / (boxes - 1) times the total NIC
    bandwidth of one box. The smaller of the two limits applies, for example 346.67 GB/s for two A100 boxes. For any two
    GPUs, exactly one product of the known symmetries (rotations of the boxes and of the GPUs) maps one to the other.
    """
    boxes = _box_count(call, "racks" if call.name == "nvl72" else "boxes")
    return _plan(call, replace(_BOXES[call.name], boxes=boxes))


def plan_railclos(call: FamilyCall) -> TopologyPlan:
    """Rail-optimised Clos: GPU boxes with an NVSwitch each, a rail switch per GPU index, spines between the rails.

    GPUs are linked to `nvswitch:box` at 450 GB/s and to their NICs at `nic` GB/s. NIC i of every box is linked to
    `rail:i` at `nic`. Every rail is linked to each spine (`spine:0`, …) at boxes * nic / spines, so that a rail
    has as much bandwidth up as down and spines never block. All links are bidirectional. With spines = 0, only the
    boxes connect the rails. Switches that would join nothing are omitted: the NVSwitch of a single GPU; the NICs, rails
    and spines of a single box; the spines of a single rail. boxes * gpus >= 2.

    Allgather optimum with n = boxes * gpus GPUs, boxes > 1 and gpus > 1: the smaller of (450 + nic) n / (n - 1) and
    gpus * nic * boxes / (boxes - 1). Spines change neither value; they matter for all-to-all. For any two GPUs, exactly
    one product of the known symmetries (rotations of the boxes and of the GPUs) maps one to the other.
    Source: Wang et al., "Rail-only: a low-cost high-performance network for training LLMs", 2023, for both variants
    of the network.
    """
    texts = call.text.split(",")
    way_out = f"write {_CLOS_SYNTAX}"
    require(len(texts) == 4, "railclos must have four arguments", call, way_out)
    boxes, gpus, spines = whole_numbers(call, _CLOS_SYNTAX, text=",".join([*texts[:2], texts[3]]))
    nic = positive_bandwidth(texts[2], call, _CLOS_SYNTAX)
    require(boxes >= 1 and gpus >= 1, "railclos must have boxes and gpus >= 1", call, way_out)
    require(boxes * gpus >= 2, "railclos must have at least two GPUs", call, "add boxes or GPUs")
    return _plan(call, _Boxes(boxes, gpus, _H100_NVSWITCH, nic, "rail", gpus, spines))


def _box_count(call: FamilyCall, what: str) -> int:
    (boxes,) = fixed_numbers(call, f"{call.name}:{what}", 1)
    require(boxes >= 1, f"{call.name} must have at least one box", call, f"use {call.name}:1")
    return boxes


def _plan(call: FamilyCall, shape: _Boxes) -> TopologyPlan:
    gpus = shape.boxes * shape.gpus
    nodes = gpus + (shape.boxes if shape.has_nvswitch else 0)
    links = 2 * gpus if shape.has_nvswitch else gpus * (shape.gpus - 1)
    if shape.is_joined:
        nodes += gpus + shape.joints + shape.spine_count
        links += 4 * gpus + 2 * shape.joints * shape.spine_count

    def build() -> Topology:
        fabric = FabricBuilder(str(call), grid_ids(shape.boxes, shape.gpus))
        gpu = np.arange(fabric.compute_count).reshape(shape.boxes, shape.gpus)
        by_box, by_gpu = [(gpu, 0)], [(gpu, 1)]
        if shape.has_nvswitch:
            nvswitch = fabric.add_switches(switch_ids("nvswitch", shape.boxes), (shape.boxes, 1), shape.ability)
            fabric.wire(gpu, nvswitch, shape.inner)
            by_box.append((nvswitch, 0))
        else:
            for one, other in combinations(range(shape.gpus), 2):
                fabric.wire(gpu[:, one], gpu[:, other], shape.inner)
        if shape.is_joined:
            nic = fabric.add_switches(switch_ids("nic", *gpu.shape), gpu.shape)
            joint = fabric.add_switches(switch_ids(shape.joint_kind, shape.joints), (shape.joints,))
            fabric.wire(gpu, nic, shape.nic)
            fabric.wire(nic, joint[np.arange(shape.gpus) % shape.joints], shape.nic)
            if shape.spine_count:
                spine = fabric.add_switches(switch_ids("spine", shape.spine_count), (1, shape.spine_count))
                fabric.wire(joint[:, None], spine, shape.boxes * shape.nic / shape.spine_count)
            by_box.append((nic, 0))
            by_gpu += [(nic, 1), (joint, 0)]
        fabric.add_rotation(*by_box)
        fabric.add_rotation(*by_gpu)
        return fabric.topology()

    return TopologyPlan(str(call), nodes, links, build)


_XGMI = Fraction(50)
_MI250_INFINIBAND = Fraction(16)


MI250_LINKS = {
    **{(gpu, gpu + 1): 4 for gpu in range(0, 16, 2)},
    **dict.fromkeys([(0, 4), (3, 7), (8, 12), (11, 15)], 2),
    **dict.fromkeys([(0, 8), (1, 5), (1, 9), (1, 10), (2, 6), (2, 9), (2, 10), (3, 11)], 1),
    **dict.fromkeys([(4, 6), (5, 6), (5, 7), (9, 13), (10, 14), (12, 14), (13, 14), (13, 15)], 1),
}
"""Number of parallel xGMI links between two GPUs of a box, keyed by (GPU, GPU). Other pairs are not linked."""


def plan_mi250(call: FamilyCall) -> TopologyPlan:
    """MI250 boxes: 16 GPUs (`box.gpu`); 1, 2 or 4 parallel xGMI links of 50 GB/s between two GPUs form one link here.

    `mi250half` has GPUs 0 to 7 of each box. With several boxes, each GPU is also linked to the InfiniBand switch
    `ib:0` at 16 GB/s. All links are bidirectional.

    Allgather optimum: 342.86 GB/s for one box, 354.13 GB/s for two (with k = 83 trees per root); with `mi250half`, 200
    and 208 GB/s. The known symmetry rotates the boxes.
    Source: Zhao et al., "ForestColl", evaluation on 2 x 16 MI250; AMD, "Instinct MI250 accelerator" data sheet.
    """
    boxes, gpus = _box_count(call, "boxes"), 8 if call.name == "mi250half" else 16
    bundles = {pair: links for pair, links in MI250_LINKS.items() if pair[1] < gpus}
    joined = boxes > 1
    nodes = boxes * gpus + joined
    links = 2 * boxes * (len(bundles) + (gpus if joined else 0))

    def build() -> Topology:
        fabric = FabricBuilder(str(call), grid_ids(boxes, gpus))
        gpu = np.arange(boxes * gpus).reshape(boxes, gpus)
        for (one, other), links in bundles.items():
            fabric.wire(gpu[:, one], gpu[:, other], links * _XGMI)
        if boxes > 1:
            fabric.wire(gpu, fabric.add_switches(switch_ids("ib", 1), (1,)), _MI250_INFINIBAND)
        fabric.add_rotation((gpu, 0))
        return fabric.topology()

    return TopologyPlan(str(call), nodes, links, build)


FABRIC_FAMILIES = (
    Family("switch", _SWITCH_SYNTAX, "switch:8,50", "m nodes on one switch, bw GB/s each", plan_switch),
    Family("fattree", "fattree:k", "fattree:4", "three levels, k^3/4 hosts, all links 25 GB/s", plan_fattree),
    Family("dragonfly", "dragonfly:a,p,h", "dragonfly:4,2,2", "groups of routers, links of 25 GB/s", plan_dragonfly),
    Family("a100", "a100:boxes", "a100:2", "DGX A100: NVSwitch 300 GB/s, InfiniBand 25 GB/s", plan_boxes),
    Family("h100", "h100:boxes", "h100:2", "DGX H100: NVSwitch 450 GB/s that adds, eight rails of 50 GB/s", plan_boxes),
    Family("h200", "h200:boxes", "h200:2", "DGX H200: links as h100", plan_boxes),
    Family("b200", "b200:boxes", "b200:2", "DGX B200: NVSwitch 900 GB/s, eight rails of 50 GB/s", plan_boxes),
    Family("nvl72", "nvl72:racks", "nvl72:2", "NVL72: 72 GPUs on NVSwitches of 900 GB/s, rails of 50 GB/s", plan_boxes),
    Family(
        "railclos", _CLOS_SYNTAX, "railclos:4,8,50,4", "boxes behind NVSwitches, a rail per GPU, spines", plan_railclos
    ),
    Family("mi250", "mi250:boxes", "mi250:2", "MI250: 16 GPUs, xGMI links of 50 GB/s, InfiniBand 16 GB/s", plan_mi250),
    Family("mi250half", "mi250half:boxes", "mi250half:2", "GPUs 0 to 7 of each MI250 box", plan_mi250),
    Family("mi300x", "mi300x:boxes", "mi300x:2", "MI300X: every two GPUs 64 GB/s, NICs 50 GB/s", plan_boxes),
    Family("mi355x", "mi355x:boxes", "mi355x:2", "MI355X: every two GPUs 76.8 GB/s, NICs 50 GB/s", plan_boxes),
)
