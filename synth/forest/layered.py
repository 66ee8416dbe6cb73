"""Trees that follow the layers of hop distance: every node is reached from one that is nearer to the root.

If every node takes its unit of each tree from a neighbour that is one hop nearer to the root, then whatever the
nodes choose, the result is a tree, and as low as can be. So each node can choose for itself: its in-arcs must
carry one unit for every tree, none beyond its capacity, which is a transport problem of a few arcs and many roots.
Where nearer neighbours cannot carry all, those at the same distance may help, in one direction only: from the one
with the smaller number, drawn for each root. Symmetries that take node 0 to every node, and leave capacities and
supplies as they are, carry the choice of node 0 to all others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled
from chorale.synth.flow.graph import Integers, Ranks
from chorale.synth.forest.network import ForestNetwork
from chorale.synth.forest.scramble import splitmix
from chorale.synth.forest.transport import transport
from chorale.synth.forest.trees import Trees, no_trees
from chorale.synth.topology.distance import hops_between_all
from chorale.synth.topology.transversal import Transversal

Hops = NDArray[np.uint16]

MOST_WORK = 2**25
MOST_NODES = 4096


class _InArcShares(NamedTuple):
    """What one node takes: of the trees `lo` to `hi` - 1 of `root`, over `arc`; -1 where no arc can carry them."""

    root: Ranks
    arc: Ranks
    lo: Integers
    hi: Integers


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
        base = _choices(network, offsets, hops, 0, beside=False)
        if base.arc.min() >= 0:
            return _trees(network, _images(network, transversal, base))
    if nodes * len(network.src) > most_work:
        return no_trees(nodes)
    hops = hops_between_all(offsets, network.src)
    pieces = [_choices(network, offsets, hops, node, beside=True) for node in range(nodes)]
    return _trees(network, pieces)


def _is_invariant(network: ForestNetwork, transversal: Transversal) -> bool:
    """Whether the moves leave capacities and supplies as they are."""
    if len(transversal.parent) != network.nodes or np.any(network.supply != network.supply[0]):
        return False
    own = np.array([network.src, network.dst, network.capacity])
    for move in transversal.moves:
        image = np.array([move[network.src], move[network.dst], network.capacity])
        if not np.array_equal(image[:, np.lexsort(image[:2])], own):
            return False
    return True


def _choices(network: ForestNetwork, offsets: Integers, hops: Hops, node: int, beside: bool) -> _InArcShares:
    """Return over which in-arc `node` takes each tree; `beside` allows neighbours at its own distance."""
    row = slice(offsets[node], offsets[node + 1])
    tails = network.src[row]
    needs, left = network.supply.copy(), network.capacity[row].copy()
    needs[node] = 0
    wanted = needs.copy()
    allowed = np.ascontiguousarray((hops[tails] + 1 == hops[node]).T)
    amounts = np.zeros(allowed.shape, dtype=np.int64)
    if not transport(allowed, needs, left, amounts) and beside:
        points = np.append(tails, np.int32(node)).astype(np.int64)[:, None]
        ties = splitmix(points * network.nodes + np.arange(network.nodes))
        allowed |= ((hops[tails] == hops[node]) & (ties[:-1] < ties[-1])).T
        transport(allowed, needs, left, amounts)
    columns = np.column_stack([amounts, needs])
    arcs = np.append(np.arange(row.start, row.stop, dtype=np.int32), np.int32(-1))
    root, place = np.nonzero(columns)
    amount = columns[root, place]
    hi = np.cumsum(amount) - (np.cumsum(wanted) - wanted)[root]
    return _InArcShares(root.astype(np.int32), arcs[place], hi - amount, hi)


def _images(network: ForestNetwork, transversal: Transversal, base: _InArcShares) -> list[_InArcShares]:
    """Return what all nodes take if node 0 takes `base`."""
    keys = network.dst.astype(np.int64) * network.nodes + network.src
    tails = network.src[base.arc]
    pieces = []
    for node, image in enumerate(transversal.images(np.arange(network.nodes))):
        arc = np.searchsorted(keys, node * network.nodes + image[tails].astype(np.int64)).astype(np.int32)
        pieces.append(_InArcShares(image[base.root], arc, base.lo, base.hi))
    return pieces


def _trees(network: ForestNetwork, pieces: list[_InArcShares]) -> Trees:
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
        _fill(*piece, first, end, parent_arc[:, node])
    whole = np.count_nonzero(parent_arc < 0, axis=1) == 1
    return Trees(root.astype(np.int32)[whole], (end - start)[whole], parent_arc[whole])


@compiled
def _fill(
    root: Ranks, arc: Ranks, lo: Integers, hi: Integers, first: Integers, end: Integers, parent_arc: NDArray[np.int32]
) -> None:
    """Write the pieces of one node into the trees that they cover."""
    for piece in range(len(root)):
        tree = first[root[piece]]
        while end[tree] <= lo[piece]:
            tree += 1
        parent_arc[tree] = arc[piece]
        while end[tree] < hi[piece]:
            tree += 1
            parent_arc[tree] = arc[piece]
