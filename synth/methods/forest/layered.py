"""Trees that follow the layers of hop distance: every node is reached from a neighbour nearer to the root.

If every node takes its unit of each tree from a neighbour one hop nearer to the root, the result is a tree of least
height, whatever the nodes choose. So each node chooses for itself, by a transport problem of few arcs and many roots.
Where nearer neighbours cannot carry all, those at the same distance may help, in one direction drawn for each root.
Symmetries that take node 0 to every node carry the choice of node 0 to all others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.cut_oracle import Flags
from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.distinct import distinct
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.forest.trees import Trees, no_trees
from chorale.synth.topology.all_hops import hops_between_all
from chorale.synth.topology.transversal import Transversal


def shuffled_order(count: int, seed: int) -> NDArray[np.int32]:
    """Return the numbers 0 to count - 1 in an order that depends on `seed` (at least 0)."""
    return np.argsort(splitmix(np.arange(count) + seed * count)).astype(np.int32)


@compiled
def transport(allowed: Matrix[np.bool_], needs: Integers, capacity: Integers, amounts: Matrix[np.int64]) -> bool:
    """Place as much as possible of what rows need; return whether that is everything.

    allowed:  bool[rows, places]
    needs, capacity: int64 per row and per place; both are lowered by what is placed
    amounts:  int64[rows, places], may hold what was placed before under fewer permissions; updated

    Rows with the fewest places come first, each where most is left; where nothing is left, other rows move over.
    O(rows * places) per move; few are needed.
    """
    choices = np.zeros(len(needs), dtype=np.int64)
    for row in range(len(needs)):
        choices[row] = allowed[row].sum()
    holds = np.zeros((len(capacity), len(needs)), dtype=np.bool_)
    for row in range(len(needs)):
        for place in range(len(capacity)):
            holds[place, row] = amounts[row, place] > 0
    closed = np.zeros(len(capacity), dtype=np.bool_)
    placed = True
    for row in np.argsort(choices, kind="mergesort"):
        while needs[row] > 0:
            amount = _place(row, allowed, needs, capacity, amounts, holds)
            if amount == 0:
                amount = _make_room(row, needs[row], allowed, capacity, amounts, holds, closed)
            needs[row] -= amount
            if amount == 0:
                placed = False
                break
    return placed


@inlined
def _place(
    row: int,
    allowed: Matrix[np.bool_],
    needs: Integers,
    capacity: Integers,
    amounts: Matrix[np.int64],
    holds: Matrix[np.bool_],
) -> int:
    """Use the place with most left; return how much of it."""
    place = -1
    for other in range(len(capacity)):
        if allowed[row, other] and (place < 0 or capacity[other] > capacity[place]):
            place = other
    if place < 0:
        return 0
    amount = int(min(needs[row], capacity[place]))
    capacity[place] -= amount
    amounts[row, place] += amount
    holds[place, row] = amounts[row, place] > 0
    return amount


@inlined
def _make_room(
    row: int,
    need: int,
    allowed: Matrix[np.bool_],
    capacity: Integers,
    amounts: Matrix[np.int64],
    holds: Matrix[np.bool_],
    closed: Flags,
) -> int:
    """Place up to `need` units of `row` by moving others along a shortest chain; return how many, 0 if none.

    holds:  bool[places, rows]: where `amounts` are above 0
    closed: places from which no chain leads to any that has something left; those found now are added
    """
    places = len(capacity)
    before, mover = np.full(places, -1, dtype=np.int64), np.full(places, -1, dtype=np.int64)
    queue, open_places = np.empty(places, dtype=np.int64), np.empty(places, dtype=np.int64)
    head, tail, left = 0, 0, 0
    for place in range(places):
        if not closed[place]:
            open_places[left] = place
            left += 1
    unmoved = np.ones(len(allowed), dtype=np.bool_)
    # A chain ends at the first place with something left that is reached, so the search need not go beyond.
    tail, left = _reach(row, -1, allowed, open_places, left, before, mover, queue, tail)
    end = _first_with_room(queue, 0, tail, capacity)
    while head < tail and end < 0:
        full = queue[head]
        head += 1
        for other in range(len(unmoved)):
            if holds[full, other] and unmoved[other]:
                unmoved[other] = False
                known = tail
                tail, left = _reach(other, full, allowed, open_places, left, before, mover, queue, tail)
                end = _first_with_room(queue, known, tail, capacity)
                if end >= 0:
                    break
    if end < 0:
        for column in queue[:tail]:
            closed[column] = True
        return 0
    return _move(end, need, before, mover, capacity, amounts, holds)


@inlined
def _reach(
    row: int,
    full: int,
    allowed: Matrix[np.bool_],
    open_places: Integers,
    left: int,
    before: Integers,
    mover: Integers,
    queue: Integers,
    tail: int,
) -> tuple[int, int]:
    """Queue the places, among the first `left` of `open_places`, to which `row` may move from `full`; the others stay.

    Returns the new length of the queue and how many places stay.
    """
    kept = 0
    for index in range(left):
        place = open_places[index]
        if allowed[row, place]:
            before[place], mover[place] = full, row
            queue[tail] = place
            tail += 1
        else:
            open_places[kept] = place
            kept += 1
    return tail, kept


@inlined
def _first_with_room(queue: Integers, begin: int, end: int, capacity: Integers) -> int:
    for index in range(begin, end):
        if capacity[queue[index]] > 0:
            return int(queue[index])
    return -1


@inlined
def _move(
    last: int,
    need: int,
    before: Integers,
    mover: Integers,
    capacity: Integers,
    amounts: Matrix[np.int64],
    holds: Matrix[np.bool_],
) -> int:
    """Move up to `need` units along the chain that ends at `last`; return how many."""
    amount, place = int(min(need, capacity[last])), last
    while before[place] >= 0:
        amount = min(amount, int(amounts[mover[place], before[place]]))
        place = before[place]
    capacity[last] -= amount
    place = last
    while place >= 0:
        amounts[mover[place], place] += amount
        holds[place, mover[place]] = True
        if before[place] >= 0:
            amounts[mover[place], before[place]] -= amount
            holds[before[place], mover[place]] = amounts[mover[place], before[place]] > 0
        place = before[place]
    return amount


Hops = NDArray[np.uint16]

MOST_WORK = 2**30
MOST_NODES = 4096


class InArcShares(NamedTuple):
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
        base = in_arc_shares(network, offsets, _hops_around(network, offsets, hops, 0), 0, beside=False)
        if base.arc.min() >= 0:
            return _trees(network, _images(network, transversal, base))
    if nodes * len(network.src) > most_work:
        return no_trees(nodes)
    hops = hops_between_all(offsets, network.src)
    around = (_hops_around(network, offsets, hops, node) for node in range(nodes))
    pieces = [in_arc_shares(network, offsets, rows, node, beside=True) for node, rows in enumerate(around)]
    return _trees(network, pieces)


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


def in_arc_shares(network: ForestNetwork, offsets: Integers, hops: Hops, node: int, beside: bool) -> InArcShares:
    """Return over which in-arc `node` takes each tree.

    hops:   [in-arcs of `node` + 1, nodes]: hops from every node to the tails of its in-arcs, and to `node` itself
    beside: whether neighbours at its own distance may help
    """
    row = slice(offsets[node], offsets[node + 1])
    tails = network.src[row]
    needs, left = network.supply.copy(), network.capacity[row].copy()
    needs[node] = 0
    demand = needs.copy()
    allowed = np.ascontiguousarray((hops[:-1] + 1 == hops[-1]).T)
    amounts = np.zeros_like(allowed, dtype=np.int64)
    if not transport(allowed, needs, left, amounts) and beside:
        points = np.append(tails, np.int32(node)).astype(np.int64)[:, None]
        ties = splitmix(points * network.nodes + np.arange(network.nodes))
        allowed |= ((hops[:-1] == hops[-1]) & (ties[:-1] < ties[-1])).T
        transport(allowed, needs, left, amounts)
    columns = np.column_stack([amounts, needs])
    arcs = np.append(np.arange(row.start, row.stop, dtype=np.int32), np.int32(-1))
    root, column = np.nonzero(columns)
    amount = columns[root, column]
    hi = np.cumsum(amount) - (np.cumsum(demand) - demand)[root]
    return InArcShares(root.astype(np.int32), arcs[column], hi - amount, hi)


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
    root, end = np.divmod(distinct(np.concatenate([*ends, roots * span + network.supply[roots]])), span)
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
