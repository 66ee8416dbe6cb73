"""Edge-disjoint spanning trees from one hypercube node, in closed form: d trees of height d + 1 in d dimensions.

These are the edge-disjoint spanning binomial trees of Johnsson and Ho (Optimum Broadcasting and Personalized
Communication in Hypercubes, 1989). With the root at 0, tree j first has the arc to 2^j. From there, it spans all labels
that have bit j: each of them is reached by the arc that sets its first bit after j, in cyclic order. All other labels
are leaves, reached by clearing bit j. So the arc that sets bit b of p is in the tree of the last bit of p before b, and
the arc that clears bit j is in tree j. No d trees are lower: each has one arc out of the root, and the node opposite to
that arc's end is d arcs further away. Packing finds equally fast trees, but they are three times as high on ten
dimensions.
"""

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.forest.network import ForestNetwork, Trees


def hypercube_trees(network: ForestNetwork) -> Trees | None:
    """Return trees of height at most d + 1 that use the full supply of `network`, if it is a d-dimensional hypercube.

    Hypercubes are recognized by their structure, whatever the node numbers. O(d * arcs).

    Returns:
        The trees; None for other networks, if there are several roots, if the capacity of an arc is below supply / d,
        and for a supply of 1, for which a single breadth-first tree of height d is enough.
    """
    dimensions, roots = network.nodes.bit_length() - 1, np.flatnonzero(network.supply)
    if len(roots) != 1 or dimensions == 0 or len(network.src) != dimensions * network.nodes:
        return None
    supply = int(network.supply[roots[0]])
    weight = -(-supply // dimensions)
    label = _labels(network, int(roots[0]), dimensions)
    if label is None or supply == 1 or network.capacity.min() < weight:
        return None
    count = -(-supply // weight)
    weights = np.full(count, weight, dtype=np.int64)
    weights[-1] -= weight * count - supply
    parent_arc = np.empty((count, network.nodes), dtype=np.int32)
    for bit, parents in enumerate(parent_arc):
        after = bit + 1
        turned = (label >> after) | (label & ((1 << after) - 1)) << (dimensions - after)
        next_bit = (after + np.bitwise_count((turned & -turned) - 1).astype(np.int64)) % dimensions
        change = 1 << np.where(label >> bit & 1, next_bit, bit)
        enters = np.flatnonzero(label[network.src] ^ label[network.dst] == change[network.dst])
        parents[network.dst[enters]] = enters
    parent_arc[:, roots[0]] = -1
    return Trees(np.repeat(roots, count).astype(np.int32), weights, parent_arc)


def _labels(network: ForestNetwork, root: int, dimensions: int) -> NDArray[np.int64] | None:
    """Return node labels, 0 at `root`, such that every arc changes one bit, or None if the network is no hypercube.

    The root's neighbours get one bit each. In a hypercube, every other node has the bits of all its neighbours that are
    nearer to the root.
    """
    first = np.flatnonzero(network.src == root)
    label = np.full(network.nodes, -1, dtype=np.int64)
    label[root] = 0
    label[network.dst[first]] = 1 << np.arange(len(first))
    while (ahead := (label[network.src] >= 0) & (label[network.dst] < 0)).any():
        src, dst = network.src[ahead], network.dst[ahead]
        label[dst] = 0
        np.bitwise_or.at(label, dst, label[src])
    change = label[network.src] ^ label[network.dst]
    is_hypercube = len(first) == dimensions and np.array_equal(np.sort(label), np.arange(network.nodes))
    return label if is_hypercube and not (change & (change - 1)).any() else None
