"""Networks in which some switches become compute nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.links import Rates, sorted_links
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Relabelled:
    """A network derived from another by renumbering its nodes.

    label:  int64 per node of the original network: its node in `network`
    origin: int32 per link of `network`: the original link
    roots:  number of compute nodes that may be tree roots: nodes 0 to `roots` - 1
    """

    network: Topology
    label: NDArray[np.int64]
    origin: NDArray[np.int32]
    roots: int


def promoted(topology: Topology, switches: Sequence[int]) -> Relabelled:
    """Return the network in which `switches` become compute nodes, numbered after the ranks. O(links log links)."""
    ranks = topology.compute_count
    chosen = np.array(sorted(switches), dtype=np.int64)
    others = np.setdiff1d(np.arange(ranks, topology.node_count), chosen)
    label = np.empty(topology.node_count, dtype=np.int64)
    label[np.concatenate([np.arange(ranks), chosen, others])] = np.arange(topology.node_count)
    order = np.argsort(label)
    names = tuple(topology.node_ids[node] for node in order.tolist())
    return _relabelled(topology, label, names, (ranks + len(chosen), ranks))


def process_network(topology: Topology) -> Topology:
    """Return the network in which switches that add or multicast become compute nodes, numbered after the ranks.

    The local runner emulates each of these switches with a process. O(links log links). Raises InvalidInput if no
    switch has such an ability.
    """
    if not topology.abilities:
        rule = "{} has no switches that add or multicast"
        raise InvalidInput(rule, topology.spec, "declare them with able(SPEC)")
    network = promoted(topology, sorted(topology.abilities)).network
    return replace(network, spec=f"processes({topology.spec})")


def _relabelled(
    topology: Topology, label: NDArray[np.int64], names: tuple[str, ...], counts: tuple[int, int]
) -> Relabelled:
    """Return the network in which node v becomes node `label[v]`. `counts`: (compute nodes, roots of trees)."""
    links, (compute_count, roots) = topology.links, counts
    useful = np.flatnonzero(label[links.src] != label[links.dst])
    src, dst = label[links.src[useful]], label[links.dst[useful]]
    wide, late = links.bandwidth_class[useful], links.latency_class[useful]
    order = np.lexsort((late, -wide.astype(np.int64), src, dst))
    moved_links = sorted_links(src, dst, Rates(wide, links.bandwidths, late, links.latencies_s))
    network = Topology(topology.spec, names, compute_count, moved_links, topology.bandwidth_unit)
    symmetries = []
    for symmetry in topology.automorphisms:
        pairs = np.unique(label * len(names) + label[symmetry])
        moved = (pairs % len(names)).astype(np.int32)
        if len(pairs) == len(names) and is_automorphism(network, moved):  # more pairs: the symmetry splits a group
            symmetries.append(moved)
    network = replace(network, automorphisms=tuple(symmetries))
    return Relabelled(network, label, useful[order].astype(np.int32), roots)
