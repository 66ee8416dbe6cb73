"""What a topology dump says about one machine.

Networks of machines: one box, or copies of it whose NICs meet in switches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.families.builders import FabricBuilder, NodeGrid, grid_ids, switch_ids
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.topology import Topology

WireKind = Literal["gpu", "nvswitch", "cpu"]


class Wire(NamedTuple):
    """NVLinks, xGMI or chip-to-chip links of a GPU, one way where they lead to a GPU: `target` is its bus id."""

    kind: WireKind
    target: str
    bandwidth: Fraction


@dataclass(frozen=True, slots=True)
class HostSwitch:
    """A CPU (without `parent`) or a PCI switch; `bandwidth` leads to the parent, from a CPU to each other CPU.

    `parent` is a position in the machine's list of host switches, always an earlier one.
    """

    name: str
    parent: int | None
    bandwidth: Fraction


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU at PCI address `bus`, linked with host switch `host`."""

    rank: int
    bus: str
    host: int
    pci: Fraction
    wires: tuple[Wire, ...]


@dataclass(frozen=True, slots=True)
class Nic:
    """A port of a NIC, linked with host switch `host`; `speed` is None where the dump does not tell."""

    number: int
    host: int
    pci: Fraction
    speed: Fraction | None

    @property
    def bandwidth(self) -> Fraction:
        """What gets through both its PCI link and its port."""
        return self.pci if self.speed is None else min(self.pci, self.speed)


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: GPUs in rank order, NICs in the order of their numbers, bandwidths in GB/s.

    `only_places` says that the file places devices on PCI without describing GPUs, so that their links are unknown.
    """

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    hosts: tuple[HostSwitch, ...]
    positions_only: bool

    @property
    def cpus(self) -> list[int]:
        """Positions of the CPUs among the host switches."""
        return [index for index, host in enumerate(self.hosts) if host.parent is None]

    def path_to_cpu(self, host: int) -> list[int]:
        """Return the host switches from `host` up to its CPU."""
        way = [host]
        while (parent := self.hosts[way[-1]].parent) is not None:
            way.append(parent)
        return way

    def path_between(self, first: int, second: int) -> tuple[int, Fraction | None]:
        """Return the number of links between two host switches and the narrowest of them, None for no link."""
        left, right = self.path_to_cpu(first), self.path_to_cpu(second)
        while left and right and left[-1] == right[-1]:
            left.pop()
            right.pop()
        crossed = [*left, *right]  # each leads to its parent; two CPUs stand for the one link between them
        links = len(crossed) - sum(self.hosts[host].parent is None for host in crossed) // 2
        return links, min((self.hosts[host].bandwidth for host in crossed), default=None)


@dataclass(frozen=True, slots=True)
class BoxNetwork:
    """How many copies of a box there are, the bandwidth of each NIC in GB/s (None: as dumped), and what joins them.

    NICs lead to one switch; with `rails`, NIC i of every box to switch i.
    """

    boxes: int = 1
    nic: Fraction | None = None
    rails: bool = False


def boxes_topology(machine: Machine, network: BoxNetwork, spec: str) -> Topology:
    """Return the checked network of `network.boxes` copies of `machine`, bandwidths in GB/s.

    GPUs are called `box.gpu`, ranked by box and then as in the dump. Where NVLink or xGMI join all GPUs of a box,
    GPUs use nothing else between them, as NCCL does: the box has its GPUs, one `nvswitch:box` for all NVSwitches, and
    every NIC (`nic:box.number`) beside the GPU that is nearest on PCI, at what PCI and the port let through. Else PCI
    switches (`pci:box.address`) and CPUs (`cpu:box.number`) are nodes too. Several boxes are joined by `net:0`, or
    by one `net:i` per NIC. The rotation of the boxes is a known symmetry.
    Raises InvalidInput for too many boxes, boxes without NICs, and a single GPU.
    """
    if network.boxes < 1:
        raise InvalidInput("a network must have at least one box", network.boxes, "use --boxes 1")
    nodes = len(machine.gpus) + len(machine.nics) + len(machine.hosts) + 1
    links = sum(len(gpu.wires) + 2 for gpu in machine.gpus) + 4 * nodes + len(machine.cpus) ** 2
    require_size(spec, network.boxes * nodes, network.boxes * links)
    if network.boxes * len(machine.gpus) < 2:
        raise InvalidInput("a network must have at least two GPUs", f"1 in {spec}", "use --boxes")
    if network.boxes > 1 and not machine.nics:
        raise InvalidInput("boxes must have NICs to be joined", f"{network.boxes} boxes without", "use one box")
    return check_topology(_Boxes(machine, network, spec).build())


class _Boxes:
    """The network in the making; every grid holds one node per box."""

    def __init__(self, machine: Machine, network: BoxNetwork, spec: str) -> None:
        self.machine = machine
        self.network = network
        self.fabric = FabricBuilder(spec, grid_ids(network.boxes, len(machine.gpus)))
        gpus = np.arange(self.fabric.compute_count).reshape(network.boxes, -1)
        self.gpus = {gpu.bus: gpus[:, index] for index, gpu in enumerate(machine.gpus)}
        self.moving: list[NodeGrid] = [gpus]

    def build(self) -> Topology:
        self.add_wires()
        if _joined_by_wires(self.machine):
            self.add_nics(self.beside_a_gpu())
        else:
            hosts = self.add_hosts()
            self.add_nics(lambda nic: (hosts[nic.host], nic.pci))
        self.fabric.add_rotation(*((grid, 0) for grid in self.moving))
        return self.fabric.topology()

    def add_switch(self, kind: str, place: str) -> NodeGrid:
        ids = [f"{kind}:{box}{place}" for box in range(self.network.boxes)]
        grid = self.fabric.add_switches(ids, (self.network.boxes,))
        self.moving.append(grid)
        return grid

    def add_wires(self) -> None:
        to_switch = {gpu.bus: _total(gpu, "nvswitch") for gpu in self.machine.gpus}
        if any(to_switch.values()):
            nvswitch = self.add_switch("nvswitch", "")
            for bus, bandwidth in to_switch.items():
                if bandwidth:
                    self.fabric.wire(self.gpus[bus], nvswitch, bandwidth)
        for gpu in self.machine.gpus:
            for target in dict.fromkeys(wire.target for wire in gpu.wires if wire.kind == "gpu"):
                self.fabric.arc(self.gpus[gpu.bus], self.gpus[target], _total(gpu, "gpu", target))

    def add_hosts(self) -> list[NodeGrid]:
        """Add PCI switches and CPUs that lie between something, and their links; return all by position."""
        machine = self.machine
        grids = [self.add_switch(*_kind_and_place(host.name)) for host in machine.hosts]
        for index, host in enumerate(machine.hosts):
            if host.parent is not None:
                self.fabric.wire(grids[index], grids[host.parent], host.bandwidth)
        for one in machine.cpus:
            for other in machine.cpus:
                if one != other:
                    self.fabric.arc(grids[one], grids[other], machine.hosts[one].bandwidth)
        for gpu in machine.gpus:
            self.fabric.wire(self.gpus[gpu.bus], grids[gpu.host], gpu.pci)
            if chip_to_chip := _total(gpu, "cpu"):
                self.fabric.wire(self.gpus[gpu.bus], grids[machine.path_to_cpu(gpu.host)[-1]], chip_to_chip)
        return grids

    def beside_a_gpu(self) -> Callable[[Nic], tuple[NodeGrid, Fraction]]:
        """Return a choice of a GPU for each NIC: the nearest, of these the one with fewest NICs so far."""
        taken = {gpu.bus: 0 for gpu in self.machine.gpus}

        def choose(nic: Nic) -> tuple[NodeGrid, Fraction]:
            ways = {gpu.bus: self.machine.path_between(gpu.host, nic.host) for gpu in self.machine.gpus}
            chosen = min(self.machine.gpus, key=lambda gpu: (ways[gpu.bus][0], taken[gpu.bus]))
            taken[chosen.bus] += 1
            narrowest = ways[chosen.bus][1]
            between = [] if narrowest is None else [narrowest]
            return self.gpus[chosen.bus], min([chosen.pci, nic.pci, *between])

        return choose

    def add_nics(self, neighbour_of: Callable[[Nic], tuple[NodeGrid, Fraction]]) -> None:
        network, nics = self.network, self.machine.nics
        grids = [self.add_switch("nic", f".{nic.number}") for nic in nics]
        joints = len(nics) if network.rails else 1
        joint = self.fabric.add_switches(switch_ids("net", joints), (joints,)) if network.boxes > 1 else None
        for index, nic in enumerate(nics):
            neighbour, inside = neighbour_of(nic)
            speed = network.nic if network.nic is not None else nic.speed
            bandwidth = inside if speed is None else min(inside, speed)
            self.fabric.wire(neighbour, grids[index], bandwidth)
            if joint is not None:
                self.fabric.wire(grids[index], joint[index % joints], bandwidth)


def _joined_by_wires(machine: Machine) -> bool:
    """Whether NVLink, NVSwitches and xGMI lead from every GPU to every other."""
    place = {gpu.bus: index for index, gpu in enumerate(machine.gpus)}
    switch = len(place)
    arcs = [(place[gpu.bus], place[wire.target]) for gpu in machine.gpus for wire in gpu.wires if wire.kind == "gpu"]
    for gpu in machine.gpus:
        if _total(gpu, "nvswitch"):
            arcs += [(place[gpu.bus], switch), (switch, place[gpu.bus])]
    src, dst = np.array(arcs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(arcs), dtype=np.int8), (src, dst)), shape=(switch + 1, switch + 1))
    labels = connected_components(graph, directed=True, connection="strong")[1]
    return bool(np.all(labels[:switch] == labels[0]))


def _total(gpu: Gpu, kind: str, target: str = "") -> Fraction:
    wires = (wire.bandwidth for wire in gpu.wires if (wire.kind, wire.target) == (kind, target))
    return sum(wires, Fraction(0))


def _kind_and_place(name: str) -> tuple[str, str]:
    kind, _, place = name.partition(":")
    return kind, f".{place}"
