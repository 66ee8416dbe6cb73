"""Models networks as NCCL and RCCL do, and finds the channels that their graph search would find.

A channel is a ring or a tree with the same rate on every link. The search tries a list of rates and takes the one at
which all channels together carry the most (NCCL 2.28.3, src/graph/search.cc). For boxes with an NVSwitch, this module
counts how many channels fit. For boxes with direct links, it uses an upper bound for rings (the narrowest cut). So the
modelled library may be faster than the real one, but never slower.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.boxes import NETWORK_KINDS, boxes_of
from chorale.synth.topology.failures import without
from chorale.synth.topology.topology import Topology, connected_labels

LibraryName = Literal["NCCL", "RCCL"]


@dataclass(frozen=True, slots=True)
class Generation:
    """A GPU generation. A link's rate in GB/s is `physical` in reality, but `modelled` as the library assumes it."""

    name: str
    library: LibraryName
    physical: float
    modelled: float


VOLTA = Generation("volta", "NCCL", 25.0, 20.0)
AMPERE = Generation("ampere", "NCCL", 25.0, 20.0)
HOPPER = Generation("hopper", "NCCL", 25.0, 20.6)
BLACKWELL = Generation("blackwell", "NCCL", 50.0, 40.1)
MI200 = Generation("mi200", "RCCL", 50.0, 36.0)
MI300 = Generation("mi300", "RCCL", 64.0, 48.0)
MI350 = Generation("mi350", "RCCL", 76.8, 48.0)
"""The rates of all generations are from src/graph/topo.h of NCCL 2.28.3 and RCCL 2.27."""

_PCI = {15.75: 12.0, 31.5: 24.0, 63.0: 48.0}
"""Physical rate of a PCIe slot with 16 lanes -> rate that NCCL assumes, in GB/s."""

_FAMILIES = {
    "a100": AMPERE, "h100": HOPPER, "h200": HOPPER, "railclos": HOPPER, "b200": BLACKWELL, "nvl72": BLACKWELL,
    "mi250half": MI200, "mi250": MI200, "mi300x": MI300, "mi355x": MI350,
}  # fmt: skip
_FAMILY = re.compile(rf"\b({'|'.join(_FAMILIES)}):")
_BY_RATE = ((700.0, BLACKWELL), (320.0, HOPPER), (190.0, AMPERE), (0.0, VOLTA))
"""(minimum total rate in GB/s of a GPU's NVLinks to an NVSwitch, GPU generation that has at least this rate)."""

_SPEEDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ampere": (
        (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
        (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    ),
    "hopper": (
        (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
        (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    ),
    "blackwell": (
        (90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18),
        (96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    ),
}
"""GPU generation -> rates in GB/s that the search tries: (within one box, over several boxes). Older GPUs use Ampere's
rates."""

_UNLIMITED = 1e6
_MOST_CHANNELS = 32
_WORTH_TRYING = 0.49


@dataclass(frozen=True, slots=True)
class LibraryGraph:
    """The channels (rings or trees) that the search found. All have the same rates.

    intra, inter: a channel's rate in GB/s, inside a box and between boxes
    """

    channels: int
    intra: float
    inter: float

    @property
    def total(self) -> float:
        """Return the total rate of all channels inside a box in GB/s."""
        return self.channels * self.intra


@dataclass(frozen=True, slots=True)
class LibraryFabric:
    """A network as the library models it. Rates are those that the library assumes, in GB/s.

    links:    total rate of a GPU's links inside its box, or the narrowest cut's rate if GPUs are connected directly
    switched: whether an NVSwitch connects a box's GPUs
    adds:     whether that switch can reduce and multicast data
    wired:    whether GPUs have links besides PCIe
    nics, nic: number of links that leave a box, and rate of the slowest of them; both 0 if there is only one box
    share:    ratio of the rates that the library assumes to the network's rates
    """

    generation: Generation
    ranks: int
    boxes: int
    links: float
    switched: bool
    adds: bool
    wired: bool
    nics: int = 0
    nic: float = 0.0
    share: float = 1.0

    @property
    def box_ranks(self) -> int:
        """Return the ranks per box that the library assumes: ranks / boxes, rounded down, even for unequal boxes."""
        return max(1, self.ranks // self.boxes)

    def ring_graph(self) -> LibraryGraph:
        """Return the rings that the search finds. At each rate, it takes as many rings as links and NICs have room for.
        It then chooses the rate at which the rings have the highest total rate.
        """
        if self.generation.library == "RCCL":
            rate = self.generation.modelled if self.wired else self.links
            rings = max(1, round(self.links / rate))
            total = min(self.links, self.nics * self.nic) if self.nics else self.links
            return LibraryGraph(rings, total / rings, total / rings)
        best = LibraryGraph(0, 0.0, 0.0)
        for speed in self._speeds():
            if best.channels and speed / best.inter <= _WORTH_TRYING:
                break
            inside = int(self.links / speed + 1e-9)
            over = self.nics * int(self.nic / speed + 1e-9) if self.nics else inside
            found = min(_MOST_CHANNELS, inside, over)
            if found * speed > best.total:
                best = LibraryGraph(found, speed, speed)
        if best.channels == 0:
            return LibraryGraph(1, self.links, min(self.links, self.nic) if self.nics else self.links)
        # If channels would be too fast, the library splits each of them in two.
        newer = self.generation in (HOPPER, BLACKWELL)
        if best.intra < 25.0 or (newer and best.intra < 50.0 and best.channels > 4):
            return best
        channels = min(2 * best.channels, _MOST_CHANNELS)
        parts = -(-channels // best.channels)
        return LibraryGraph(channels, best.intra / parts, best.inter / parts)

    def nvls_graph(self) -> LibraryGraph | None:
        """Return the channels of NVLS, or None if switches or GPUs do not support it or fewer than two channels fit.

        Each channel has one GPU as its head. This GPU's links transfer the channel's data twice.
        """
        if not self.adds or self.generation not in (HOPPER, BLACKWELL) or self.box_ranks < 2:
            return None
        heads, best = min(_MOST_CHANNELS, self.box_ranks), LibraryGraph(0, 0.0, 0.0)
        for speed in self._speeds():
            if best.channels and speed / best.inter <= _WORTH_TRYING:
                break
            found = min(heads, int(self.links / speed + 1e-9) - 1)
            if self.nics:
                found = min(found, self.nics * int(self.nic / speed + 1e-9))
            elif found < heads:
                continue
            if found * speed > best.total:
                best = LibraryGraph(found, speed, speed)
        if best.channels < 2:
            return None
        if not self.nics:
            return best
        each = self.nics * self.nic / best.channels
        faster = [speed for speed in self._speeds() if best.inter < speed <= min(each, 2 * best.intra)]
        return LibraryGraph(best.channels, best.intra, max(faster, default=best.inter))

    def tree_graph(self, rings: LibraryGraph) -> LibraryGraph:
        """Return one tree per ring. Over several boxes, a tree may have a higher rate within a box than a ring, because
        the tree uses one fewer link there.
        """
        if not self.nics or self.box_ranks < 2:
            return rings
        room = self.links * self.box_ranks / (self.box_ranks - 1)
        fitting = (speed for speed in self._speeds() if speed * rings.channels <= room and speed <= 2 * rings.inter)
        return LibraryGraph(rings.channels, max(fitting, default=rings.intra), rings.inter)

    def _speeds(self) -> Sequence[float]:
        inside, over = _SPEEDS.get(self.generation.name, _SPEEDS["ampere"])
        most = min(self.links, self.nic) if self.nics else self.links
        return [speed for speed in (over if self.nics else inside) if speed <= most + 1e-9]


def has_gpus(topology: Topology) -> bool:
    """Return whether ranks are known to be GPUs, from the topology's spec, machine file or switch names."""
    kinds = {name.partition(":")[0] for name in topology.node_ids[topology.compute_count :]}
    return bool(_FAMILY.search(topology.spec) or _stated_generation(topology) or kinds & {"nvswitch", "cpu"})


def library_fabric(topology: Topology, library: LibraryName | None = None) -> LibraryFabric:
    """Return `topology` as `library` models it. Raises InvalidInput if bandwidths are in units of links.

    library: None for the library of the topology's GPUs

    A network from a machine file contains the rates that the library assumes. In other networks, rates that are
    multiples of a physical link's rate are converted to the library's rates, and other rates are used unchanged.
    """
    network = topology.expected or topology
    boxes = boxes_of(topology) if topology.switch_count else (0,) * topology.compute_count
    inside = _first_box(topology, boxes)
    between = network.links
    crossing = np.flatnonzero(inside[between.src] & ~inside[between.dst])
    leaving = [float(between.bandwidths[number]) for number in between.bandwidth_class[crossing].tolist()]
    nics, nic = len(leaving), min(leaving, default=0.0)
    gbytes = float(NetworkModel().unit_bytes_per_s(topology)) / 1e9
    ranks = [rank for rank in range(topology.compute_count) if inside[rank]]
    switch = _common_switch(topology, ranks)
    members = np.isin(np.arange(topology.node_count), ranks)
    wired = switch is not None or bool(np.any(members[topology.links.src] & members[topology.links.dst]))
    width = gbytes * _width(network, ranks[0], switch)
    if switch is not None or len(ranks) < 2:
        links = width if switch is not None else gbytes * _UNLIMITED
    else:  # the allgather's cut gives an upper bound for the bandwidth of rings through all ranks of the box
        outside = [network.node_ids[node] for node in np.flatnonzero(~inside).tolist()]
        box = without(network, outside, [], network.spec) if outside else network
        links = gbytes * float(1 / lower_bound(box, ALLGATHER).value) * (len(ranks) - 1) / len(ranks)
    family = _FAMILY.search(topology.spec)
    generation = _FAMILIES[family[1]] if family else _stated_generation(topology)
    if generation is None:
        by_rate = next(each for least, each in _BY_RATE if links >= least) if switch is not None else AMPERE
        generation = MI300 if library == "RCCL" else by_rate
    if library is not None and generation.library != library:
        generation = MI300 if library == "RCCL" else HOPPER
    share = 1.0 if network is not topology else _counted(width, generation, wired)
    return LibraryFabric(
        generation=generation,
        ranks=topology.compute_count,
        boxes=1 + max(boxes),
        links=links * share,
        switched=switch is not None,
        adds=switch is not None and switch in topology.abilities,
        wired=wired,
        nics=nics,
        nic=nic * gbytes,
        share=share if network is topology else width / (gbytes * _width(topology, ranks[0], switch)),
    )


_LINKS = re.compile(r"NVLink (\d)|xGMI of (MI\d)")
_OF_LINKS = {"2": VOLTA, "3": AMPERE, "4": HOPPER, "5": BLACKWELL, "MI2": MI200, "MI3": MI300}


def _stated_generation(topology: Topology) -> Generation | None:
    """Return the GPU generation that a machine file's links imply, or None if the network is not from such a file."""
    for fact in topology.assumptions:
        if match := _LINKS.match(fact.what):
            return _OF_LINKS.get(match[1] or match[2])
    return None


def _counted(width: float, generation: Generation, wired: bool) -> float:
    """Return the ratio of the rate that the library assumes to `width`, the links' total rate in GB/s.

    If `width` is not a multiple of a physical link's rate, the ratio is 1: `width` already is the library's rate.
    """
    physical = {generation.physical: generation.modelled} if wired else _PCI
    for rate, modelled in physical.items():
        if width >= rate and (width / rate).is_integer() and (wired or width == rate):
            return modelled / rate
    return 1.0


def _first_box(topology: Topology, boxes: Sequence[int]) -> NDArray[np.bool_]:
    """Return an array that says for each node whether it is a rank of the first box or a switch inside this box."""
    links, ranks = topology.links, topology.compute_count
    if not max(boxes):
        return np.ones(topology.node_count, dtype=np.bool_)
    named = np.array([name.partition(":")[0] in NETWORK_KINDS for name in topology.node_ids])
    named[:ranks] = False
    if named.any():
        kept = ~(named[links.src] | named[links.dst])
        labels = np.array(connected_labels(topology.node_count, links.src[kept], links.dst[kept]))
        return np.asarray((labels == labels[0]) & ~named)
    box = np.array([*boxes, *[-1] * (topology.node_count - ranks)])
    beside: dict[int, set[int]] = {}
    for src, dst in zip(links.src.tolist(), links.dst.tolist(), strict=True):
        if src < ranks <= dst:
            beside.setdefault(dst, set()).add(int(box[src]))
    inside = box == 0
    inside[[node for node, of in beside.items() if of == {0}]] = True
    return np.asarray(inside)


def _common_switch(topology: Topology, ranks: Sequence[int]) -> int | None:
    """Return the switch to which most ranks of a box have a link, or None. CPUs and PCIe switches do not count."""
    links, count = topology.links, topology.compute_count
    ends: dict[int, set[int]] = {}
    for src, dst in zip(links.src.tolist(), links.dst.tolist(), strict=True):
        kind = topology.node_ids[dst].partition(":")[0]
        if src < count <= dst and kind not in NETWORK_KINDS | {"cpu", "pci", "pcie", "host"}:
            ends.setdefault(dst, set()).add(src)
    found = [node for node, of in ends.items() if ranks[0] in of and 2 * len(of & set(ranks)) > len(ranks) > 1]
    return found[0] if found else None


def _width(topology: Topology, rank: int, switch: int | None) -> float:
    """Return the bandwidth from `rank` to `switch`; if `switch` is None, to a neighbour (another rank if possible)."""
    links = topology.links
    ends = links.dst[links.src == rank]
    near = ends[ends < topology.compute_count]
    target = switch if switch is not None else int((near if len(near) else ends)[0])
    chosen = np.flatnonzero((links.src == rank) & (links.dst == target))
    return sum(float(links.bandwidths[number]) for number in links.bandwidth_class[chosen].tolist())
