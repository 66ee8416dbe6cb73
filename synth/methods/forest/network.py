"""The network that trees are packed into: integer capacities per pair of nodes, and the number of trees per root.

Packed trees as arrays, thousands over thousands of nodes, and the key by which optimal packings are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Integers
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.method import Objective
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class ForestNetwork:
    """A digraph with at most one arc per ordered pair of nodes, in the order of (dst, src), without self-loops.

    compute_count: nodes 0 to compute_count - 1 are the ranks, the others are switches
    nodes:         number of all nodes; equal to `compute_count` once switches are removed
    src, dst:      int32 per arc
    capacity:      int64 per arc, positive: how many trees may use it (a tree of weight m counts m times)
    supply:        int64 per node: how many trees are rooted there (0 for switches)
    """

    compute_count: int
    nodes: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    capacity: NDArray[np.int64]
    supply: NDArray[np.int64]

    @property
    def is_eulerian(self) -> bool:
        """Whether every node has as much capacity in as out."""
        balance = np.zeros(self.nodes, dtype=np.int64)
        np.add.at(balance, self.dst, self.capacity)
        np.subtract.at(balance, self.src, self.capacity)
        return not balance.any()


def forest_network(topology: Topology, trees_per_bandwidth: Fraction, supply: Integers) -> ForestNetwork:
    """Return the network in which a link of bandwidth b carries floor(U * b) trees, U = `trees_per_bandwidth`.

    supply: int64 per rank. Raises InvalidInput where amounts would leave 64 bits. O(links log links).
    """
    return network_of_links(topology, trees_on_links(topology, trees_per_bandwidth), supply)


def trees_on_links(topology: Topology, trees_per_bandwidth: Fraction) -> Integers:
    """Return int64 per link: floor(U * b). Raises InvalidInput where amounts would leave 64 bits.

    Parallel links are rounded down one by one, so that each can carry its part.
    """
    links = topology.links
    table = [int(trees_per_bandwidth * bandwidth) for bandwidth in links.bandwidths]
    if max(table, default=0) * max(1, len(links)) >= LARGEST_AMOUNT:
        raise overflow_error(f"{max(table)} trees on a link")
    return np.array(table, dtype=np.int64)[links.bandwidth_class]


def network_of_links(topology: Topology, carried: Integers, supply: Integers) -> ForestNetwork:
    """Return the network in which every link carries `carried` trees, parallel links added up.

    carried: int64 per link, of `trees_on_links` or less;  supply: int64 per rank. Raises InvalidInput where supplies
    would leave 64 bits. O(links log links).
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
    """Return the error of amounts, described by `value`, that would leave 64 bits."""
    rule = f"tree packing counts in integers below {LARGEST_AMOUNT}"
    return InvalidInput(rule, value, "round the bandwidths to fewer digits, or choose a fixed k")


_HALVINGS = 16
Whole = TypeVar("Whole")


def apportioned(rates: Sequence[Fraction], units: int) -> list[int]:
    """Return `units` shared out in proportion to `rates`; what is left over goes to the largest remainders."""
    total = sum(rates, Fraction(0))
    shares = [rate * units / total for rate in rates]
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(len(rates)), key=lambda index: whole[index] - shares[index])
    for index in by_remainder[: units - sum(whole)]:
        whole[index] += 1
    return whole


def at_least_scale(start: Fraction, rounded_down: Callable[[Fraction], Whole], fits: Callable[[Whole], bool]) -> Whole:
    """Return `rounded_down` of the least scale found, from `start` on, at which it fits: doubled, then bisected.

    rounded_down: what links carry at a scale, in whole trees; may raise InvalidInput beyond a limit
    """
    low = high = start
    while not fits(whole := rounded_down(high)):
        low, high = high, 2 * high
    return _bisected(low, high, whole, rounded_down, fits)


def scale_within(
    start: Fraction, gap: Fraction, rounded_down: Callable[[Fraction], Whole], fits: Callable[[Whole], bool]
) -> Whole | None:
    """Return the same, or None where it does not fit at a scale larger than `start` by the part `gap`."""
    high = start * (1 + gap)
    whole = rounded_down(high)
    return _bisected(start, high, whole, rounded_down, fits) if fits(whole) else None


def _bisected(
    low: Fraction,
    high: Fraction,
    whole: Whole,
    rounded_down: Callable[[Fraction], Whole],
    fits: Callable[[Whole], bool],
) -> Whole:
    for _ in range(_HALVINGS if low < high else 0):
        middle = (low + high) / 2
        if fits(tried := rounded_down(middle)):
            high, whole = middle, tried
        else:
            low = middle
    return whole


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Spanning out-trees of a network without switches, each with a weight.

    root:       int32 per tree
    weight:     int64 per tree: how many units of capacity it takes on every arc it uses
    parent_arc: int32[trees, nodes]: the arc over which the tree reaches each node, -1 at its root
    """

    root: NDArray[np.int32]
    weight: NDArray[np.int64]
    parent_arc: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.root)


def no_trees(nodes: int) -> Trees:
    """Return no trees, of a network of so many nodes."""
    nothing = np.empty(0, dtype=np.int32)
    return Trees(nothing, nothing.astype(np.int64), np.empty((0, nodes), dtype=np.int32))


def joined_trees(parts: Sequence[Trees]) -> Trees:
    """Return all trees of one or more `parts`, in their order."""
    root, weight = np.concatenate([part.root for part in parts]), np.concatenate([part.weight for part in parts])
    parent_arc = np.concatenate([part.parent_arc for part in parts])
    return Trees(root, weight, parent_arc)


def tree_heights(trees: Trees, src: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return int32 per tree: the most arcs from its root to a node; `src` is where each arc starts. O(size)."""
    heights = np.zeros(len(trees), dtype=np.int32)
    native.tree_heights(trees.root, trees.parent_arc, src, heights)
    return heights


def objective_key(network: ForestNetwork, trees: Trees, objective: Objective) -> tuple[int, ...]:
    """Return numbers of which the smaller is better, the first that differs decides.

    height:   the greatest height, the heights added up by weight, the number of trees
    trees:    the number of trees, then as for height
    balanced: greatest height times number of trees, then as for height
    """
    heights = tree_heights(trees, network.src)
    highest, count = int(heights.max(initial=0)), len(trees)
    low = (highest, int((heights * trees.weight).sum()), count)
    return {"height": low, "trees": (count, *low), "balanced": (highest * count, *low)}[objective]
