"""Which ranks are in one box: machines whose GPUs see each other's memory, joined by a network."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import connected_labels
from chorale.synth.topology.topology import Topology

NETWORK_KINDS = frozenset({"nic", "ib", "rail", "net", "spine", "edge", "agg", "core", "router"})
"""What switches between boxes, and the NICs that lead there, are called before a colon."""


def boxes_of(topology: Topology, ranks_per_box: int | None = None) -> tuple[int, ...]:
    """Return the number of the box of each rank, counted from 0 in the order of ranks.

    `ranks_per_box` says it; else ranks are in one box that are joined without switches whose names are those of a
    network (`NETWORK_KINDS`). Where no switch has such a name, the largest step between the bandwidths of links tells,
    if without the slower ones the network falls into parts of two ranks and more. O(links * number of bandwidths).
    """
    ranks = topology.compute_count
    if ranks_per_box is not None:
        if ranks_per_box < 1 or ranks % ranks_per_box:
            rule = f"boxes must share out the {ranks} ranks"
            raise InvalidInput(rule, f"{ranks_per_box} ranks in each", "use a divisor")
        return tuple(rank // ranks_per_box for rank in range(ranks))
    named = np.array([node.partition(":")[0] in NETWORK_KINDS for node in topology.node_ids])
    named[:ranks] = False
    links = topology.links
    if named.any():
        return _parts(topology, ~(named[links.src] | named[links.dst]))
    return _by_bandwidth(topology)


def _by_bandwidth(topology: Topology) -> tuple[int, ...]:
    links = topology.links
    falling = sorted({links.bandwidths[number] for number in np.unique(links.bandwidth_class).tolist()}, reverse=True)
    steps = sorted(pairwise(falling), key=lambda pair: pair[0] / pair[1], reverse=True)
    if steps:
        least: Fraction = steps[0][0]
        fast = np.array([bandwidth >= least for bandwidth in links.bandwidths])
        parts = _parts(topology, fast[links.bandwidth_class])
        if min(parts.count(number) for number in set(parts)) > 1:
            return parts
    return (0,) * topology.compute_count


def _parts(topology: Topology, kept: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the number of the part of each rank in the network of the links that are kept."""
    links, ranks = topology.links, topology.compute_count
    labels = connected_labels(topology.node_count, links.src[kept], links.dst[kept])
    return tuple(labels[:ranks].tolist())
