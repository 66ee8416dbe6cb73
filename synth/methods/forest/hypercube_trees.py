"""Edge-disjoint spanning trees of one root of a hypercube, in closed form: d trees of height d + 1 in d dimensions.

These are the edge-disjoint spanning binomial trees of Johnsson and Ho (Optimum Broadcasting and Personalized
Communication in Hypercubes, 1989). With the root at 0, tree j leads to 2^j first. From there it spans all labels that
have bit j: each is entered by setting its first bit after j, in cyclic order. The others are leaves, entered by
clearing bit j. So the arc that sets bit b of p is in the tree of the last bit of p before b, and the arc that clears
bit j is in tree j. No d trees are lower: each has one arc of the root, and the node opposite to the end of that arc is
d arcs further. Packing finds equally fast trees, but they are three times as high on ten dimensions.
"""

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.forest.network import ForestNetwork, Trees


def hypercube_trees(network: ForestNetwork) -> Trees | None:
    """Return trees of height at most d + 1 for all supply of `network`, if it is a hypercube of d dimensions.

    Hypercubes are recognized by their structure; the numbers of their nodes do not matter. O(d * arcs).

    Returns:
        The trees, or None for other networks, several roots, arcs that carry less than an equal share, and a supply
        of 1, which a single breadth-first tree of height d carries.
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
    """Return labels of the nodes, 0 at `root`, such that every arc changes one bit; None if this is no hypercube.

    The neighbours of the root get one bit each. In a hypercube, the bits of any other node are those of its neighbours
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
