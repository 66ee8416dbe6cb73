"""Defines the network: compute nodes, switches, directed links with exact bandwidth and latency, and symmetries.

Also defines the abilities of switches, and the assumptions about a machine from which a network was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id

Column = NDArray[np.integer]
BandwidthUnit = Literal["link", "GB/s", "Gbit/s"]
MAX_NODES = 2**20
MAX_LINKS = 2**27
_BYTES_PER_SECOND: Mapping[str, int] = {"GB/s": 10**9, "Gbit/s": 125 * 10**6}


class Link(NamedTuple):
    """A directed link between node indices, with bandwidth in the topology's unit and latency in seconds."""

    src: int
    dst: int
    bandwidth: Fraction = Fraction(1)
    latency_s: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Directed links as columns, sorted by (dst, src, descending bandwidth, latency). A link's index is its id.

    `src` and `dst` are int32 node indices. Bandwidth and latency are indices into tables:
    `bandwidths[bandwidth_class[link]]` is the exact bandwidth. Parallel links are separate entries. Self-loops are
    kept and count towards the degree, but nothing is ever sent over them.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bandwidth_class: NDArray[np.int32]
    bandwidths: tuple[Fraction, ...]
    latency_class: NDArray[np.int32]
    latencies_s: tuple[Fraction, ...]

    def __repr__(self) -> str:
        return f"<{len(self)} links of {len(self.bandwidths)} bandwidths>"

    @staticmethod
    def build(links: Iterable[Link]) -> Links:
        """Return `links` as columns, sorted. O(L log L)."""
        columns = list(zip(*links, strict=True)) or [(), (), (), ()]
        src, dst = (np.array(column, dtype=np.int32) for column in columns[:2])
        each = np.arange(len(src))
        return sorted_links(src, dst, Rates(each, columns[2], each, columns[3]))

    @staticmethod
    def of_unit_capacity(src: NDArray[np.integer], dst: NDArray[np.integer]) -> Links:
        """Return links of bandwidth 1 and latency 0 between the given node indices. O(L log L)."""
        zeros = np.zeros(len(src), dtype=np.int32)
        return sorted_links(src, dst, Rates(zeros, (Fraction(1),), zeros, (Fraction(0),)))

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, link: int) -> Link:
        bandwidth = self.bandwidths[self.bandwidth_class[link]]
        latency_s = self.latencies_s[self.latency_class[link]]
        return Link(int(self.src[link]), int(self.dst[link]), bandwidth, latency_s)

    def __iter__(self) -> Iterator[Link]:
        return (self[link] for link in range(len(self)))

    def incoming_offsets(self, node_count: int) -> NDArray[np.int64]:
        """Return int64[node_count + 1]: links `offsets[v]` to `offsets[v + 1] - 1` end in node v."""
        offsets = np.zeros(node_count + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.dst, minlength=node_count), out=offsets[1:])
        return offsets

    def integer_bandwidths(self) -> tuple[NDArray[np.int64], int]:
        """Return (int64 per link, scale): a link's bandwidth is its integer / scale. The scale is minimal."""
        scale = int(np.lcm.reduce([value.denominator for value in self.bandwidths] or [1]))
        table = np.array([int(value * scale) for value in self.bandwidths] or [1], dtype=np.int64)
        return table[self.bandwidth_class], scale

    def longest_time(self, loads: NDArray[np.int64]) -> Fraction:
        """Return the maximum of load / bandwidth over all links (0 without links). `loads`: int64[links]. O(L)."""
        largest = np.zeros(len(self.bandwidths), dtype=np.int64)
        np.maximum.at(largest, self.bandwidth_class, loads)
        times = (load / bandwidth for load, bandwidth in zip(largest.tolist(), self.bandwidths, strict=True))
        return max(times, default=Fraction(0))

    def parallel_index(self) -> NDArray[np.int32]:
        """Return each link's index (int32, from 0) among the parallel links with the same src and dst."""
        same = np.zeros(len(self), dtype=bool)
        same[1:] = (self.src[1:] == self.src[:-1]) & (self.dst[1:] == self.dst[:-1])
        positions = np.arange(len(self))
        first = np.maximum.accumulate(np.where(same, 0, positions))
        return (positions - first).astype(np.int32)

    def opposites(self) -> NDArray[np.int32]:
        """Return int32 per link: the link from its dst to its src with the same parallel index, -1 if there is none."""
        src, dst, index = (column.astype(np.int64) for column in (self.src, self.dst, self.parallel_index()))
        nodes, most = max(src.max(initial=0), dst.max(initial=0)) + 1, index.max(initial=0) + 1
        keys, wanted = (dst * nodes + src) * most + index, (src * nodes + dst) * most + index
        place = np.minimum(np.searchsorted(keys, wanted), len(self) - 1)
        return np.where(keys[place] == wanted, place, -1).astype(np.int32)


def link_ids(src: Column, dst: Column, bandwidth_class: Column, latency_class: Column) -> NDArray[np.int32]:
    """Return the ids that links get when sorted as in `Links`; identical parallel links keep their order. O(L log L).

    The classes are indices into ascending tables, as in `Links`.
    """
    order = np.lexsort((latency_class, -bandwidth_class.astype(np.int64), src, dst))
    ids = np.empty(len(order), dtype=np.int32)
    ids[order] = np.arange(len(order), dtype=np.int32)
    return ids


class Rates(NamedTuple):
    """Bandwidths and latencies of links: link i has bandwidth `bandwidths[bandwidth_class[i]]`.

    The tables `bandwidths` and `latencies_s` may be in any order.
    """

    bandwidth_class: Column
    bandwidths: Sequence[Fraction]
    latency_class: Column
    latencies_s: Sequence[Fraction]


def sorted_links(src: Column, dst: Column, rates: Rates) -> Links:
    """Return links sorted as in `Links`. The tables are sorted too, and restricted to the values in use. O(L log L)."""
    bandwidths, bandwidth_class = _encoded(rates.bandwidth_class, rates.bandwidths)
    latencies_s, latency_class = _encoded(rates.latency_class, rates.latencies_s)
    order = np.lexsort((latency_class, -bandwidth_class, src, dst))
    ends = src[order].astype(np.int32), dst[order].astype(np.int32)
    return Links(*ends, bandwidth_class[order], bandwidths, latency_class[order], latencies_s)


def _encoded(classes: Column, values: Sequence[Fraction]) -> tuple[tuple[Fraction, ...], NDArray[np.int32]]:
    """Return (used values in ascending order, int32 per link: the index of its value among them)."""
    used = np.flatnonzero(np.bincount(classes, minlength=len(values))).tolist()
    objects = {id(values[place]): values[place] for place in used}  # hashing is slow, so hash each object only once
    table = tuple(sorted(set(objects.values())))
    position = {value: index for index, value in enumerate(table)}
    place_of = {name: position[value] for name, value in objects.items()}
    renamed = np.zeros(len(values), dtype=np.int32)
    renamed[used] = [place_of[id(values[place])] for place in used]
    return table, renamed[classes]


@dataclass(frozen=True, slots=True)
class SwitchAbility:
    """Abilities of a switch in addition to forwarding data.

    multicast:         whether it can send identical copies to several neighbours
    reduce:            whether it can add up data from several neighbours and forward the sum
    reduce_bandwidth:  maximum output rate of sums, in the topology's bandwidth unit; None if only the links limit it
    reduce_types:      supported element types, for example float32; empty if all are supported
    reduce_operations: supported operations, for example sum; empty if all are supported
    """

    multicast: bool = False
    reduce: bool = False
    reduce_bandwidth: Fraction | None = None
    reduce_types: tuple[str, ...] = ()
    reduce_operations: tuple[str, ...] = ()

    @property
    def is_able(self) -> bool:
        return self.multicast or self.reduce


Abilities = Mapping[int, SwitchAbility]
"""Maps the node index of a switch to its abilities. A switch without an entry only forwards data."""

NVSWITCH = SwitchAbility(
    multicast=True,
    reduce=True,
    reduce_types=("float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "uint64"),
    reduce_operations=("sum", "min", "max"),
)
"""Abilities of NVSwitch 3 and later (NVLink SHARP), for the types and operations for which NCCL uses them. NCCL does
not use them for min and max of float32 and float64. Source: NVIDIA, "NVLink and NVSwitch"; NCCL 2.2x,
src/include/device.h."""


Source = Literal["file", "published", "guess"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A fact on which the network of a machine relies, such as the rate of its NVLinks.

    what, value: name of the fact, and its value as text
    source: "file" if the file or an option states it, "published" for data sheets and source code, else "guess"
    reference: the attribute, option, data sheet or source file; for guesses, what to do if the guess is wrong
    """

    what: str
    value: str
    source: Source
    reference: str


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """The assumptions behind the network of a machine that was read from a file.

    guessed:  pairs of node ids whose links have a guessed rate
    expected: the links at the rates that NCCL or RCCL expects (lower than physical rates); None if unknown
    network:  id of the topology to which `expected` belongs; a network with another id has no expected rates
    """

    assumptions: tuple[Assumption, ...]
    guessed: frozenset[tuple[str, str]] = frozenset()
    expected: Links | None = None
    network: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A directed multigraph of compute nodes and switches.

    Compute nodes are numbered in rank order, before the switches, so a compute node's index is its rank. `spec` is the
    text from which the network was built. `automorphisms` generate a group of known symmetries: each is an int32
    permutation of all nodes that preserves node kinds and maps links onto links of the same bandwidth and latency. `id`
    is the content id of nodes, links and unit, so different specs for the same network give the same id. `abilities`
    lists the switches that multicast or reduce data; all other switches only forward data. `provenance` is set for
    networks read from files that describe machines and does not affect `id`.
    """

    spec: str
    node_ids: tuple[str, ...]
    compute_count: int
    links: Links
    bandwidth_unit: BandwidthUnit = "link"
    automorphisms: tuple[NDArray[np.int32], ...] = ()
    abilities: Abilities = field(default_factory=dict)
    provenance: Provenance | None = None
    id: str = field(init=False)

    def __post_init__(self) -> None:
        links = self.links
        facts: dict[str, Any] = {
            "format": "chorale-topology/1",
            "bandwidth_unit": self.bandwidth_unit,
            "nodes": self.node_ids,
            "compute_count": self.compute_count,
            "bandwidths": links.bandwidths,
            "latencies_s": links.latencies_s,
        }
        if self.abilities:
            facts["abilities"] = [[node, *astuple(ability)] for node, ability in sorted(self.abilities.items())]
        object.__setattr__(
            self, "id", content_id(facts, (links.src, links.dst, links.bandwidth_class, links.latency_class))
        )

    def __repr__(self) -> str:
        switches = f", {self.switch_count} switches" if self.switch_count else ""
        return f"<{self.spec}: {self.compute_count} ranks{switches}, {len(self.links)} links>"

    @property
    def node_count(self) -> int:
        return len(self.node_ids)

    @property
    def switch_count(self) -> int:
        return self.node_count - self.compute_count

    @property
    def degree(self) -> int | None:
        """In- and out-degree of every compute node, counting parallel links and self-loops; None if degrees differ."""
        incoming = np.bincount(self.links.dst, minlength=self.node_count)[: self.compute_count]
        outgoing = np.bincount(self.links.src, minlength=self.node_count)[: self.compute_count]
        first = int(incoming[0])
        return first if bool(np.all(incoming == first) and np.all(outgoing == first)) else None

    @property
    def node_bandwidth(self) -> Fraction | None:
        """B: outgoing bandwidth per node, in links. None with switches, unequal degrees or bandwidths other than 1."""
        if self.switch_count or self.bandwidth_unit != "link" or self.links.bandwidths != (Fraction(1),):
            return None
        return None if self.degree is None else Fraction(self.degree)

    @property
    def is_eulerian(self) -> bool:
        """Whether every node has as much incoming as outgoing bandwidth."""
        integer, _ = self.links.integer_bandwidths()
        balance = np.zeros(self.node_count, dtype=object)
        np.add.at(balance, self.links.dst, integer.astype(object))
        np.subtract.at(balance, self.links.src, integer.astype(object))
        return not np.any(balance)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions about the machine from which the network was read; empty for other networks."""
        return () if self.provenance is None else self.provenance.assumptions

    @property
    def expected(self) -> Topology | None:
        """The same network at the rates that the machine's NCCL or RCCL expects; None if these rates are unknown."""
        known = self.provenance
        if known is None or known.expected is None or known.network != self.id:
            return None
        return replace(self, links=known.expected, automorphisms=(), provenance=None)

    def is_guessed(self, crossing: NDArray[np.bool_] | None = None) -> bool:
        """Return whether the rate of any link, or of any link marked in `crossing` (bool per link), is a guess."""
        guessed = self.provenance.guessed if self.provenance is not None else frozenset()
        if not guessed:
            return False
        ends = zip(self.links.src.tolist(), self.links.dst.tolist(), strict=True)
        found = np.array([(self.node_ids[src], self.node_ids[dst]) in guessed for src, dst in ends], dtype=bool)
        return bool((found if crossing is None else found & crossing).any())

    def node_kind(self, node: int) -> Literal["compute", "switch"]:
        return "compute" if node < self.compute_count else "switch"


def transpose(topology: Topology) -> Topology:
    """Return `topology` with every link reversed; its spec is `transpose(<spec>)`."""
    return transpose_with_links(topology)[0]


def transpose_with_links(topology: Topology) -> tuple[Topology, NDArray[np.int32]]:
    """Return (transpose, int32 per link of the transpose: the link of `topology` that it reverses).

    Parallel links keep their relative order. Symmetries remain symmetries. O(L log L).
    """
    links = topology.links
    origin = np.lexsort((links.dst, links.src)).astype(np.int32)
    turned = replace(
        links,
        src=links.dst[origin],
        dst=links.src[origin],
        bandwidth_class=links.bandwidth_class[origin],
        latency_class=links.latency_class[origin],
    )
    return replace(topology, spec=f"transpose({topology.spec})", links=turned), origin


def bytes_per_second(topology: Topology) -> int:
    """Return the rate of a link of bandwidth 1 in bytes per second.

    Raises InvalidInput if the bandwidth unit is "link": such a network only has relative rates.
    """
    unit = topology.bandwidth_unit
    if unit not in _BYTES_PER_SECOND:
        rule = "a size in bytes needs link rates in GB/s or Gbit/s, but the links of {} have none"
        way_out = "give the rate of a link with --link-gbps, or leave out the size"
        raise InvalidInput(rule, topology.spec, way_out)
    return _BYTES_PER_SECOND[unit]


def connected_labels(count: int, src: NDArray[np.integer], dst: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return, for each node, the index (int32) of its connected component. Edge i joins `src[i]` and `dst[i]`.

    Components are numbered from 0 in the order of their smallest nodes. Measured time: O((count + edges) log count),
    even on long rings.
    """
    first, before = np.arange(count), None
    while before is None or np.any(first != before):
        before = first.copy()
        np.minimum.at(first, dst, first[src])
        np.minimum.at(first, src, first[dst])
        first = first[first]
    return np.unique(first, return_inverse=True)[1].astype(np.int32)


def is_automorphism(topology: Topology, permutation: NDArray[np.integer]) -> bool:
    """Return whether `permutation` is a symmetry: it maps links one to one onto links of equal bandwidth and latency.

    Node v moves to `permutation[v]`. Nodes must keep their kind, and switches their abilities. The check is exact.
    O(L log L).
    """
    return carries(topology, topology, permutation)


def carries(source: Topology, target: Topology, new_node: NDArray[np.integer]) -> bool:
    """Return whether renaming each node v of `source` to `new_node[v]` gives the links and node kinds of `target`.

    Switches must keep their abilities. The check is exact. O(L log L).
    """
    image = np.asarray(new_node)
    nodes, ranks = target.node_count, target.compute_count
    if not have_equal_tables(source, target) or image.shape != (nodes,):
        return False
    if not np.array_equal(np.sort(image), np.arange(nodes)) or np.any(image[:ranks] >= ranks):
        return False
    if {int(image[node]): ability for node, ability in source.abilities.items()} != dict(target.abilities):
        return False
    moved = _link_keys(source.links, image.astype(np.int64))
    return bool(np.array_equal(np.sort(moved), _sorted_link_keys(target.links, nodes)))


def have_equal_tables(source: Topology, target: Topology) -> bool:
    """Return whether counts, units and rate tables are equal. Link classes then mean the same in both networks."""
    return all(
        (
            source.compute_count == target.compute_count,
            source.node_count == target.node_count,
            source.bandwidth_unit == target.bandwidth_unit,
            len(source.links) == len(target.links),
            source.links.bandwidths == target.links.bandwidths,
            source.links.latencies_s == target.links.latencies_s,
        )
    )


def link_kinds(links: Links) -> NDArray[np.int64]:
    """Return, for each link, a number (int64) that identifies its combination of bandwidth and latency."""
    return links.bandwidth_class.astype(np.int64) * len(links.latencies_s) + links.latency_class


def _link_keys(links: Links, image: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each link, a number (int64) that identifies its two renamed ends, bandwidth and latency."""
    kinds = len(links.bandwidths) * len(links.latencies_s)
    return (image[links.dst] * len(image) + image[links.src]) * kinds + link_kinds(links)


@lru_cache(maxsize=2)
def _sorted_link_keys(links: Links, nodes: int) -> NDArray[np.int64]:
    """Return the keys (see `_link_keys`) of all links, sorted. Cached, because many symmetries are checked."""
    keys = np.sort(_link_keys(links, np.arange(nodes)))
    keys.flags.writeable = False
    return keys


def orbits(node_count: int, permutations: Sequence[NDArray[np.integer]]) -> NDArray[np.int32]:
    """Return each node's orbit number (int32). An orbit contains the nodes that `permutations` map to one another."""
    src = np.tile(np.arange(node_count), len(permutations))
    dst = np.concatenate([np.arange(0), *permutations])
    return connected_labels(node_count, src, dst)


@lru_cache(maxsize=2)
def checked_orbits(topology: Topology) -> NDArray[np.int32]:
    """Return each node's orbit number (int32, read-only) under the known symmetries that `is_automorphism` confirms.

    An orbit contains the nodes that symmetries map to one another. Cached, because several methods use the orbits of
    the same topology. O(generators * L log degree).
    """
    checked = [generator for generator in topology.automorphisms if is_automorphism(topology, generator)]
    orbit = orbits(topology.node_count, checked)
    orbit.flags.writeable = False
    return orbit


def automorphisms_are_transitive(topology: Topology) -> bool:
    """Return whether known symmetries that `is_automorphism` confirms map every compute node to every other one.

    False proves nothing, because the topology may have symmetries that are not known. O(generators * L log degree).
    """
    orbit = checked_orbits(topology)[: topology.compute_count]
    return bool(topology.automorphisms) and bool(np.all(orbit == orbit[0]))
