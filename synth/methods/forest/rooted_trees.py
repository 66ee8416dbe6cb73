"""Trees of one root, grown arc by arc: broadcast and reduce on large networks.

A tree may take an arc as long as the root still reaches the head of the arc in as many ways as trees are to come. Such
an arc leads out of every part of a tree (Lovász' proof of Edmonds' theorem), so that no tree is ever taken back; and
one that is refused once is refused for good, so that each is asked about once per tree.

Trees of one root of a hypercube in closed form: as many as dimensions, no arc in two of them, of height d + 1.

These are the edge-disjoint spanning binomial trees of Johnsson and Ho (Optimum Broadcasting and Personalized
Communication in Hypercubes, 1989). With the root at 0, tree j leads to 2^j first. From there it spans all labels that
have bit j: each is entered by setting its first bit after j, in cyclic order. The others are leaves, entered by
clearing bit j. So the arc that sets bit b of p is in the tree of the last bit of p before b, and the one that clears
bit j in tree j. No d trees are lower: each has one arc of the root, and opposite to its end is a node d arcs further.
Hypercubes are recognized whatever their nodes are called.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork, Trees
from chorale.synth.methods.forest.residual_network import ArcTable


def hypercube_trees(network: ForestNetwork) -> Trees | None:
    """Return trees for all supply of `network`, of height d + 1 at most, if it is a hypercube of d dimensions.

    None for other networks, several roots, arcs that carry less than an equal share, and a supply of 1, which one
    breadth-first tree of height d carries. O(d * arcs).
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
    parent_arc = np.array([_parent_arcs(network, label, dimensions, bit) for bit in range(count)])
    parent_arc[:, roots[0]] = -1
    return Trees(np.repeat(roots, count).astype(np.int32), weights, parent_arc)


def _labels(network: ForestNetwork, root: int, dimensions: int) -> NDArray[np.int64] | None:
    """Return labels of the nodes, 0 at `root`, of which arcs change one bit; None if this is no hypercube.

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


def _parent_arcs(network: ForestNetwork, label: NDArray[np.int64], dimensions: int, bit: int) -> NDArray[np.int32]:
    """Return int32 per node: the arc by which tree `bit` enters it; at the root, any."""
    after = bit + 1
    turned = (label >> after) | (label & ((1 << after) - 1)) << (dimensions - after)
    next_bit = (after + np.bitwise_count((turned & -turned) - 1).astype(np.int64)) % dimensions
    change = 1 << np.where(label >> bit & 1, next_bit, bit)
    enters = np.flatnonzero(label[network.src] ^ label[network.dst] == change[network.dst])
    arcs = np.empty(network.nodes, dtype=np.int32)
    arcs[network.dst[enters]] = enters
    return arcs


MAX_WORK = 2**31
"""Of trees^2 * nodes * arcs: some seconds. Where it is more, trees are packed with weights, one taken many times."""


def rooted_trees(arcs: ArcTable, capacity: Integers, supply: Integers) -> Trees | None:
    """Return trees within `capacity`, int64 per arc, for all of `supply`, int64 per node, which is at one root.

    None where there are other roots, no such trees, or much work. Each has weight 1 and is grown breadth first.
    O(trees^2 * arcs^2) at worst, as a rule O(trees^2 * nodes * arcs).
    """
    roots = np.flatnonzero(supply)
    if len(roots) != 1:
        return None
    count = int(supply[roots[0]])
    if count**2 * len(supply) * len(capacity) > MAX_WORK:
        return None
    parent_arc = np.full((count, len(supply)), -1, dtype=np.int32)
    if not native.grow_rooted_trees(arcs, capacity.copy(), int(roots[0]), parent_arc):
        return None
    return Trees(np.repeat(roots, count).astype(np.int32), np.ones(count, dtype=np.int64), parent_arc)


class _Search(NamedTuple):
    """Scratch of the search for ways to a node.

    flow:  int64 per arc, zero between searches;  used: int32, arcs that carry flow, or did
    queue: int32, nodes that were reached;  via: int32 per node, the arc by which it goes on, -2 - arc to go back
    seen:  int64 per node, the last search that reached it, by its number in `last`, int64[1]
    """

    flow: Integers
    used: Ranks
    queue: Ranks
    via: Ranks
    seen: Integers
    last: Integers
