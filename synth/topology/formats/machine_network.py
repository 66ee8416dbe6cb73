"""Networks of machines: one machine as a topology dump describes it, or copies of it whose NICs meet in switches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.topology.abilities import NVSWITCH, SwitchAbility
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
    """A GPU at PCI address `bus`, linked with host switch `host`; `nvls`: it lets NVSwitches add and multicast."""

    rank: int
    bus: str
    host: int
    pci: Fraction
    wires: tuple[Wire, ...]
    nvls: bool = False


@dataclass(frozen=True, slots=True)
class Nic:
    """A port of a NIC, linked with host switch `host`; `speed` is None where the dump does not give it."""

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

    `positions_only`: the file gives the PCI positions of devices without describing GPUs, whose links are unknown.
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
        path = [host]
        while (parent := self.hosts[path[-1]].parent) is not None:
            path.append(parent)
        return path

    def path_between(self, first: int, second: int) -> tuple[int, Fraction | None]:
        """Return the number of links between two host switches and the narrowest of them, None for no link."""
        up, down = self.path_to_cpu(first), self.path_to_cpu(second)
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        crossed = [*up, *down]  # each leads to its parent; two CPUs count as the one link between them
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
    by one `net:i` per NIC. NVSwitches of GPUs with NVLink SHARP add and multicast. The rotation of the boxes is a known
    symmetry.
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
    """Builder of the network; every grid holds one node per box."""

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

    def add_switch(self, kind: str, suffix: str, ability: SwitchAbility | None = None) -> NodeGrid:
        ids = [f"{kind}:{box}{suffix}" for box in range(self.network.boxes)]
        grid = self.fabric.add_switches(ids, (self.network.boxes,), ability)
        self.moving.append(grid)
        return grid

    def add_wires(self) -> None:
        to_switch = {gpu.bus: _total(gpu, "nvswitch") for gpu in self.machine.gpus}
        if any(to_switch.values()):
            nvls = all(gpu.nvls for gpu in self.machine.gpus if to_switch[gpu.bus])
            nvswitch = self.add_switch("nvswitch", "", NVSWITCH if nvls else None)
            for bus, bandwidth in to_switch.items():
                if bandwidth:
                    self.fabric.wire(self.gpus[bus], nvswitch, bandwidth)
        for gpu in self.machine.gpus:
            for target in dict.fromkeys(wire.target for wire in gpu.wires if wire.kind == "gpu"):
                self.fabric.arc(self.gpus[gpu.bus], self.gpus[target], _total(gpu, "gpu", target))

    def add_hosts(self) -> list[NodeGrid]:
        """Add PCI switches, CPUs and their links; return the grid of each host switch by position."""
        machine = self.machine
        grids = [self.add_switch(*_kind_and_suffix(host.name)) for host in machine.hosts]
        for index, host in enumerate(machine.hosts):
            if host.parent is not None:
                self.fabric.wire(grids[index], grids[host.parent], host.bandwidth)
        for first, second in permutations(machine.cpus, 2):
            self.fabric.arc(grids[first], grids[second], machine.hosts[first].bandwidth)
        for gpu in machine.gpus:
            self.fabric.wire(self.gpus[gpu.bus], grids[gpu.host], gpu.pci)
            if chip_to_chip := _total(gpu, "cpu"):
                self.fabric.wire(self.gpus[gpu.bus], grids[machine.path_to_cpu(gpu.host)[-1]], chip_to_chip)
        return grids

    def beside_a_gpu(self) -> Callable[[Nic], tuple[NodeGrid, Fraction]]:
        """Return a function that chooses a GPU for a NIC: the nearest, of these the one with fewest NICs so far."""
        nic_count = {gpu.bus: 0 for gpu in self.machine.gpus}

        def choose(nic: Nic) -> tuple[NodeGrid, Fraction]:
            paths = {gpu.bus: self.machine.path_between(gpu.host, nic.host) for gpu in self.machine.gpus}
            chosen = min(self.machine.gpus, key=lambda gpu: (paths[gpu.bus][0], nic_count[gpu.bus]))
            nic_count[chosen.bus] += 1
            narrowest = paths[chosen.bus][1]
            between = [] if narrowest is None else [narrowest]
            return self.gpus[chosen.bus], min([chosen.pci, nic.pci, *between])

        return choose

    def add_nics(self, neighbour_of: Callable[[Nic], tuple[NodeGrid, Fraction]]) -> None:
        network, nics = self.network, self.machine.nics
        grids = [self.add_switch("nic", f".{nic.number}") for nic in nics]
        switch_count = len(nics) if network.rails else 1
        switches = (
            self.fabric.add_switches(switch_ids("net", switch_count), (switch_count,)) if network.boxes > 1 else None
        )
        for index, nic in enumerate(nics):
            neighbour, inside = neighbour_of(nic)
            speed = network.nic if network.nic is not None else nic.speed
            bandwidth = inside if speed is None else min(inside, speed)
            self.fabric.wire(neighbour, grids[index], bandwidth)
            if switches is not None:
                self.fabric.wire(grids[index], switches[index % switch_count], bandwidth)


def _joined_by_wires(machine: Machine) -> bool:
    """Return whether NVLink, NVSwitches and xGMI lead from every GPU to every other."""
    position = {gpu.bus: index for index, gpu in enumerate(machine.gpus)}
    switch = len(position)
    arcs = [
        (position[gpu.bus], position[wire.target]) for gpu in machine.gpus for wire in gpu.wires if wire.kind == "gpu"
    ]
    for gpu in machine.gpus:
        if _total(gpu, "nvswitch"):
            arcs += [(position[gpu.bus], switch), (switch, position[gpu.bus])]
    src, dst = np.array(arcs, dtype=np.int64).reshape(-1, 2).T
    graph = sparse.coo_array((np.ones(len(arcs), dtype=np.int8), (src, dst)), shape=(switch + 1, switch + 1))
    labels = csgraph.connected_components(graph, directed=True, connection="strong")[1]
    return bool(np.all(labels[:switch] == labels[0]))


def _total(gpu: Gpu, kind: str, target: str = "") -> Fraction:
    wires = (wire.bandwidth for wire in gpu.wires if (wire.kind, wire.target) == (kind, target))
    return sum(wires, Fraction(0))


def _kind_and_suffix(name: str) -> tuple[str, str]:
    kind, _, position = name.partition(":")
    return kind, f".{position}"
