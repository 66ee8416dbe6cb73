"""Finds which ranks share a box, that is, a machine in which the GPUs can access each other's memory."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology, connected_labels

NETWORK_KINDS = frozenset({"nic", "ib", "rail", "net", "spine", "edge", "agg", "core", "router"})
"""Kinds of the nodes that connect boxes: NICs and switches. The id of such a node starts with its kind and a colon."""


def boxes_of(topology: Topology, ranks_per_box: int | None = None) -> tuple[int, ...]:
    """Return the box number of each rank. Boxes are numbered from 0 in the order of their first ranks.

    With `ranks_per_box`, each box consists of that many consecutive ranks. Otherwise, two ranks share a box if a path
    joins them without passing a NIC or a switch between boxes (recognised by its id, see `NETWORK_KINDS`). If the
    network has no such nodes, but contains CPUs or PCI switches, all ranks share one box. In other networks, the
    bandwidths are sorted, and links are divided into fast and slow ones at the largest ratio of two neighbours. Slow
    links then count as the network between boxes, unless a rank would be alone in its box: in that case, all ranks
    share one box. O(links * number of bandwidths).
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
    if any(node.partition(":")[0] in ("cpu", "pci") for node in topology.node_ids[ranks:]):
        return (0,) * ranks  # one machine: its CPUs connect the GPUs that NVLink does not
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
    """Return each rank's connected component (numbered from 0) if only the `kept` links are used."""
    links, ranks = topology.links, topology.compute_count
    labels = connected_labels(topology.node_count, links.src[kept], links.dst[kept])
    return tuple(labels[:ranks].tolist())
