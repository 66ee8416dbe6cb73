"""Trees in layers of hop distance: every node is reached from a neighbour that is nearer to the root.

If every node receives each tree from a neighbour one hop nearer to the root, the result is a tree of least height,
whichever neighbours the nodes choose. So each node chooses independently, by solving a transport problem with few arcs
and many roots. If nearer neighbours cannot carry everything, neighbours at the same distance may help, in a direction
that is drawn at random for each root. If symmetries map node 0 to every node, they map its choice to all others.
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
    """How a node receives trees: trees `lo` to `hi` - 1 of `root` over the incoming arc `arc`, one row per interval.

    arc: -1 if no arc can carry these trees
    """

    root: Ranks
    arc: Ranks
    lo: Integers
    hi: Integers


def in_arc_shares(network: ForestNetwork, offsets: Integers, hops: Hops, node: int, beside: bool) -> InArcShares:
    """Return the in-arc over which `node` receives each tree.

    Args:
        offsets: int64[nodes + 1]; node v has the in-arcs `offsets[v]` to `offsets[v + 1] - 1`.
        hops: [in-arcs of `node` + 1, nodes], hops from every node to the sources of the in-arcs, then to `node`.
        beside: whether neighbours at the same distance from the root may help.
    """
    row = slice(offsets[node], offsets[node + 1])
    needs = network.supply.copy()
    needs[node] = 0
    left = network.capacity[row].copy()
    return InArcShares(*native.in_arc_shares(network.src[row], left, needs, hops, node, int(row.start), beside))


def shuffled_order(count: int, seed: int) -> NDArray[np.int32]:
    """Return the numbers 0 to count - 1, int32, in an order that depends on `seed` (at least 0)."""
    return np.argsort(splitmix(np.arange(count) + seed * count)).astype(np.int32)


MOST_WORK = 2**25
MOST_LATE_WORK = 2**30
"""Limit of nodes * arcs if growing trees has proved slow. Growing may then take hours, layers one minute."""
MOST_NODES = 4096
_NODES_AT_ONCE = 32


def layered_trees(
    network: ForestNetwork,
    transversal: Transversal | None = None,
    most_work: int = MOST_WORK,
    most_nodes: int = MOST_NODES,
) -> Trees:
    """Return trees within the capacities, of least height or close to it. Nodes choose their arcs independently.

    If all nodes find enough arcs, the trees are a complete packing. Otherwise some trees are missing, and the remaining
    capacity may not be enough for them. O(nodes * arcs), or O(nodes * (nodes + arcs)) with symmetries.

    Args:
        transversal: symmetries of the nodes; ignored unless they preserve capacities and supplies.
        most_work: limit of nodes * arcs above which no trees are returned, unless there are symmetries.
        most_nodes: limit of nodes above which no trees are returned.
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
    """Return whether the symmetries preserve capacities and supplies."""
    if len(transversal.parent) != network.nodes or np.any(network.supply != network.supply[0]):
        return False
    arcs = np.array([network.src, network.dst, network.capacity])
    for move in transversal.moves:
        image = np.array([move[network.src], move[network.dst], network.capacity])
        if not np.array_equal(image[:, np.lexsort(image[:2])], arcs):
            return False
    return True


def _hops_around(network: ForestNetwork, offsets: Integers, hops: Hops, node: int) -> Hops:
    """Return the rows of `hops` that `in_arc_shares` needs for `node`."""
    return hops[np.append(network.src[offsets[node] : offsets[node + 1]], np.int32(node))]


def _images(network: ForestNetwork, transversal: Transversal, base: InArcShares) -> list[InArcShares]:
    """Return the in-arc choices of all nodes, as images of the choices `base` of node 0."""
    keys = network.dst.astype(np.int64) * network.nodes + network.src
    tails = network.src[base.arc]
    pieces = []
    for node, image in enumerate(transversal.images(np.arange(network.nodes))):
        arc = np.searchsorted(keys, node * network.nodes + image[tails].astype(np.int64)).astype(np.int32)
        pieces.append(InArcShares(image[base.root], arc, base.lo, base.hi))
    return pieces


def _trees(network: ForestNetwork, pieces: list[InArcShares]) -> Trees:
    """Return the complete trees in `pieces`. A new tree starts whenever a node changes its in-arc."""
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
