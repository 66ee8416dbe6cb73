"""Defines the network into which trees are packed: integer capacities, and the number of trees at each root.

Also compares packings. Trees are stored as arrays, because there may be thousands of trees over thousands of nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Flags, Integers, violated_cuts
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.method import Objective
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class ForestNetwork:
    """A digraph without self-loops and without parallel arcs. Arcs are sorted by (dst, src).

    Attributes:
        compute_count: nodes 0 to compute_count - 1 are the ranks, all other nodes are switches.
        nodes: number of all nodes; equal to `compute_count` once the switches are removed.
        src, dst: int32 per arc, its ends.
        capacity: int64 per arc, positive: number of trees that may use the arc (a tree of weight m counts m times).
        supply: int64 per node: number of trees that are rooted there (0 for switches).
    """

    compute_count: int
    nodes: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    capacity: NDArray[np.int64]
    supply: NDArray[np.int64]


def trees_on_links(topology: Topology, trees_per_bandwidth: Fraction) -> Integers:
    """Return int64 per link: its number of trees, floor(U * b) for bandwidth b and U = `trees_per_bandwidth`.

    Bandwidths of parallel links are rounded down separately, so that each link can carry its trees. Raises InvalidInput
    if numbers would exceed 64 bits.
    """
    links = topology.links
    table = [int(trees_per_bandwidth * bandwidth) for bandwidth in links.bandwidths]
    if max(table, default=0) * max(1, len(links)) >= LARGEST_AMOUNT:
        raise overflow_error(f"{max(table)} trees on a link")
    return np.array(table, dtype=np.int64)[links.bandwidth_class]


def network_of_links(topology: Topology, carried: Integers, supply: Integers) -> ForestNetwork:
    """Return the network in which link i carries up to `carried[i]` trees. Capacities of parallel links are added up.

    Raises InvalidInput if supplies would exceed 64 bits. O(links log links).

    carried: int64 per link, at most `trees_on_links`
    supply:  int64 per rank, number of trees rooted there
    """
    if int(supply.sum()) >= LARGEST_AMOUNT:
        raise overflow_error(f"{int(supply.sum())} trees")
    links = topology.links
    useful = (links.src != links.dst) & (carried > 0)
    keys = links.dst[useful].astype(np.int64) * topology.node_count + links.src[useful]
    pairs, place = np.unique(keys, return_inverse=True)
    capacity = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(capacity, place, carried[useful])
    everywhere = np.zeros(topology.node_count, dtype=np.int64)
    everywhere[: topology.compute_count] = supply
    src, dst = (pairs % topology.node_count).astype(np.int32), (pairs // topology.node_count).astype(np.int32)
    return ForestNetwork(topology.compute_count, topology.node_count, src, dst, capacity, everywhere)


def overflow_error(value: str) -> InvalidInput:
    rule = f"tree packing counts in integers below {LARGEST_AMOUNT}"
    return InvalidInput(rule, value, "round the bandwidths to fewer digits, or choose a fixed k")


def narrow_cuts(network: ForestNetwork, most: int) -> Flags:
    """Return bool[cuts, nodes]: sink sides of up to `most` cuts that cannot carry all trees that cross them."""
    sinks = np.arange(network.nodes) < network.compute_count
    return violated_cuts(network.src, network.dst, network.capacity, network.supply, sinks, most)


def carries_all_trees(network: ForestNetwork) -> bool:
    """Return whether every cut can carry the trees that cross it. If so, and without switches, a packing exists."""
    return len(narrow_cuts(network, 1)) == 0


def members_of(sides: Flags) -> NDArray[np.uint64]:
    """Convert `sides` (bool[cuts, nodes]) to bit sets (uint64[nodes, words]): bit i of row v is `sides[i, v]`."""
    cuts, nodes = sides.shape
    words = -(-cuts // 64)
    padded = np.zeros((nodes, words * 64), dtype=np.bool_)
    padded[:, :cuts] = sides.T
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").reshape(nodes, words).astype(np.uint64)


_HALVINGS = 16
Whole = TypeVar("Whole")


def apportioned(rates: Sequence[Fraction], units: int) -> list[int]:
    """Divide `units` into whole numbers in proportion to `rates`. Shares with the largest remainders are rounded up."""
    total = sum(rates, Fraction(0))
    shares = [rate * units / total for rate in rates]
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(len(rates)), key=lambda index: whole[index] - shares[index])
    for index in by_remainder[: units - sum(whole)]:
        whole[index] += 1
    return whole


def at_least_scale(
    start: Fraction,
    rounded_down: Callable[[Fraction], Whole],
    fits: Callable[[Whole], bool],
    high: Fraction | None = None,
) -> Whole:
    """Return the result of `rounded_down` at the smallest scale >= `start` that is found to fit.

    The scale is doubled until the result fits. Then the smallest scale is found by bisection.

    rounded_down: returns the number of whole trees per link at a scale; may raise InvalidInput above a limit
    fits:         returns whether all cuts can carry the trees of a result
    high:         a scale at which the result is known to fit, if any
    """
    low, high = start, high or start
    while not fits(whole := rounded_down(high)):
        low, high = high, 2 * high
    for _ in range(_HALVINGS if low < high else 0):
        middle = (low + high) / 2
        if fits(tried := rounded_down(middle)):
            high, whole = middle, tried
        else:
            low = middle
    return whole


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Spanning out-trees of a network without switches. A tree of weight m stands for m equal trees.

    root:       int32 per tree
    weight:     int64 per tree: units of capacity that the tree takes on each of its arcs
    parent_arc: int32[trees, nodes]: the arc over which the tree reaches each node, -1 at the root
    """

    root: NDArray[np.int32]
    weight: NDArray[np.int64]
    parent_arc: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.root)


def no_trees(nodes: int) -> Trees:
    nothing = np.empty(0, dtype=np.int32)
    return Trees(nothing, nothing.astype(np.int64), np.empty((0, nodes), dtype=np.int32))


def joined_trees(parts: Sequence[Trees]) -> Trees:
    root, weight = np.concatenate([part.root for part in parts]), np.concatenate([part.weight for part in parts])
    parent_arc = np.concatenate([part.parent_arc for part in parts])
    return Trees(root, weight, parent_arc)


def tree_heights(trees: Trees, src: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return int32 per tree: number of arcs from its root to the furthest node. `src[a]` is the start of arc a."""
    heights = np.zeros(len(trees), dtype=np.int32)
    native.tree_heights(trees.root, trees.parent_arc, src, heights)
    return heights


def objective_key(network: ForestNetwork, trees: Trees, objective: Objective) -> tuple[int, ...]:
    """Return a key by which packings are compared; the packing with the smallest key is the best. The objectives are:

    height:   (largest height, sum of height * weight, number of trees)
    trees:    number of trees, then as for height
    balanced: largest height * number of trees, then as for height
    """
    heights = tree_heights(trees, network.src)
    highest, count = int(heights.max(initial=0)), len(trees)
    low = (highest, int((heights * trees.weight).sum()), count)
    return {"height": low, "trees": (count, *low), "balanced": (highest * count, *low)}[objective]
