"""Builds the network of a machine that a file describes, or of several copies whose NICs are joined by switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, permutations, product
from typing import Literal, NamedTuple

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.families.builders import FabricBuilder, NodeGrid, grid_ids
from chorale.synth.topology.formats.rates import LOCAL, Rate, narrowest, rate
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.topology import NVSWITCH, Assumption, Provenance, SwitchAbility, Topology

WireKind = Literal["gpu", "nvswitch", "cpu"]
Way = tuple[NodeGrid, Rate, list[tuple[str, Rate]]]
"""A path to a NIC: (node where it starts, lowest rate on it, (name, rate) of each link on it)."""


class Wire(NamedTuple):
    """All NVLinks, xGMI links or chip-to-chip links from a GPU to `target`; the opposite direction is another Wire.

    target: bus id of a GPU; name of an NVSwitch, or "" for all NVSwitches; "" for the CPU (`kind` says which of these)
    """

    kind: WireKind
    target: str
    rate: Rate


@dataclass(frozen=True, slots=True)
class HostSwitch:
    """A CPU (if `parent` is None) or a PCI switch.

    parent: the next device towards the CPU, as an index into `Machine.hosts`
    rate:   rate of the link to the parent or, for a CPU, to each other CPU
    system: number of the host machine
    """

    name: str
    parent: int | None
    rate: Rate
    system: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU at PCI address `bus`, linked to host switch `host`.

    ranks: the ranks that run on this GPU; several if it is partitioned (MIG, MLOPart)
    pci:   rate of the slot
    wires: links to GPUs, NVSwitches and the CPU, other than PCI Express
    nvls:  whether the GPU's NVSwitches can reduce and multicast data
    """

    ranks: tuple[int, ...]
    bus: str
    host: int
    pci: Rate
    wires: tuple[Wire, ...]
    nvls: bool = False


@dataclass(frozen=True, slots=True)
class Nic:
    """A port of a NIC, linked to host switch `host`.

    device: name of the slot, which several ports may share
    pci:    rate of the slot
    speed:  rate of the port; None if the file does not state it
    rail:   network rail and plane of the port; None if the file does not state them
    name:   device name such as `mlx5_0`; empty if unknown
    """

    number: str
    device: str
    host: int
    pci: Rate
    speed: Rate | None
    rail: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, or several machines whose GPUs share NVSwitches. GPUs are in rank order, NICs in numerical order.

    positions_only: whether the file gives only PCI positions of devices, not the links between GPUs
    nvlink_gpus:    maximum number of GPUs that share NVSwitches if several such machines form a rack (NVL72); 0 if
                    machines do not share NVSwitches
    facts:          assumptions other than those about link rates
    bridges:        pairs of PCI switches (indices into `hosts`) that are parts of one device, so that traffic between
                    them need not cross a CPU
    """

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    hosts: tuple[HostSwitch, ...]
    positions_only: bool = False
    nvlink_gpus: int = 0
    facts: tuple[Assumption, ...] = ()
    bridges: frozenset[tuple[int, int]] = frozenset()

    @property
    def cpus(self) -> list[int]:
        """Indices of the CPUs in `hosts`."""
        return [index for index, host in enumerate(self.hosts) if host.parent is None]

    @property
    def rank_count(self) -> int:
        return sum(len(gpu.ranks) for gpu in self.gpus)

    def path_to_cpu(self, host: int) -> list[int]:
        """Return the indices of all host switches from `host` up to its CPU, both included."""
        path = [host]
        while (parent := self.hosts[path[-1]].parent) is not None:
            path.append(parent)
        return path

    def path_between(self, first: int, second: int) -> tuple[list[int], list[int]]:
        """Return the paths from host switches `first` and `second` to the switch where they meet, which is excluded."""
        up, down = self.path_to_cpu(first), self.path_to_cpu(second)
        for here, there in product(range(len(up)), range(len(down))):
            if (up[here], down[there]) in self.bridges:
                return up[:here], down[:there]
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        return up, down


def rack_gpus(gpus: Sequence[Gpu], capability: int, hosts: int = 1) -> int:
    """Return how many GPUs of a rack share NVSwitches if `gpus` form one of its trays; 0 if they do not form a tray.

    capability: compute capability of the newest GPU, times ten
    hosts:      number of hosts that `gpus` belong to
    """
    switched = all(any(wire.kind == "nvswitch" for wire in gpu.wires) for gpu in gpus)
    if not switched or len(gpus) > 4 * hosts:
        return 0
    return 72 if capability >= 100 else 32


def shared_gpus(gpus: Iterable[Gpu]) -> Iterable[Assumption]:
    """Yield the assumption about GPUs that are shared by several ranks, if there are any."""
    if shared := sum(len(gpu.ranks) > 1 for gpu in gpus):
        value = f"on {shared} GPUs, whose links they share"
        yield Assumption("several ranks on one GPU", value, "file", "partitions of a device")


@dataclass(frozen=True, slots=True)
class BoxNetwork:
    """The number of boxes, and the kind of network that joins them.

    nic:          bandwidth of each NIC in GB/s; None means the rates in the file
    rails:        whether NIC i of every box leads to switch i. Otherwise, all NICs lead to one switch, or to one per
                  rail if the file states rails.
    nvlink_boxes: number of boxes whose GPUs share NVSwitches; None means the usual number for such machines
    """

    boxes: int = 1
    nic: Fraction | None = None
    rails: bool = False
    nvlink_boxes: int | None = None


def boxes_topology(machine: Machine, network: BoxNetwork, spec: str) -> Topology:
    """Return the checked network of `network.boxes` copies of `machine`, with bandwidths in GB/s.

    GPUs are called `box.rank`, ordered by box and then as in the file. If NVLink or xGMI joins all GPUs of a box, GPUs
    use no other links among themselves, as in NCCL. The box then consists of its GPUs, one `nvswitch:box` that stands
    for all NVSwitches, and each NIC (`nic:box.number`), linked to the GPU nearest on PCI Express. This link has the
    lowest rate on the path between them or, if lower, the rate of the port. Otherwise, PCI switches (`pci:box.address`)
    and CPUs (`cpu:box.number`) are nodes too; GPUs behind NVSwitches reach them through the NVSwitches.

    Several boxes are joined by `net:0`, by one `net:i` per NIC, or by one per rail, unless NVSwitches join all their
    GPUs. NICs that share a PCI Express link are joined by `uplink:box.i` at the rate of the link. Ranks on one GPU are
    linked to `gpu:box.i`. NVSwitches of GPUs with NVLink SHARP reduce and multicast data. Rotating the boxes is a known
    symmetry. Raises InvalidInput for too many boxes, for a single GPU, and for several boxes with neither NICs nor
    shared NVSwitches.
    """
    if network.boxes < 1:
        raise InvalidInput("a network must have at least one box", network.boxes, "use --boxes 1")
    if network.nvlink_boxes is not None and network.nvlink_boxes < 1:
        rule = "the number of boxes that share an NVSwitch must be at least 1"
        raise InvalidInput(rule, network.nvlink_boxes, "use --nvlink-boxes 1")
    nodes = 2 * machine.rank_count + 3 * len(machine.nics) + len(machine.hosts) + 1
    links = sum(len(gpu.wires) + 2 for gpu in machine.gpus) + 6 * nodes + len(machine.cpus) ** 2
    require_size(spec, network.boxes * nodes, network.boxes * links)
    if network.boxes * machine.rank_count < 2:
        raise InvalidInput("a network must have at least two GPUs", f"1 in {spec}", "use --boxes")
    boxes = _Boxes(machine, network, spec)
    if boxes.are_joined_by_nics and not machine.nics:
        raise InvalidInput("boxes without NICs cannot be connected: {}", f"{network.boxes} boxes", "use one box")
    return check_topology(boxes.build())


class _Boxes:
    """Builds the network of all boxes. Nodes are added as grids: arrays with one node per box."""

    def __init__(self, machine: Machine, network: BoxNetwork, spec: str) -> None:
        self.machine = machine
        self.network = network
        self.domain = max(1, min(network.boxes, machine.nvlink_gpus // max(1, len(machine.gpus))))
        if network.nvlink_boxes is not None:
            self.domain = min(network.nvlink_boxes, network.boxes)
        self.is_domain_guess = self.domain > 1 and network.nvlink_boxes is None
        self.fabric = FabricBuilder(spec, grid_ids(network.boxes, machine.rank_count))
        ranks = np.arange(self.fabric.compute_count).reshape(network.boxes, -1)
        self.moving: list[NodeGrid] = [ranks]
        self.rates: list[Rate] = []
        self.nic_count: Counter[str] = Counter()
        # Whether NVLink, NVSwitches and xGMI connect every GPU with every other
        position = {gpu.bus: index for index, gpu in enumerate(machine.gpus)}
        arcs: list[tuple[int, int]] = []
        for gpu in machine.gpus:
            for wire in gpu.wires:
                if wire.kind == "gpu":
                    arcs.append((position[gpu.bus], position[wire.target]))
                elif wire.kind == "nvswitch":
                    switch = position.setdefault(f"nvswitch {wire.target}", len(position))
                    arcs += [(position[gpu.bus], switch), (switch, position[gpu.bus])]
        src, dst = np.array(arcs, dtype=np.int64).reshape(-1, 2).T
        graph = sparse.coo_array((np.ones(len(arcs), dtype=np.int8), (src, dst)), shape=(len(position), len(position)))
        labels = csgraph.connected_components(graph, directed=True, connection="strong")[1]
        self.is_one_network = bool(np.all(labels[: len(machine.gpus)] == labels[0]))
        systems = {host.system for host in machine.hosts}
        several = network.boxes > self.domain if self.is_one_network else network.boxes * len(systems) > 1
        self.are_joined_by_nics = several
        self.gpus: dict[str, NodeGrid] = {}
        place = {rank: index for index, rank in enumerate(sorted(chain(*(gpu.ranks for gpu in machine.gpus))))}
        for index, gpu in enumerate(machine.gpus):
            if len(gpu.ranks) == 1:
                self.gpus[gpu.bus] = ranks[:, place[gpu.ranks[0]]]
                continue
            self.gpus[gpu.bus] = self.add_switch("gpu", f".{index}")
            for rank in gpu.ranks:
                self.wire(ranks[:, place[rank]], self.gpus[gpu.bus], LOCAL)

    def build(self) -> Topology:
        machine = self.machine
        names = dict.fromkeys(wire.target for gpu in machine.gpus for wire in gpu.wires if wire.kind == "nvswitch")
        self.nvswitches: dict[str, NodeGrid] = {}
        for name in names:
            joined = [gpu for gpu in machine.gpus if _total(gpu, "nvswitch", name)]
            nvls = all(gpu.nvls for gpu in joined)
            suffix = f".{name}" if name else ""
            switch = self.add_switch("nvswitch", suffix, NVSWITCH if nvls else None, self.domain)
            self.nvswitches[name] = switch
            for gpu in joined:
                if (total := _total(gpu, "nvswitch", name)) is not None:
                    self.wire(self.gpus[gpu.bus], switch, total)
        for gpu in machine.gpus:
            for target in dict.fromkeys(wire.target for wire in gpu.wires if wire.kind == "gpu"):
                if (total := _total(gpu, "gpu", target)) is not None:
                    self.arc(self.gpus[gpu.bus], self.gpus[target], total)
        if self.is_one_network:
            self.add_nics(self.beside_a_gpu)
        else:
            hosts = self.add_hosts()
            self.add_nics(lambda nic: (hosts[nic.host], nic.pci, [(f"slot {nic.device}", nic.pci)]))
        boxes, domain = self.network.boxes, self.domain
        if domain in (1, boxes):
            self.fabric.add_rotation(*((grid, 0) for grid in self.moving if len(grid) == boxes))
        elif boxes % domain == 0:
            self.fabric.add_rotation(*((grid.reshape(boxes // domain, -1), 0) for grid in self.moving))
        physical = self.fabric.topology()
        self.fabric.rates = [each.expected for each in self.rates]
        expected = self.fabric.topology().links
        ids = physical.node_ids
        is_guess = self.machine.positions_only or self.is_domain_guess
        guessed = frozenset(
            (ids[src], ids[dst])
            for (tails, heads), each in zip(self.fabric.ends, self.rates, strict=True)
            if each.basis.source == "guess" or is_guess
            for src, dst in zip(tails.tolist(), heads.tolist(), strict=True)
        )
        facts = (*self.machine.facts, *(each.basis for each in self.rates), *self.facts())
        return replace(physical, provenance=Provenance(tuple(dict.fromkeys(facts)), guessed, expected, physical.id))

    def facts(self) -> Iterable[Assumption]:
        if self.machine.positions_only:
            advice = "run NCCL or RCCL with NCCL_TOPO_DUMP_FILE set; the file only places devices on PCI Express"
            yield Assumption("links between GPUs", "only PCI Express", "guess", advice)
        if self.is_domain_guess:
            what = f"NVSwitches of {self.domain} boxes"
            advice = "GB200 NVL72 and its relatives; --nvlink-boxes 1 if only NICs join the boxes"
            yield Assumption(what, "one NVLink domain", "guess", advice)
        if self.are_joined_by_nics:
            advice = "the most that any network does; import the fabric with --machine for the real one"
            yield Assumption(FABRIC_FACT, "not oversubscribed", "guess", advice)
        elif self.machine.nics and self.is_one_network:
            value = "not used between GPUs that NVLink or xGMI join"
            yield Assumption("PCI Express and NICs", value, "published", "NCCL and RCCL, src/graph/paths.cc")

    def wire(self, first: NodeGrid, second: NodeGrid, each: Rate) -> None:
        self.arc(first, second, each)
        self.arc(second, first, each)

    def arc(self, src: NodeGrid, dst: NodeGrid, each: Rate) -> None:
        self.fabric.arc(src, dst, each.physical)
        self.rates.append(each)

    def add_switch(self, kind: str, suffix: str, ability: SwitchAbility | None = None, boxes: int = 1) -> NodeGrid:
        """Add one switch per group of `boxes` boxes and return int64[boxes of the network]: the switch of each box."""
        count = -(-self.network.boxes // boxes)
        grid = self.fabric.add_switches([f"{kind}:{box}{suffix}" for box in range(count)], (count,), ability)
        if boxes == 1 or count > 1:
            self.moving.append(grid)
        return np.repeat(grid, boxes)[: self.network.boxes]

    def add_hosts(self) -> list[NodeGrid]:
        """Add PCI switches, CPUs and their links. Return the grid (one node per box) of each host switch.

        GPUs behind an NVSwitch are reached through the NVSwitch, because they use no other links among themselves.
        """
        machine = self.machine
        names = (host.name.partition(":") for host in machine.hosts)
        grids = [self.add_switch(kind, f".{position}") for kind, _, position in names]
        for index, host in enumerate(machine.hosts):
            if host.parent is not None:
                self.wire(grids[index], grids[host.parent], host.rate)
        for first, second in sorted(machine.bridges):
            self.arc(grids[first], grids[second], LOCAL)
        for first, second in permutations(machine.cpus, 2):
            if machine.hosts[first].system == machine.hosts[second].system:
                self.arc(grids[first], grids[second], machine.hosts[first].rate)
        slots: dict[tuple[str, int], list[Rate]] = {}
        for gpu in machine.gpus:
            switch = next((wire.target for wire in gpu.wires if wire.kind == "nvswitch"), None)
            if switch is not None:
                slots.setdefault((switch, gpu.host), []).append(gpu.pci)
                continue
            self.wire(self.gpus[gpu.bus], grids[gpu.host], gpu.pci)
            if (chip_to_chip := _total(gpu, "cpu")) is not None:
                self.wire(self.gpus[gpu.bus], grids[machine.path_to_cpu(gpu.host)[-1]], chip_to_chip)
        for (name, position), rates in slots.items():
            self.wire(self.nvswitches[name], grids[position], _sum(rates))
        return grids

    def beside_a_gpu(self, nic: Nic) -> Way:
        """Return the path from `nic` to the nearest GPU of its host (if several tie, the one with the fewest NICs)."""
        hosts = self.machine.hosts
        nearest = [gpu for gpu in self.machine.gpus if hosts[gpu.host].system == hosts[nic.host].system]

        def order(gpu: Gpu) -> tuple[int, int]:
            up, down = self.machine.path_between(gpu.host, nic.host)
            return len(up) + len(down), self.nic_count[gpu.bus]

        chosen = min(nearest, key=order)
        self.nic_count[chosen.bus] += 1
        beside = [gpu for gpu in nearest if gpu.host == chosen.host]
        ways = _ways(self.machine, chosen, beside, nic)
        shared = max(ways, key=lambda way: narrowest(*(each for _, each in way)).physical)
        return self.gpus[chosen.bus], narrowest(*(each for _, each in shared)), shared

    def add_nics(self, way_of: Callable[[Nic], Way]) -> None:
        """Add NICs, their links into the box and, if NICs join the boxes, their links to the network."""
        given, joined = self.network.nic, self.are_joined_by_nics
        stated = None if given is None else rate("speed of every NIC", given, given, "file", "--nic-gbps")
        nics = self.machine.nics
        if not joined and stated is None:  # keep only NICs with a known rate
            nics = tuple(nic for nic in nics if nic.speed is not None or nic.pci.basis.source == "file")
        reached: list[_Reached] = []
        for nic in nics:
            grid = self.add_switch("nic", f".{nic.number}")
            neighbour, inside, shared = way_of(nic)
            speed = stated or nic.speed
            through = inside if speed is None else narrowest(inside, speed)
            if speed is None and joined:
                through = through.as_guess("speed of NICs, as that of their slots", "give it with --nic-gbps")
            self.wire(neighbour, grid, through)
            reached.append(_Reached(grid, through, shared))
        if not joined:
            return
        # The switch that each NIC leads to is named by the NIC's index in its host, or by its rail in the dump.
        if self.network.rails:
            systems = [self.machine.hosts[nic.host].system for nic in nics]
            names = [str(systems[:index].count(system)) for index, system in enumerate(systems)]
        else:
            names = [nic.rail or "" for nic in nics] if all(nic.rail for nic in nics) else ["0"] * len(nics)
        nets = {name: self.fabric.add_switches([f"net:{name}"], (1,)) for name in dict.fromkeys(names)}
        ends: list[tuple[NodeGrid, Rate | None]] = [(nic.grid, None) for nic in reached]
        end_of = list(range(len(reached)))
        for number, (members, limit) in enumerate(_narrow_links(reached)):
            uplink = self.add_switch("uplink", f".{number}")
            for end in dict.fromkeys(end_of[member] for member in members):
                grid, narrow = ends[end]
                behind = (reached[member].through for member in members if end_of[member] == end)
                self.wire(grid, uplink, narrow or _sum(behind))
            for member in members:
                end_of[member] = len(ends)
            ends.append((uplink, limit))
        for end, (grid, narrow) in enumerate(ends):
            leads_to: dict[str, list[Rate]] = {}
            for member, name in enumerate(names):
                if end_of[member] == end:
                    leads_to.setdefault(name, []).append(reached[member].through)
            outer = grid
            if narrow is not None and len(leads_to) > 1:
                outer = self.add_switch("uplink", f".{end}.rails")
                self.wire(grid, outer, narrow)
            for name, rates in leads_to.items():
                self.wire(outer, nets[name], narrow if narrow is not None and outer is grid else _sum(rates))


class _Reached(NamedTuple):
    """The NICs with the same number, one in each box, and the path to them from a GPU or a switch of the host.

    through: rate of this path, limited by the NIC's speed if it is known
    shared:  name and rate of each link on this path
    """

    grid: NodeGrid
    through: Rate
    shared: list[tuple[str, Rate]]


def _ways(machine: Machine, gpu: Gpu, beside: Sequence[Gpu], nic: Nic) -> Iterable[list[tuple[str, Rate]]]:
    """Yield the paths from a GPU to a NIC, each as the (name, rate) of its links.

    If the GPU has chip-to-chip links, the first path leads through these and the GPU's CPU. The last path uses the PCI
    slots of all GPUs in `beside`, which share a host switch, because a NIC may be faster than one slot.
    """
    own = (f"slot {nic.device}", nic.pci)
    chip_to_chip = _total(gpu, "cpu")
    if chip_to_chip is not None:
        up, down = machine.path_between(machine.path_to_cpu(gpu.host)[-1], nic.host)
        crossed = ((f"host {host}", machine.hosts[host].rate) for host in (*up, *down))
        yield [(f"c2c {gpu.bus}", chip_to_chip), *crossed, own]
    up, down = machine.path_between(gpu.host, nic.host)
    slots = f"gpus {gpu.host}", _sum(other.pci for other in beside)
    yield [slots, *((f"host {host}", machine.hosts[host].rate) for host in (*up, *down)), own]


def _narrow_links(nics: Sequence[_Reached]) -> list[tuple[list[int], Rate]]:
    """Return (NICs, rate) of the links with less bandwidth than the NICs behind them, in ascending order of NIC count.

    If the sets of NICs behind two links overlap and neither contains the other, only the earlier link is returned. The
    network then has more bandwidth than the machine, so its optimum is still an upper bound.
    """
    behind: dict[str, tuple[list[int], Rate]] = {}
    for index, nic in enumerate(nics):
        for name, each in nic.shared:
            behind.setdefault(name, ([], each))[0].append(index)
    narrow: dict[frozenset[int], Rate] = {}
    for members, each in behind.values():
        total = _sum(nics[index].through for index in members)
        if len(members) > 1 and (each.physical < total.physical or each.expected < total.expected):
            key = frozenset(members)
            narrow[key] = narrowest(each, narrow[key]) if key in narrow else each
    kept: list[frozenset[int]] = []
    for key in sorted(narrow, key=len):
        if all(not key & other or other <= key for other in kept):
            kept.append(key)
    return [(sorted(key), narrow[key]) for key in kept]


def _sum(rates: Iterable[Rate]) -> Rate:
    parts = list(rates)
    guess = next((part for part in parts if part.basis.source == "guess"), parts[0])
    return guess._replace(
        physical=sum((part.physical for part in parts), Fraction(0)),
        expected=sum((part.expected for part in parts), Fraction(0)),
    )


def _total(gpu: Gpu, kind: str, target: str = "") -> Rate | None:
    """Return the total rate of a GPU's wires to one target, or None if there are none."""
    wires = [wire.rate for wire in gpu.wires if (wire.kind, wire.target) == (kind, target)]
    return _sum(wires) if wires else None


FABRIC_FACT = "switches between boxes"
