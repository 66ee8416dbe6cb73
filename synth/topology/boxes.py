"""Which ranks share a box, that is a machine whose GPUs see each other's memory."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import connected_labels
from chorale.synth.topology.topology import Topology

NETWORK_KINDS = frozenset({"nic", "ib", "rail", "net", "spine", "edge", "agg", "core", "router"})
"""Ids of NICs and of switches between boxes begin with one of these and a colon."""


def boxes_of(topology: Topology, ranks_per_box: int | None = None) -> tuple[int, ...]:
    """Return the number of the box of each rank, counted from 0 in the order of ranks.

    Without `ranks_per_box`, ranks share a box if they are joined without switches named as parts of a network
    (`NETWORK_KINDS`). If no switch has such a name, links slower than the largest step between bandwidths are taken for
    the network, provided that the remaining parts have at least two ranks. O(links * number of bandwidths).
    """
    ranks = topology.compute_count
    if ranks_per_box is not None:
        if ranks_per_box < 1 or ranks % ranks_per_box:
            rule = f"{{}} do not divide the {ranks} ranks"
            raise InvalidInput(rule, f"boxes of {ranks_per_box}", "use a divisor")
        return tuple(rank // ranks_per_box for rank in range(ranks))
    named = np.array([node.partition(":")[0] in NETWORK_KINDS for node in topology.node_ids])
    named[:ranks] = False
    links = topology.links
    if named.any():
        return _parts(topology, ~(named[links.src] | named[links.dst]))
    falling = sorted({links.bandwidths[number] for number in np.unique(links.bandwidth_class).tolist()}, reverse=True)
    steps = sorted(pairwise(falling), key=lambda pair: pair[0] / pair[1], reverse=True)
    if steps:
        least: Fraction = steps[0][0]
        fast = np.array([bandwidth >= least for bandwidth in links.bandwidths])
        parts = _parts(topology, fast[links.bandwidth_class])
        if min(parts.count(number) for number in set(parts)) > 1:
            return parts
    return (0,) * ranks


def _parts(topology: Topology, kept: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the connected part of each rank in the network of `kept` links."""
    links, ranks = topology.links, topology.compute_count
    labels = connected_labels(topology.node_count, links.src[kept], links.dst[kept])
    return tuple(labels[:ranks].tolist())
