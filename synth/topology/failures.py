"""The single failures of a fabric: every node or link that may be lost, one of each kind that is truly different."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from chorale.synth.topology.automorphism import is_automorphism, orbits
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.without import LostLink, without

FailureKind = Literal["node", "link"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The loss of a compute node, or of all links between two nodes.

    names:  the node, or the two ends of the link, by id
    copies: how many failures known symmetries make of this one, itself included
    """

    kind: FailureKind
    names: tuple[str, ...]
    copies: int

    def __str__(self) -> str:
        return f"{self.kind}={'-'.join(self.names)}"

    def spec(self, topology: Topology) -> str:
        """Return the spec of what is left of `topology`."""
        return f"without({topology.spec};{self})"

    def survivor(self, topology: Topology) -> Topology:
        """Return what is left of `topology`. Raises InvalidInput if it is too small or in parts."""
        spec = self.spec(topology)
        if self.kind == "node":
            return check_topology(without(topology, self.names, (), spec))
        src, dst = self.names
        return check_topology(without(topology, (), (LostLink(src, dst, one_way=False),), spec))


def single_failures(topology: Topology) -> Iterator[Failure]:
    """Yield the failures of one compute node, then those of one link, the first of each orbit of known symmetries.

    Each known symmetry is checked before it is relied on. O(symmetries * links).
    """
    symmetries = [known for known in topology.automorphisms if is_automorphism(topology, known)]
    orbit = orbits(topology.node_count, symmetries)[: topology.compute_count]
    for node, copies in zip(*_firsts(orbit), strict=True):
        yield Failure("node", (topology.node_ids[node],), int(copies))
    low, high = _joined_pairs(topology)
    for pair, copies in zip(*_firsts(_pair_orbits(low, high, symmetries, topology.node_count)), strict=True):
        yield Failure("link", (topology.node_ids[low[pair]], topology.node_ids[high[pair]]), int(copies))


def _firsts(orbit: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (first member, number of members) of each orbit."""
    _, first, counts = np.unique(orbit, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order], counts[order]


def _joined_pairs(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    src, dst = topology.links.src.astype(np.int64), topology.links.dst.astype(np.int64)
    keys = np.minimum(src, dst) * topology.node_count + np.maximum(src, dst)
    return np.divmod(np.unique(keys[src != dst]), topology.node_count)


def _pair_orbits(
    low: NDArray[np.int64], high: NDArray[np.int64], symmetries: list[NDArray[np.int32]], nodes: int
) -> NDArray[np.int32]:
    """Return a number for each pair, equal where symmetries take one to the other. The pairs are in ascending order."""
    keys = low * nodes + high
    here, there = [np.arange(len(keys))], [np.arange(len(keys))]
    for symmetry in symmetries:
        moved = symmetry[low].astype(np.int64), symmetry[high].astype(np.int64)
        here.append(np.arange(len(keys)))
        there.append(np.searchsorted(keys, np.minimum(*moved) * nodes + np.maximum(*moved)))
    edges = np.concatenate(here), np.concatenate(there)
    graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(len(keys), len(keys)))
    return np.asarray(connected_components(graph, directed=False)[1])
