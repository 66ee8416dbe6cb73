"""Removes nodes and links from a topology, or scales the bandwidth of links.

Also lists the possible single failures of a topology. If failures are equivalent by symmetry, only one is listed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.topology import Rates, Topology, connected_labels, is_automorphism, orbits, sorted_links

Mask = NDArray[np.bool_]
FailureKind = Literal["node", "link"]
NVLINK, PLANE = "nvlink", "plane"
"""Parts of links that can fail: one NVLink of a GPU, or one of a NIC's two planes."""


@dataclass(frozen=True, slots=True)
class LostLink:
    """Names links that fail: all parallel links from `src` to `dst` and, unless `one_way` is set, from `dst` to `src`.

    src, dst: rank or node id
    """

    src: str
    dst: str
    one_way: bool


def without(topology: Topology, nodes: Iterable[str], links: Iterable[LostLink], spec: str) -> Topology:
    """Return `topology` without `nodes` (ranks or node ids) and `links`. The remaining nodes keep their order.

    If all compute nodes are named by rank, they are renamed to their new ranks; other names are kept. Switches with
    fewer than two remaining neighbours are removed too, until no such switch is left. Known symmetries are dropped.
    Raises InvalidInput if a node or link does not exist, or if fewer than two compute nodes would remain.
    """
    link_alive = np.ones(len(topology.links), dtype=bool)
    for link in links:
        link_alive &= ~_parallel_links(topology, link, "removed")
    alive = np.ones(topology.node_count, dtype=bool)
    alive[[_node(topology, node) for node in nodes]] = False
    table, ranks = topology.links, topology.compute_count
    while True:
        link_alive &= alive[table.src] & alive[table.dst]
        src, dst = table.src[link_alive].astype(np.int64), table.dst[link_alive].astype(np.int64)
        pairs = np.unique(np.concatenate([src * topology.node_count + dst, dst * topology.node_count + src]))
        node, neighbour = np.divmod(pairs, topology.node_count)
        useless = alive & (np.bincount(node[node != neighbour], minlength=topology.node_count) < 2)
        useless[:ranks] = False
        if not useless.any():
            break
        alive[useless] = False
    compute_count = int(np.count_nonzero(alive[:ranks]))
    if compute_count < 2:
        raise InvalidInput("{} leaves fewer than two compute nodes", spec, "remove fewer nodes")
    ids = tuple(topology.node_ids[node] for node in np.flatnonzero(alive))
    if topology.node_ids[:ranks] == tuple(map(str, range(ranks))):
        ids = (*map(str, range(compute_count)), *ids[compute_count:])
    new_index = np.cumsum(alive, dtype=np.int32) - np.int32(1)
    rates = Rates(
        table.bandwidth_class[link_alive], table.bandwidths, table.latency_class[link_alive], table.latencies_s
    )
    return replace(
        topology,
        spec=spec,
        node_ids=ids,
        compute_count=compute_count,
        links=sorted_links(new_index[src], new_index[dst], rates),
        automorphisms=(),
        abilities={int(new_index[node]): able for node, able in topology.abilities.items() if alive[node]},
    )


def _node(topology: Topology, name: str) -> int:
    """Return the node with rank or id `name`. Raises InvalidInput if two nodes match, one by rank and one by id."""
    rank = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else topology.compute_count
    found = {rank} if rank < topology.compute_count else set()
    found |= {topology.node_ids.index(name)} if name in topology.node_ids else set()
    if not found:
        way_out = "`chorale topology show` lists the ids and ranks"
        raise InvalidInput(f"{topology.spec} has no node {{}}", name, way_out)
    if len(found) > 1:
        way_out = "give the nodes of the file names that are not numbers"
        raise InvalidInput("'{}' is the rank of one node and the id of another", name, way_out)
    return found.pop()


def _parallel_links(topology: Topology, link: LostLink, purpose: str) -> Mask:
    """Return bool[links]: True for the links that `link` names. Raises InvalidInput if there are none.

    purpose: word for the error message, for example "removed"
    """
    links, src, dst = topology.links, _node(topology, link.src), _node(topology, link.dst)
    mask: Mask = (links.src == src) & (links.dst == dst)
    if not link.one_way:
        mask |= (links.src == dst) & (links.dst == src)
    if not mask.any():
        name = f"{link.src}{'>' if link.one_way else '-'}{link.dst}"
        raise InvalidInput(
            f"the link {{}} does not exist, so it cannot be {purpose}", name, "`chorale topology show` lists the links"
        )
    return mask


def scaled(topology: Topology, chosen: Iterable[LostLink], factor: Fraction, spec: str) -> Topology:
    """Return `topology` with the bandwidth of all `chosen` links multiplied by `factor` (once, even if chosen twice).

    Known symmetries are dropped. Raises InvalidInput for a node or link that does not exist. O(links) per chosen pair.
    """
    mask: Mask = np.zeros(len(topology.links), dtype=bool)
    for pair in chosen:
        mask |= _parallel_links(topology, pair, "scaled")
    links = topology.links
    table = [*links.bandwidths, *(bandwidth * factor for bandwidth in links.bandwidths)]
    classes = links.bandwidth_class + mask * np.int32(len(links.bandwidths))
    rates = Rates(classes, table, links.latency_class, links.latencies_s)
    return replace(topology, spec=spec, links=sorted_links(links.src, links.dst, rates), automorphisms=())


@dataclass(frozen=True, slots=True)
class Failure:
    """A single failure: the loss of a compute node, or of some or all bandwidth between two neighbouring nodes.

    names:  id of the node, or ids of both ends of the link
    copies: number of failures, including this one, that are equivalent under the topology's symmetries
    part:   lost fraction of the link, for example 1/18 for one of 18 NVLinks; None if the complete link is lost
    """

    kind: FailureKind
    names: tuple[str, ...]
    copies: int
    part: Fraction | None = None

    def __str__(self) -> str:
        part = "" if self.part is None else f";part={self.part}"
        return f"{self.kind}={'-'.join(self.names)}{part}"

    def spec(self, topology: Topology) -> str:
        return f"without({topology.spec};{self})"

    def survivor(self, topology: Topology) -> Topology:
        """Return `topology` after this failure. Raises InvalidInput if the result is too small or not connected."""
        spec = self.spec(topology)
        if self.kind == "node":
            return check_topology(without(topology, self.names, (), spec))
        src, dst = self.names
        if self.part is not None:
            return scaled(topology, (LostLink(src, dst, one_way=False),), 1 - self.part, spec)
        return check_topology(without(topology, (), (LostLink(src, dst, one_way=False),), spec))


def _part_of(topology: Topology, names: tuple[str, ...], part: str | Fraction) -> Fraction | None:
    """Convert `part` to a fraction of the link between two nodes, or to None if the link has no such part.

    If the network was read from a file that describes a machine, the rate of one NVLink is known. Otherwise, it is
    assumed to be 25 GB/s (NVLink 2 to 4), or 50 GB/s (NVLink 5) if the link to the NVSwitch has more than 18 * 25 GB/s.
    part: NVLINK, PLANE, or a fraction, which is returned unchanged
    """
    if isinstance(part, Fraction):
        return part
    kind = {NVLINK: "nvswitch", PLANE: "nic"}[part]
    stated = (Fraction(fact.value.split()[0]) for fact in topology.assumptions if fact.what.startswith("NVLink "))
    nvlink = next(stated, None) if part == NVLINK else None
    direct = nvlink is not None and set(names) <= set(topology.node_ids[: topology.compute_count])
    if not direct and not any(name.partition(":")[0] == kind for name in names):
        return None
    if part == PLANE:
        return Fraction(1, 2)
    index = {name: node for node, name in enumerate(topology.node_ids)}
    links = topology.links
    joined = (links.src == index[names[0]]) & (links.dst == index[names[1]])
    bandwidth = sum((links.bandwidths[kind] for kind in links.bandwidth_class[joined].tolist()), Fraction(0))
    each = nvlink or Fraction(25 if bandwidth <= 18 * 25 else 50)
    return each / bandwidth if bandwidth > each else None


def single_failures(topology: Topology, parts: Iterable[str | Fraction] = ()) -> Iterator[Failure]:
    """Yield the failures of all compute nodes, then of all links, then the loss of each of `parts` from each link.

    Links without a part are skipped. If failures are equivalent under the known symmetries, only the first of them is
    yielded. Each symmetry is checked before it is used. O(symmetries * links).
    """
    symmetries = [symmetry for symmetry in topology.automorphisms if is_automorphism(topology, symmetry)]
    orbit = orbits(topology.node_count, symmetries)[: topology.compute_count]
    for node, copies in zip(*_firsts(orbit), strict=True):
        yield Failure("node", (topology.node_ids[node],), int(copies))
    src, dst = topology.links.src.astype(np.int64), topology.links.dst.astype(np.int64)
    keys = np.minimum(src, dst) * topology.node_count + np.maximum(src, dst)
    low, high = np.divmod(np.unique(keys[src != dst]), topology.node_count)
    # Pairs of linked nodes, in ascending order, and the pairs to which the symmetries map them
    pairs, here, there = low * topology.node_count + high, [np.arange(len(low))], [np.arange(len(low))]
    for symmetry in symmetries:
        moved = symmetry[low].astype(np.int64), symmetry[high].astype(np.int64)
        here.append(here[0])
        there.append(np.searchsorted(pairs, np.minimum(*moved) * topology.node_count + np.maximum(*moved)))
    pair_orbit = connected_labels(len(pairs), np.concatenate(here), np.concatenate(there))
    links: list[tuple[tuple[str, ...], int]] = []
    for pair, copies in zip(*_firsts(pair_orbit), strict=True):
        links.append(((topology.node_ids[low[pair]], topology.node_ids[high[pair]]), int(copies)))
    yield from (Failure("link", names, copies) for names, copies in links)
    for wanted in parts:
        for names, copies in links:
            if (part := _part_of(topology, names, wanted)) is not None:
                yield Failure("link", names, copies, part)


def _firsts(orbit: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (first member, number of members) of each orbit, sorted by first member."""
    _, first, counts = np.unique(orbit, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order], counts[order]
