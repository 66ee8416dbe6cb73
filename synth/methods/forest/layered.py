"""Trees that follow the layers of hop distance: every node is reached from a neighbour nearer to the root.

If every node takes its unit of each tree from a neighbour one hop nearer to the root, the result is a tree of least
height, whatever the nodes choose. So each node chooses for itself, by a transport problem of few arcs and many roots.
Where nearer neighbours cannot carry all, those at the same distance may help, in one direction drawn for each root.
Symmetries that take node 0 to every node carry the choice of node 0 to all others.

Over which in-arc a node takes each tree, so that every tree stays as low as hops allow where that fits.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.kernels.threads import blocks, in_threads
from chorale.synth.methods.forest.network import ForestNetwork, Trees, no_trees
from chorale.synth.topology.distance import hops_between_all
from chorale.synth.topology.translations import Transversal

Hops = NDArray[np.uint16]


class InArcShares(NamedTuple):
    """What one node takes: of the trees `lo` to `hi` - 1 of `root`, over `arc`; -1 where no arc can carry them."""

    root: Ranks
    arc: Ranks
    lo: Integers
    hi: Integers


def in_arc_shares(network: ForestNetwork, offsets: Integers, hops: Hops, node: int, beside: bool) -> InArcShares:
    """Return over which in-arc `node` takes each tree.

    hops:   [in-arcs of `node` + 1, nodes]: hops from every node to the tails of its in-arcs, and to `node` itself
    beside: whether neighbours at its own distance may help
    """
    row = slice(offsets[node], offsets[node + 1])
    needs = network.supply.copy()
    needs[node] = 0
    left = network.capacity[row].copy()
    return InArcShares(*native.in_arc_shares(network.src[row], left, needs, hops, node, int(row.start), beside))


def shuffled_order(count: int, seed: int) -> NDArray[np.int32]:
    """Return the numbers 0 to count - 1 in an order that depends on `seed` (at least 0)."""
    return np.argsort(splitmix(np.arange(count) + seed * count)).astype(np.int32)


MOST_WORK = 2**25
MOST_LATE_WORK = 2**30
"""For networks on which growing trees has proved slow: it may take hours where this takes a minute."""
MOST_NODES = 4096
_NODES_AT_ONCE = 32


def layered_trees(
    network: ForestNetwork,
    transversal: Transversal | None = None,
    most_work: int = MOST_WORK,
    most_nodes: int = MOST_NODES,
) -> Trees:
    """Return trees of least height or close to it: as many as choices node by node yield within the capacities.

    They are a whole packing if all nodes find enough; else the rest of `network` may not suffice for the other
    trees. None at all beyond `most_nodes`, or beyond `most_work` (nodes * arcs) without symmetries.

    transversal: symmetries of the nodes; they are checked against capacities and supplies, and not used where
    they do not fit. O(nodes * arcs) for hops and choices of all nodes, O(nodes * (nodes + arcs)) with symmetries.
    """
    nodes = network.nodes
    if not 1 < nodes <= most_nodes or not network.supply.any():
        return no_trees(nodes)
    offsets = np.searchsorted(network.dst, np.arange(nodes + 1)).astype(np.int64)
    if transversal is not None and _is_invariant(network, transversal):
        hops = hops_between_all(offsets, network.src)
        base = in_arc_shares(network, offsets, _hops_around(network, offsets, hops, 0), 0, beside=False)
        if base.arc.min() >= 0:
            return _trees(network, _images(network, transversal, base))
    if nodes * len(network.src) > most_work:
        return no_trees(nodes)
    hops = hops_between_all(offsets, network.src)

    def pieces_of(nodes: slice) -> list[InArcShares]:
        around = ((node, _hops_around(network, offsets, hops, node)) for node in range(nodes.start, nodes.stop))
        return [in_arc_shares(network, offsets, rows, node, beside=True) for node, rows in around]

    return _trees(network, list(chain.from_iterable(in_threads(pieces_of, blocks(nodes, _NODES_AT_ONCE)))))


def _is_invariant(network: ForestNetwork, transversal: Transversal) -> bool:
    """Whether the moves leave capacities and supplies as they are."""
    if len(transversal.parent) != network.nodes or np.any(network.supply != network.supply[0]):
        return False
    arcs = np.array([network.src, network.dst, network.capacity])
    for move in transversal.moves:
        image = np.array([move[network.src], move[network.dst], network.capacity])
        if not np.array_equal(image[:, np.lexsort(image[:2])], arcs):
            return False
    return True


def _hops_around(network: ForestNetwork, offsets: Integers, hops: Hops, node: int) -> Hops:
    """Return the rows of `hops` that `in_arc_shares` looks at."""
    return hops[np.append(network.src[offsets[node] : offsets[node + 1]], np.int32(node))]


def _images(network: ForestNetwork, transversal: Transversal, base: InArcShares) -> list[InArcShares]:
    """Return what all nodes take if node 0 takes `base`."""
    keys = network.dst.astype(np.int64) * network.nodes + network.src
    tails = network.src[base.arc]
    pieces = []
    for node, image in enumerate(transversal.images(np.arange(network.nodes))):
        arc = np.searchsorted(keys, node * network.nodes + image[tails].astype(np.int64)).astype(np.int32)
        pieces.append(InArcShares(image[base.root], arc, base.lo, base.hi))
    return pieces


def _trees(network: ForestNetwork, pieces: list[InArcShares]) -> Trees:
    """Cut the trees of each root where some node changes from one in-arc to another; leave out those with gaps."""
    span = int(network.supply.max()) + 1
    roots = np.flatnonzero(network.supply)
    inner = [piece.hi < network.supply[piece.root] for piece in pieces]
    ends = [piece.root[cut] * np.int64(span) + piece.hi[cut] for piece, cut in zip(pieces, inner, strict=True)]
    root, end = np.divmod(np.unique(np.concatenate([*ends, roots * span + network.supply[roots]])), span)
    first = np.searchsorted(root, np.arange(network.nodes))
    start = np.where(np.diff(root, prepend=-1) > 0, 0, np.roll(end, 1))
    parent_arc = np.full((len(root), network.nodes), -1, dtype=np.int32)
    for node, piece in enumerate(pieces):
        native.fill_trees(piece, first, end, node, parent_arc)
    whole = np.count_nonzero(parent_arc < 0, axis=1) == 1
    return Trees(root.astype(np.int32)[whole], (end - start)[whole], parent_arc[whole])
