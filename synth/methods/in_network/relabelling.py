"""Networks in which other nodes count as compute nodes: switches promoted, boxes contracted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import distinct
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.links import Rates, sorted_links
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Relabelled:
    """`network`, made of nodes of another one, and where its links came from.

    label: int64 per node of the other network: the node here;  origin: int32 per link: the link there
    roots: how many of the compute nodes, the first, may be roots of trees
    """

    network: Topology
    label: NDArray[np.int64]
    origin: NDArray[np.int32]
    roots: int


def promoted(topology: Topology, switches: Sequence[int]) -> Relabelled:
    """Return the network in which these switches are compute nodes, after the ranks. O(links log links)."""
    ranks = topology.compute_count
    chosen = np.array(sorted(switches), dtype=np.int64)
    others = np.setdiff1d(np.arange(ranks, topology.node_count), chosen)
    label = np.empty(topology.node_count, dtype=np.int64)
    label[np.concatenate([np.arange(ranks), chosen, others])] = np.arange(topology.node_count)
    return _relabelled(topology, label, ranks + len(chosen), ranks)


def contracted(topology: Topology, groups: Sequence[Sequence[int]]) -> Relabelled:
    """Return the network in which each of these groups, which hold all ranks, is one compute node."""
    label = np.full(topology.node_count, -1, dtype=np.int64)
    for index, group in enumerate(groups):
        label[list(group)] = index
    others = np.flatnonzero(label < 0)
    label[others] = len(groups) + np.arange(len(others))
    return _relabelled(topology, label, len(groups), len(groups))


def _relabelled(topology: Topology, label: NDArray[np.int64], compute_count: int, roots: int) -> Relabelled:
    links = topology.links
    useful = np.flatnonzero(label[links.src] != label[links.dst])
    src, dst = label[links.src[useful]], label[links.dst[useful]]
    wide, late = links.bandwidth_class[useful], links.latency_class[useful]
    order = np.lexsort((late, -wide.astype(np.int64), src, dst))
    used, bandwidth = np.unique(wide, return_inverse=True)
    timed, latency = np.unique(late, return_inverse=True)
    rates = Rates(
        bandwidth,
        tuple(links.bandwidths[index] for index in used.tolist()),
        latency,
        tuple(links.latencies_s[index] for index in timed.tolist()),
    )
    nodes = int(label.max()) + 1
    network = Topology(
        spec=topology.spec,
        node_ids=tuple(map(str, range(nodes))),
        compute_count=compute_count,
        links=sorted_links(src, dst, rates),
        bandwidth_unit=topology.bandwidth_unit,
    )
    symmetries = tuple(
        moved
        for moved in (_moved(symmetry, label, nodes) for symmetry in topology.automorphisms)
        if moved is not None and is_automorphism(network, moved)
    )
    network = Topology(network.spec, network.node_ids, compute_count, network.links, network.bandwidth_unit, symmetries)
    return Relabelled(network, label, useful[order].astype(np.int32), roots)


def _moved(symmetry: NDArray[np.int32], label: NDArray[np.int64], nodes: int) -> NDArray[np.int32] | None:
    """Return what `symmetry` does to the new nodes; None where it takes a group apart."""
    pairs = distinct(label * nodes + label[symmetry])
    return (pairs % nodes).astype(np.int32) if len(pairs) == nodes else None
