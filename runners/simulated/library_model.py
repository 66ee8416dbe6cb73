"""Computes the times of a library's own algorithms from its published model, as a baseline for comparisons.

For NCCL and RCCL, latencies and rates come from `ncclTopoTuneModel` in src/graph/tuning.cc (NCCL 2.28.3, RCCL 2.27),
and channels from `chorale.runners.simulated.library_graph`. RCCL's corrections for sizes are omitted, because they
affect which algorithm RCCL chooses, but not its time. MPICH and Open MPI publish which algorithms they use, but no
latencies. Their times come from the congestion model, with the links' latencies or typical ones. No time is below the
proven bound.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from chorale.runners.simulated.library_graph import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    LibraryFabric,
    LibraryGraph,
    LibraryName,
    has_gpus,
    library_fabric,
)
from chorale.synth.bounds.lower_bound import bound_of_ranks, in_network_bound
from chorale.synth.build.build import verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel, congestion_of
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule

VERSIONS = {"NCCL": "2.28.3", "RCCL": "2.27", "MPICH": "4.3", "Open MPI": "5.0"}
"""Library versions whose source code the models follow."""
PROTOCOLS = ("ll", "ll128", "simple")
IN_SWITCH = ("nvls", "nvls_tree")
"""Algorithms in which switches reduce data. Their rates are limited by the bound for networks with such switches."""

_TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
"""Fraction of its rate that a tree reaches: a row for each protocol, a column for each power-of-two size from 64 B."""


@dataclass(frozen=True, slots=True)
class LibraryAlgorithm:
    """An algorithm of a library.

    name:        name in the library's tuner
    protocol:    protocol of NCCL or RCCL; "" for MPI libraries
    channels:    number of parallel rings or trees; 1 for MPI libraries
    latency_s:   time of a call without the time for its bytes
    bytes_per_s: maximum rate, in bytes of the vector per second
    method:      Chorale's method with the same schedule, or None
    correction:  fractions of `bytes_per_s` that are reached at 64 B, 128 B, 256 B and so on; empty if there is no loss
    plateau_bytes: vector size from which `latency_s` is multiplied by 1.4; None if it never is
    """

    library: str
    version: str
    name: str
    protocol: str
    channels: int
    latency_s: float
    bytes_per_s: float
    method: str | None = None
    correction: tuple[float, ...] = ()
    plateau_bytes: int | None = None

    def seconds(self, size_bytes: int) -> float:
        power = (size_bytes >> 6).bit_length() - 1
        share = self.correction[power] if 0 <= power < len(self.correction) else 1.0
        slow = self.plateau_bytes is not None and size_bytes >= self.plateau_bytes
        return self.latency_s * (1.4 if slow else 1.0) + size_bytes / (self.bytes_per_s * share)

    def document(self) -> dict[str, Any]:
        """Return the JSON object that describes this algorithm as a baseline."""
        return {
            "library": self.library, "version": self.version, "algorithm": self.name, "channels": self.channels,
        }  # fmt: skip


def library_algorithms(
    topology: Topology, collective: Collective = ALLREDUCE, library: LibraryName | Literal["MPI"] | None = None
) -> list[LibraryAlgorithm]:
    """Return the library's algorithms for `collective` on `topology`; [] if there is no model for this collective.

    library: None for NCCL or RCCL, together with MPI libraries unless the ranks are known to be GPUs

    If bandwidths are in units of links, only MPI libraries' algorithms are returned. Their rates are those for links
    that carry 1 byte per second.
    """
    found: list[LibraryAlgorithm] = []
    if collective.name.value not in MPI_METHODS:
        return found
    if topology.bandwidth_unit != "link" and library != "MPI":
        found += _gpu_algorithms(library_fabric(topology, library), collective)
    is_small = topology.compute_count <= MAX_MPI_RANKS
    if is_small and (library == "MPI" or (library is None and not has_gpus(topology))):
        for name, algorithm, method in MPI_METHODS[collective.name.value]:
            verified = library_schedule(topology, collective, method)
            if verified is not None:
                rate = float(unit_bytes_per_s(topology) / verified.cost.time_per_byte)
                latency_s = 0.0
                if topology.bandwidth_unit != "link":  # time of an empty vector; the usual latencies if all are 0
                    model, streams = NetworkModel.usual(topology), traffic_of(verified.schedule).streams()
                    latency_s = float(sum((congestion_of(stream).seconds(model, 0) for stream in streams), Fraction(0)))
                found.append(LibraryAlgorithm(name, VERSIONS[name], algorithm, "", 1, latency_s, rate, method))
    # Rates are limited by the proven bound, because models may assume rates that the network does not have.
    proven = partial(_proven_rate, topology, collective)
    return [replace(each, bytes_per_s=min(each.bytes_per_s, proven(each.name in IN_SWITCH))) for each in found]


def library_choice(algorithms: Sequence[LibraryAlgorithm], size_bytes: int) -> LibraryAlgorithm:
    """Return the algorithm that the library's tuner would choose: the fastest one. `algorithms` must not be empty."""
    return min(algorithms, key=lambda each: each.seconds(size_bytes))


def library_best(algorithms: Sequence[LibraryAlgorithm]) -> LibraryAlgorithm:
    """Return the algorithm with the highest rate. `algorithms` must not be empty."""
    return max(algorithms, key=lambda each: each.bytes_per_s)


def fastest_of_each(algorithms: Sequence[LibraryAlgorithm]) -> list[LibraryAlgorithm]:
    """Return each algorithm once, with the protocol that is fastest for large sizes. The fastest algorithm is first."""
    found: dict[tuple[str, str], LibraryAlgorithm] = {}
    for each in sorted(algorithms, key=lambda each: -each.bytes_per_s):
        found.setdefault((each.library, each.name), each)
    return list(found.values())


def baseline_label(baseline: Mapping[str, Any]) -> str:
    """Return text for users with the library, version and algorithm in a result of `LibraryAlgorithm.document()`."""
    how = f", {baseline['channels']} channels" if baseline["channels"] > 1 else ""
    return f"{baseline['library']} {baseline['version']} ({baseline['algorithm']}{how})"


class _Latencies(NamedTuple):
    """Latencies in microseconds. `base` has those of a call; `nvlink`, `pci` and `net` those of a step over NVLink,
    PCIe or the network. Each field maps tree and ring to the latencies with the protocols LL, LL128 and Simple.
    """

    base: Mapping[str, tuple[float, float, float]]
    nvlink: Mapping[str, tuple[float, float, float]]
    pci: Mapping[str, tuple[float, float, float]]
    net: Mapping[str, tuple[float, float, float]]


_NCCL = _Latencies(
    {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)},
    {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
)
_RCCL = _Latencies(
    {"tree": (12.0, 12.0, 17.0), "ring": (12.0, 12.0, 17.0)},
    {"tree": (0.9, 0.9, 2.3), "ring": (0.8, 0.8, 2.1)},
    {"tree": (2.2, 2.2, 5.7), "ring": (2.2, 2.2, 5.7)},
    {"tree": (10.5, 10.5, 22.4), "ring": (9.5, 9.5, 19.8)},
)
"""Steps inside boxes have MI300's latencies (tuning model 5), steps between boxes MI200's (model 3), because RCCL's
model for MI300 exaggerates the latency of rings between boxes to make its tuner choose LL."""
_NVLS_US, _NVLS_TREE_NET_US = 25.0, 14.0
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
_GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
_LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128_MOST = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (73.4,) * 3)
_TREE_LL128_MOST = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_NVLS_TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 43.1))
"""The tables whose names end in _MOST contain maximum rates in GB/s: a row for each of `_GENERATIONS`, and columns for
one, two and more boxes. `_LL_MOST` has totals over all channels; the other tables have rates per channel."""


def _gpu_algorithms(fabric: LibraryFabric, collective: Collective) -> Iterator[LibraryAlgorithm]:
    name, rings = collective.name, fabric.ring_graph()
    yield from _rings(fabric, name, rings)
    trees = fabric.tree_graph(rings)
    if name == CollectiveName.ALLREDUCE:
        yield from _trees(fabric, trees)
    spreads = name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER)
    if fabric.generation.library == "NCCL" and (name == CollectiveName.ALLREDUCE or (spreads and fabric.boxes == 1)):
        yield from _nvls(fabric, name)
    if spreads and fabric.generation.library == "NCCL" and fabric.boxes == fabric.ranks > 1:
        rate = 0.75 * trees.channels * (trees.intra if fabric.boxes <= 2 else trees.inter)
        latency_us = 8.0 + (fabric.boxes.bit_length() - 1) * 14.0 / 3.5 + 2.8 * fabric.ranks
        yield _algorithm(fabric, "pat", "simple", 2 * trees.channels, latency_us, rate)


def _algorithm(
    fabric: LibraryFabric, name: str, protocol: str, channels: int, latency_us: float, gbytes_per_s: float
) -> LibraryAlgorithm:
    library = fabric.generation.library
    return LibraryAlgorithm(
        library, VERSIONS[library], name, protocol, min(64, channels), latency_us / 1e6, gbytes_per_s * 1e9
    )


def _rings(fabric: LibraryFabric, name: CollectiveName, graph: LibraryGraph) -> Iterator[LibraryAlgorithm]:
    """Yield the ring algorithm with each protocol. Broadcast and reduce are pipelined along the ring, so their latency
    is that of one step."""
    ranks, boxes, is_rccl = fabric.ranks, fabric.boxes, fabric.generation.library == "RCCL"
    costs = _RCCL if is_rccl else _NCCL
    spreads = name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER)
    steps = 2 * (ranks - 1) if name == CollectiveName.ALLREDUCE else ranks - 1 if spreads else ranks
    crossing = 0 if boxes == 1 else 2 * (boxes - 1) if name == CollectiveName.ALLREDUCE else boxes - 1
    inside = costs.nvlink if fabric.wired else costs.pci
    for number, protocol in enumerate(PROTOCOLS):
        if protocol == "ll128" and (is_rccl or not fabric.wired):
            continue
        rate = graph.channels * (graph.intra if boxes <= 2 else graph.inter)
        if is_rccl:
            rate *= (0.08, 0.08, 1.0)[number]
        elif protocol == "ll":
            rate = min(_most(_LL_MOST, fabric, of_hosts=True), rate / 2)
        elif protocol == "ll128":
            rate = min(0.92 * rate, graph.channels * _most(_RING_LL128_MOST, fabric))
        between = costs.net["tree" if fabric.box_ranks == 1 else "ring"][number]
        overhead = 0.0 if boxes == 1 else 3.0 if protocol == "simple" else 1.0
        step = max(inside["ring"][number], overhead)
        if name in (CollectiveName.BROADCAST, CollectiveName.REDUCE):
            latency = (inside if boxes == 1 else costs.net)["ring"][number]
        else:
            latency = (steps - crossing) * step + crossing * between
        latency += costs.base["ring"][number]
        found = _algorithm(fabric, "ring", protocol, _shown(fabric, graph), latency, rate * ranks / steps)
        waits = protocol == "simple" and boxes > 1 and name == CollectiveName.ALLREDUCE and not is_rccl
        yield replace(found, plateau_bytes=64 * 2 * graph.channels * ranks if waits else None)


def _trees(fabric: LibraryFabric, graph: LibraryGraph) -> Iterator[LibraryAlgorithm]:
    """Yield the tree algorithm with each protocol: double binary trees between boxes, chains inside boxes."""
    boxes, is_rccl = fabric.boxes, fabric.generation.library == "RCCL"
    costs = _RCCL if is_rccl else _NCCL
    inside, levels = (costs.nvlink if fabric.wired else costs.pci)["tree"], boxes.bit_length() - 1
    for number, protocol in enumerate(PROTOCOLS):
        if (protocol == "ll128" and (is_rccl or not fabric.wired)) or (is_rccl and boxes == 1 and protocol == "simple"):
            continue
        rate = graph.channels * (graph.intra if boxes <= 2 else graph.inter)
        if is_rccl:
            rate *= (0.06, 0.06, 0.11 if boxes <= 2 else 0.59)[number]
        else:
            rate = min(0.92 * rate, graph.channels * _most(_TREE_MOST, fabric))
            if protocol == "ll":
                rate = min(rate / 3.8, _most(_LL_MOST, fabric, of_hosts=True))
            elif protocol == "ll128":
                share = 7 / 9 if boxes == 1 else 120 / 128
                rate = min(rate * share, graph.channels * _most(_TREE_LL128_MOST, fabric))
        latency = costs.base["tree"][number]
        latency += 2 * ((fabric.box_ranks - 1) * inside[number] + levels * costs.net["tree"][number])
        found = _algorithm(fabric, "tree", protocol, _shown(fabric, graph), latency, rate / 2)
        yield found if is_rccl else replace(found, correction=_TREE_CORRECTION[number])


def _nvls(fabric: LibraryFabric, name: CollectiveName) -> Iterator[LibraryAlgorithm]:
    """Yield NVLS for one box, NVLSTree for several. NCCL's model multiplies the rate by (channels - 1) / channels."""
    graph = fabric.nvls_graph()
    if graph is None:
        return
    ranks, boxes, size = fabric.ranks, fabric.boxes, fabric.box_ranks
    per_channel = graph.intra * _NVLS_EFFICIENCY[fabric.generation.name] * (graph.channels - 1) / graph.channels
    if name != CollectiveName.ALLREDUCE:
        rate = graph.channels * per_channel * (size - 1) / size
        yield _algorithm(fabric, "nvls", "simple", 2 * graph.channels, _NVLS_US, rate)
        return
    latency, algorithm = _NVLS_US, "nvls"
    per_channel *= 2
    if boxes > 1:
        algorithm = "nvls_tree"
        latency += 2 * (boxes.bit_length() - 1) * _NVLS_TREE_NET_US
        between = graph.inter * (2 if boxes <= 2 else 1)
        per_channel = min(per_channel, between, _most(_NVLS_TREE_MOST, fabric))
    rate = graph.channels * per_channel * ranks / (2 * (ranks - 1))
    yield _algorithm(fabric, algorithm, "simple", 2 * graph.channels, latency, rate)


def _most(table: Sequence[tuple[float, ...]], fabric: LibraryFabric, of_hosts: bool = False) -> float:
    """Return the maximum rate in GB/s from `table` for the fabric's GPUs and number of boxes.

    of_hosts: whether the hosts' CPUs limit the rate between boxes, as for the protocol LL; AMD CPUs are assumed
    """
    name = fabric.generation.name
    row = 1 if of_hosts and fabric.boxes > 1 else _GENERATIONS.index(name) if name in _GENERATIONS else 1
    return table[row][min(fabric.boxes, 3) - 1]


def _shown(fabric: LibraryFabric, graph: LibraryGraph) -> int:
    """Return how many channels the library reports: NCCL doubles channels on Ampere and newer GPUs."""
    return 2 * graph.channels if fabric.generation in (AMPERE, HOPPER, BLACKWELL) else graph.channels


MPI_METHODS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "allreduce": (
        ("MPICH", "reduce_scatter_allgather", "rabenseifner"),
        ("MPICH", "recursive_doubling", "recursive-doubling"),
        ("Open MPI", "ring", "ring"),
    ),
    "allgather": (("MPICH", "recursive_doubling", "rabenseifner"), ("MPICH", "ring", "ring")),
    "reduce_scatter": (("MPICH", "recursive_halving", "rabenseifner"), ("Open MPI", "ring", "ring")),
    "broadcast": (
        ("MPICH", "scatter_recursive_doubling_allgather", "rabenseifner"),
        ("MPICH", "binomial", "recursive-doubling"),
    ),
    "reduce": (("MPICH", "reduce_scatter_gather", "rabenseifner"), ("MPICH", "binomial", "recursive-doubling")),
}
"""Collective -> (library, the library's name of an algorithm, Chorale's method with the same schedule)."""


MAX_MPI_RANKS = 512
"""Maximum number of ranks for which the schedules of MPI libraries are generated for comparisons."""


def unit_bytes_per_s(topology: Topology) -> Fraction:
    """Return how many bytes per second a bandwidth of 1 means; 1 if bandwidths are in units of links."""
    return Fraction(1) if topology.bandwidth_unit == "link" else NetworkModel().unit_bytes_per_s(topology)


def library_schedule(topology: Topology, collective: Collective, method: str) -> VerifiedSchedule | None:
    """Return the verified schedule of an MPI library's algorithm; None if `method` does not support the network."""
    try:
        return verified_schedule(ScheduleRequest(topology, collective, method))
    except (InvalidInput, Unavailable):
        return None


@lru_cache(maxsize=16)
def _proven_rate(topology: Topology, collective: Collective, acting: bool) -> float:
    bound = in_network_bound(topology, collective) if acting else None
    bound = bound_of_ranks(topology, collective) if bound is None else bound
    return float(unit_bytes_per_s(topology) / bound.value)
