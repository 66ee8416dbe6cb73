"""Where all shortest paths begin with the same link: what goes that way loads it, whatever routes are chosen."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.links import Links


def sole_links(hops: NDArray[np.integer], tails: NDArray[np.integer], heads: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return int64[targets, nodes]: the link by which every shortest path leaves the node, -1 where several links do.

    hops[i, v]: the fewest links from node v to target i, with link l from tails[l] to heads[l]; every node has one. For
    the links by which paths enter nodes, give the hops from sources, and the ends exchanged. O(targets * links).
    """
    order = np.argsort(tails, kind="stable")
    first = np.searchsorted(tails[order], np.arange(hops.shape[1]))
    is_nearer = hops[:, heads[order]] + np.int64(1) == hops[:, tails[order]]
    count = np.add.reduceat(is_nearer, first, axis=1, dtype=np.int64)
    link = np.add.reduceat(np.where(is_nearer, order, 0), first, axis=1)
    return np.where(count == 1, link, -1)


def slowest(links: Links, load: NDArray[np.integer]) -> Fraction:
    """Return how long the slowest link takes for its `load`, int[links]. O(links)."""
    times = [Fraction(0)]
    for kind, bandwidth in enumerate(links.bandwidths):
        of_kind = load[links.bandwidth_class == kind]
        times.append(Fraction(int(of_kind.max(initial=0))) / Fraction(bandwidth))
    return max(times)
