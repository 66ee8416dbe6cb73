"""Boxes of GPUs: behind an NVSwitch and joined by their NICs (DGX A100 to B200, NVL72, rail-optimised Clos networks).

Also AMD's boxes, whose GPUs are linked directly with each other (MI250, MI300X, MI355X).
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

import numpy as np

from chorale.synth.topology.abilities import NVSWITCH, SwitchAbility
from chorale.synth.topology.families.builders import FabricBuilder, grid_ids, positive_bandwidth, switch_ids
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import Topology

_CLOS_SYNTAX = "railclos:boxes,gpus,nic,spines"
_H100_NVSWITCH = Fraction(450)
_NVLINK_5 = Fraction(900)
_NDR_NIC = Fraction(50)


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Shape of a network of equal GPU boxes. Bandwidths are in GB/s.

    inner:   bandwidth between a GPU and the NVSwitch of its box, or between every two GPUs if `is_mesh`
    nic:     bandwidth of each GPU's NIC
    joint_kind: name of the switches that the NICs lead to
    joints:  number of these switches; NIC i of every box leads to switch i modulo `joints`
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


def plan_a100(call: FamilyCall) -> TopologyPlan:
    """DGX A100 boxes: 8 GPUs (`box.gpu`) to `nvswitch:box` at 300 GB/s, and by their NICs to two InfiniBand switches.

    Each GPU is linked with its NIC (`nic:box.gpu`, a switch node) and the NIC with `ib:0` or `ib:1`, by the
    parity of the GPU, at 25 GB/s. One box has no NICs and no InfiniBand. All links both ways.

    Optimum of allgather with n = 8 boxes GPUs: 342.86 GB/s for one box; else the smaller of 325 n / (n - 1), what one
    GPU receives, and 200 boxes / (boxes - 1), what one box receives: 346.67 for two boxes (k = 13), 266.67 for four.
    The known symmetries (rotations of the boxes and of the GPUs) act regularly.
    Source: Zhao et al., "ForestColl", evaluation on 2 x 8 A100; NVIDIA, "DGX A100 System Architecture", 2020.
    """
    boxes = _box_count(call, "boxes")
    return _plan(call, _Boxes(boxes, 8, Fraction(300), Fraction(25), "ib", 2, ability=None))


def plan_h100(call: FamilyCall) -> TopologyPlan:
    """DGX H100 boxes: 8 GPUs to `nvswitch:box` at 450 GB/s; NIC i of every box to the switch `rail:i` at 50 GB/s.

    Rails meet in the boxes only. One box has no NICs and no rails. All links both ways.

    The NVSwitches multicast and add (NVLink SHARP), at the rate of their links: what measurements leave of that is for
    `usable` and `able`. Without their help the optimum of allgather with n = 8 boxes GPUs is 514.29 GB/s for one box,
    else the smaller of 500 n / (n - 1) and 400 boxes / (boxes - 1). The known symmetries (rotations of the boxes and
    of the GPUs) act regularly.
    Source: NVIDIA, DGX H100 data sheet (NVLink 4: 18 links of 25 GB/s each way; eight NICs of 400 Gbit/s).
    """
    return _plan(call, _Boxes(_box_count(call, "boxes"), 8, _H100_NVSWITCH, _NDR_NIC, "rail", 8))


def plan_h200(call: FamilyCall) -> TopologyPlan:
    """DGX H200 boxes: links as `h100`; H200 differs in memory only.

    Source: NVIDIA, DGX H200 data sheet (NVLink 4, 900 GB/s both ways per GPU; eight NICs of 400 Gbit/s).
    """
    return plan_h100(call)


def plan_b200(call: FamilyCall) -> TopologyPlan:
    """DGX B200 boxes: as `h100` with NVSwitches of 900 GB/s per GPU; NICs of 50 GB/s on eight rails.

    Source: NVIDIA, DGX B200 data sheet (NVLink 5: 18 links of 50 GB/s each way; eight NICs of 400 Gbit/s).
    """
    return _plan(call, _Boxes(_box_count(call, "boxes"), 8, _NVLINK_5, _NDR_NIC, "rail", 8))


def plan_nvl72(call: FamilyCall) -> TopologyPlan:
    """NVL72 racks: 72 GPUs (`rack.gpu`) to `nvswitch:rack` at 900 GB/s; NIC i of every rack to `rail:i` at 50 GB/s.

    The NVSwitch chips of a rack, to each of which every GPU has a link, are one node. Rails meet in the racks only; one
    rack has no NICs and no rails. All links both ways.

    Source: NVIDIA, GB200 NVL72 data sheet (72 GPUs, 130 TB/s of NVLink both ways: 18 links of 50 GB/s each way
    per GPU; a ConnectX-7 of 400 Gbit/s per GPU).
    """
    return _plan(call, _Boxes(_box_count(call, "racks"), 72, _NVLINK_5, _NDR_NIC, "rail", 72))


def plan_railclos(call: FamilyCall) -> TopologyPlan:
    """Rail-optimised Clos: boxes of GPUs behind an NVSwitch, a rail switch per GPU index, spines between the rails.

    GPUs are linked with `nvswitch:box` at 450 GB/s and with their NICs at `nic` GB/s; NIC i of every box leads to
    `rail:i` at `nic`; every rail leads to each of the switches `spine:0`, … at boxes * nic / spines, so that a rail
    has as much bandwidth up as down and spines never block. All links both ways. With spines = 0 rails meet in the
    boxes only. What would join nothing is left out: the NVSwitch of a single GPU, all NICs, rails and spines of a
    single box, the spines of a single rail. boxes * gpus >= 2.

    Optimum of allgather with n = boxes * gpus GPUs, boxes > 1 and gpus > 1: the smaller of (450 + nic) n / (n - 1) and
    gpus * nic * boxes / (boxes - 1). Spines change neither: they matter for all-to-all. The known symmetries
    (rotations of the boxes and of the GPUs) act regularly.
    Source: Wang et al., "Rail-only: a low-cost high-performance network for training LLMs", 2023, for both forms of
    the network; docs/contributing/decisions.md says what it leaves open.
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
    return TopologyPlan(str(call), nodes, links, lambda: _build(str(call), shape))


def _build(spec: str, shape: _Boxes) -> Topology:
    fabric = FabricBuilder(spec, grid_ids(shape.boxes, shape.gpus))
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


_XGMI = Fraction(50)
_MI250_INFINIBAND = Fraction(16)
_MI300X_XGMI = Fraction(64)
_MI355X_XGMI = Fraction("76.8")


class _Bundle(NamedTuple):
    """Parallel xGMI links between two GPUs of a box."""

    one: int
    other: int
    links: int


_BUNDLES = tuple(
    _Bundle(*bundle)
    for bundle in (
        *((gpu, gpu + 1, 4) for gpu in range(0, 16, 2)),
        *((0, 4, 2), (3, 7, 2), (8, 12, 2), (11, 15, 2)),
        *((0, 8, 1), (1, 5, 1), (1, 9, 1), (1, 10, 1), (2, 6, 1), (2, 9, 1), (2, 10, 1), (3, 11, 1)),
        *((4, 6, 1), (5, 6, 1), (5, 7, 1), (9, 13, 1), (10, 14, 1), (12, 14, 1), (13, 14, 1), (13, 15, 1)),
    )
)


def plan_mi250(call: FamilyCall) -> TopologyPlan:
    """MI250 boxes: 16 GPUs (`box.gpu`) with xGMI links of 50 GB/s, 1, 2 or 4 of them side by side, as one link here.

    Each GPU is also linked with the InfiniBand switch `ib:0` at 16 GB/s; one box has none. All links both ways.

    Optimum of allgather: 342.86 GB/s for one box, 354.13 for two (k = 83). The known symmetry rotates the boxes.
    Source: Zhao et al., "ForestColl", evaluation on 2 x 16 MI250; AMD, "Instinct MI250 accelerator" data sheet.
    """
    return _plan_mi250(call, gpus=16)


def plan_mi250half(call: FamilyCall) -> TopologyPlan:
    """Half of MI250 boxes: GPUs 0 to 7 of each, and the links of mi250 among them.

    Optimum of allgather: 200 GB/s for one box, 208 for two.
    Source: Zhao et al., "ForestColl", evaluation on 2 x 8 GPUs of MI250 boxes.
    """
    return _plan_mi250(call, gpus=8)


def plan_mi300x(call: FamilyCall) -> TopologyPlan:
    """MI300X boxes: 8 GPUs (`box.gpu`), every two linked at 64 GB/s; NICs (`nic:box.gpu`) at 50 GB/s to `ib:0`.

    A NIC is a switch node, linked with its GPU and with the switch. One box has neither. All links both ways.

    Optimum of allgather with n = 8 boxes GPUs: 512 GB/s for one box, else the smaller of 498 n / (n - 1) and
    400 boxes / (boxes - 1). The known symmetries (rotations of the boxes and of the GPUs) act regularly.
    Source: AMD, "Instinct MI300X platform" data sheet (seven Infinity Fabric links of 64 GB/s each way per GPU).
    """
    return _plan(call, _Boxes(_box_count(call, "boxes"), 8, _MI300X_XGMI, _NDR_NIC, "ib", 1, is_mesh=True))


def plan_mi355x(call: FamilyCall) -> TopologyPlan:
    """MI355X boxes: as `mi300x`, with 76.8 GB/s between every two GPUs; NICs of 50 GB/s to `ib:0`.

    Nothing in a box multicasts or adds: the GPUs are linked directly.
    Source: AMD, "Instinct MI355X" data sheet (seven Infinity Fabric links of 153.6 GB/s both ways per GPU).
    """
    return _plan(call, _Boxes(_box_count(call, "boxes"), 8, _MI355X_XGMI, _NDR_NIC, "ib", 1, is_mesh=True))


def _plan_mi250(call: FamilyCall, gpus: int) -> TopologyPlan:
    boxes = _box_count(call, "boxes")
    bundles = tuple(bundle for bundle in _BUNDLES if bundle.other < gpus)
    joined = boxes > 1
    nodes = boxes * gpus + joined
    links = 2 * boxes * (len(bundles) + (gpus if joined else 0))
    return TopologyPlan(str(call), nodes, links, lambda: _mi250(str(call), boxes, gpus, bundles))


def _mi250(spec: str, boxes: int, gpus: int, bundles: tuple[_Bundle, ...]) -> Topology:
    fabric = FabricBuilder(spec, grid_ids(boxes, gpus))
    gpu = np.arange(boxes * gpus).reshape(boxes, gpus)
    for one, other, links in bundles:
        fabric.wire(gpu[:, one], gpu[:, other], links * _XGMI)
    if boxes > 1:
        fabric.wire(gpu, fabric.add_switches(switch_ids("ib", 1), (1,)), _MI250_INFINIBAND)
    fabric.add_rotation((gpu, 0))
    return fabric.topology()


GPU_FAMILIES = (
    Family("a100", "a100:boxes", "a100:2", "DGX A100: NVSwitch 300 GB/s, InfiniBand 25 GB/s", plan_a100),
    Family("h100", "h100:boxes", "h100:2", "DGX H100: NVSwitch 450 GB/s that adds, eight rails of 50 GB/s", plan_h100),
    Family("h200", "h200:boxes", "h200:2", "DGX H200: links as h100", plan_h200),
    Family("b200", "b200:boxes", "b200:2", "DGX B200: NVSwitch 900 GB/s, eight rails of 50 GB/s", plan_b200),
    Family("nvl72", "nvl72:racks", "nvl72:2", "NVL72: 72 GPUs on NVSwitches of 900 GB/s, rails of 50 GB/s", plan_nvl72),
    Family(
        "railclos", _CLOS_SYNTAX, "railclos:4,8,50,4", "boxes behind NVSwitches, a rail per GPU, spines", plan_railclos
    ),
    Family("mi250", "mi250:boxes", "mi250:2", "MI250: 16 GPUs, xGMI links of 50 GB/s, InfiniBand 16 GB/s", plan_mi250),
    Family("mi250half", "mi250half:boxes", "mi250half:2", "GPUs 0 to 7 of each MI250 box", plan_mi250half),
    Family("mi300x", "mi300x:boxes", "mi300x:2", "MI300X: every two GPUs 64 GB/s, NICs 50 GB/s", plan_mi300x),
    Family("mi355x", "mi355x:boxes", "mi355x:2", "MI355X: every two GPUs 76.8 GB/s, NICs 50 GB/s", plan_mi355x),
)
