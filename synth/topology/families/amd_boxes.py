"""Boxes of AMD GPUs that are linked directly with each other: MI250, MI300X, MI355X."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

import numpy as np

from chorale.synth.topology.families.builders import FabricBuilder, grid_ids, switch_ids
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import Topology

_XGMI = Fraction(50)
_MI250_INFINIBAND = Fraction(16)
_MI300X_XGMI = Fraction(64)
_MI355X_XGMI = Fraction("76.8")
_NIC = Fraction(50)


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
    return _plan_platform(call, _MI300X_XGMI)


def plan_mi355x(call: FamilyCall) -> TopologyPlan:
    """MI355X boxes: as `mi300x`, with 76.8 GB/s between every two GPUs; NICs of 50 GB/s to `ib:0`.

    Nothing in a box multicasts or adds: the GPUs are linked directly.
    Source: AMD, "Instinct MI355X" data sheet (seven Infinity Fabric links of 153.6 GB/s both ways per GPU).
    """
    return _plan_platform(call, _MI355X_XGMI)


def _plan_platform(call: FamilyCall, xgmi: Fraction) -> TopologyPlan:
    boxes = _boxes(call)
    gpus = 8 * boxes
    nodes, links = gpus, 7 * gpus
    if boxes > 1:
        nodes, links = nodes + gpus + 1, links + 4 * gpus
    return TopologyPlan(str(call), nodes, links, lambda: _platform(str(call), boxes, xgmi))


def _plan_mi250(call: FamilyCall, gpus: int) -> TopologyPlan:
    boxes = _boxes(call)
    bundles = tuple(bundle for bundle in _BUNDLES if bundle.other < gpus)
    joined = boxes > 1
    nodes = boxes * gpus + joined
    links = 2 * boxes * (len(bundles) + (gpus if joined else 0))
    return TopologyPlan(str(call), nodes, links, lambda: _mi250(str(call), boxes, gpus, bundles))


def _boxes(call: FamilyCall) -> int:
    (boxes,) = fixed_numbers(call, f"{call.name}:boxes", 1)
    require(boxes >= 1, f"{call.name} must have at least one box", call, f"use {call.name}:1")
    return boxes


def _mi250(spec: str, boxes: int, gpus: int, bundles: tuple[_Bundle, ...]) -> Topology:
    fabric = FabricBuilder(spec, grid_ids(boxes, gpus))
    gpu = np.arange(boxes * gpus).reshape(boxes, gpus)
    for one, other, links in bundles:
        fabric.wire(gpu[:, one], gpu[:, other], links * _XGMI)
    if boxes > 1:
        fabric.wire(gpu, fabric.add_switches(switch_ids("ib", 1), (1,)), _MI250_INFINIBAND)
    fabric.add_rotation((gpu, 0))
    return fabric.topology()


def _platform(spec: str, boxes: int, xgmi: Fraction) -> Topology:
    fabric = FabricBuilder(spec, grid_ids(boxes, 8))
    gpu = np.arange(8 * boxes).reshape(boxes, 8)
    for one, other in combinations(range(8), 2):
        fabric.wire(gpu[:, one], gpu[:, other], xgmi)
    moved = [gpu]
    if boxes > 1:
        nic = fabric.add_switches(switch_ids("nic", boxes, 8), gpu.shape)
        fabric.wire(gpu, nic, _NIC)
        fabric.wire(nic, fabric.add_switches(switch_ids("ib", 1), (1,)), _NIC)
        moved.append(nic)
    for axis in (0, 1):
        fabric.add_rotation(*((grid, axis) for grid in moved))
    return fabric.topology()


AMD_FAMILIES = (
    Family("mi250", "mi250:boxes", "mi250:2", "MI250: 16 GPUs, xGMI links of 50 GB/s, InfiniBand 16 GB/s", plan_mi250),
    Family("mi250half", "mi250half:boxes", "mi250half:2", "GPUs 0 to 7 of each MI250 box", plan_mi250half),
    Family("mi300x", "mi300x:boxes", "mi300x:2", "MI300X: every two GPUs 64 GB/s, NICs 50 GB/s", plan_mi300x),
    Family("mi355x", "mi355x:boxes", "mi355x:2", "MI355X: every two GPUs 76.8 GB/s, NICs 50 GB/s", plan_mi355x),
)
