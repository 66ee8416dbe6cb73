"""A fabric with failures: a topology without some of its nodes and links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LostLink:
    """All parallel links from `src` to `dst`, and back unless `one_way`; both are ranks or node ids."""

    src: str
    dst: str
    one_way: bool


def without(topology: Topology, nodes: Iterable[str], links: Iterable[LostLink], spec: str) -> Topology:
    """Return `topology` without `nodes` (ranks or node ids) and `links`; survivors keep their order.

    Compute nodes that were named by their rank are named by their new rank; other names stay. Switches left with
    fewer than two neighbours go too, repeatedly. Known symmetries are dropped. Raises InvalidInput for a node or
    link that does not exist and when fewer than two compute nodes would survive.
    """
    names = NodeNames(topology)
    link_alive = np.ones(len(topology.links), dtype=bool)
    for link in links:
        link_alive &= ~parallel_links(topology.links, names, link, "removed")
    node_alive = np.ones(topology.node_count, dtype=bool)
    node_alive[[names.of(node) for node in nodes]] = False
    _drop_useless_switches(topology, node_alive, link_alive)
    if np.count_nonzero(node_alive[: topology.compute_count]) < 2:
        raise InvalidInput("at least two compute nodes must survive", spec, "remove fewer nodes")
    return _survivors(topology, node_alive, link_alive, spec)


class NodeNames:
    """Finds nodes by rank or id."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.by_id = {name: node for node, name in enumerate(topology.node_ids)}

    def of(self, name: str) -> int:
        """Return the node called `name`. A number that is one node's rank and another node's id is refused."""
        rank = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
        by_rank = rank if 0 <= rank < self.topology.compute_count else None
        by_id = self.by_id.get(name)
        if by_rank is None and by_id is None:
            way_out = "`chorale topology show` lists the ids and ranks"
            raise InvalidInput(f"a node of {self.topology.spec} must be named by rank or id", name, way_out)
        if by_rank is not None and by_id is not None and by_rank != by_id:
            way_out = "give the nodes of the file names that are not numbers"
            raise InvalidInput("a number must not be the rank of one node and the id of another", name, way_out)
        return by_rank if by_rank is not None else by_id if by_id is not None else -1


def parallel_links(links: Links, names: NodeNames, link: LostLink, purpose: str) -> Mask:
    """Return which of `links` are meant by `link`; `purpose` says in the error what was to be done with them."""
    src, dst = names.of(link.src), names.of(link.dst)
    mask: Mask = (links.src == src) & (links.dst == dst)
    if not link.one_way:
        mask |= (links.src == dst) & (links.dst == src)
    if not mask.any():
        name = f"{link.src}{'>' if link.one_way else '-'}{link.dst}"
        raise InvalidInput(f"a link to be {purpose} must exist", name, "`chorale topology show` lists the links")
    return mask


def _drop_useless_switches(topology: Topology, node_alive: Mask, link_alive: Mask) -> None:
    links = topology.links
    while True:
        link_alive &= node_alive[links.src] & node_alive[links.dst]
        useless = _neighbour_counts(topology, link_alive) < 2
        useless[: topology.compute_count] = False
        useless &= node_alive
        if not useless.any():
            return
        node_alive[useless] = False


def _neighbour_counts(topology: Topology, link_alive: Mask) -> NDArray[np.int64]:
    """Return the number of distinct other nodes that each node is linked with, in either direction."""
    src = topology.links.src[link_alive].astype(np.int64)
    dst = topology.links.dst[link_alive].astype(np.int64)
    keys = np.concatenate([src * topology.node_count + dst, dst * topology.node_count + src])
    node, neighbour = np.divmod(np.unique(keys), topology.node_count)
    return np.bincount(node[node != neighbour], minlength=topology.node_count)


def _survivors(topology: Topology, node_alive: Mask, link_alive: Mask, spec: str) -> Topology:
    links = topology.links
    new_index = np.cumsum(node_alive, dtype=np.int32) - np.int32(1)
    compute_count = int(np.count_nonzero(node_alive[: topology.compute_count]))
    bandwidths, bandwidth_class = _reencode(links.bandwidths, links.bandwidth_class[link_alive])
    latencies_s, latency_class = _reencode(links.latencies_s, links.latency_class[link_alive])
    return Topology(
        spec=spec,
        node_ids=_renumbered_ids(topology, node_alive, compute_count),
        compute_count=compute_count,
        links=Links(
            src=new_index[links.src[link_alive]],
            dst=new_index[links.dst[link_alive]],
            bandwidth_class=bandwidth_class,
            bandwidths=bandwidths,
            latency_class=latency_class,
            latencies_s=latencies_s,
        ),
        bandwidth_unit=topology.bandwidth_unit,
    )


def _renumbered_ids(topology: Topology, node_alive: Mask, compute_count: int) -> tuple[str, ...]:
    compute_ids = topology.node_ids[: topology.compute_count]
    survivors = tuple(topology.node_ids[node] for node in np.flatnonzero(node_alive))
    if compute_ids == tuple(map(str, range(topology.compute_count))):
        return (*map(str, range(compute_count)), *survivors[compute_count:])
    return survivors


def _reencode(
    table: tuple[Fraction, ...], classes: NDArray[np.int32]
) -> tuple[tuple[Fraction, ...], NDArray[np.int32]]:
    """Return `table` without entries that no link uses any more, and the classes that go with it."""
    used, renumbered = np.unique(classes, return_inverse=True)
    return tuple(table[index] for index in used), renumbered.astype(np.int32)
