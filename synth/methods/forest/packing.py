"""Packs spanning trees that use the full supply of every root without exceeding the capacity of any arc.

Trees are grown in batches that respect the known cuts. The oracle (a maximum-flow test of all cuts) then finds cuts
that a batch violates, and the longest prefix of the batch that violates no cut is kept. If this fails repeatedly, a
single tree is grown with the exact algorithm of Bérczi and Frank (bandwidth-optimal pipeline, section 2.3), which tests
all cuts whenever it backtracks. If only one root is left in a large network, its trees are grown arc by arc. The trees
that are kept always leave enough capacity for the remaining ones, so packing always succeeds.

Two kinds of low trees are tried first: if the network is a hypercube with a single root, trees in closed form
(`hypercube_trees`); otherwise, trees in layers of hop distance (`layered_trees`). If every node receives each tree from
a neighbour one hop nearer to the root, the result is a tree of least height, no matter which of these neighbours the
nodes choose. So each node chooses independently, by solving a transport problem with few arcs and many roots. If nearer
neighbours cannot send all trees, neighbours at the same distance may send some, in a direction that is chosen at random
for each root. If symmetries map node 0 to every node, they also map the choice of node 0 to all nodes.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Flags, Integers, Ranks, violated_cuts
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels import native
from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork, Trees, joined_trees, members_of, no_trees, objective_key
from chorale.synth.methods.method import Objective
from chorale.synth.processors import blocks, in_threads
from chorale.synth.topology.distance import hops_along
from chorale.synth.topology.translations import Transversal

Hops = NDArray[np.uint16]
MOST_WORK = 2**25
MOST_LATE_WORK = 2**30
"""Maximum of nodes * arcs for `layered_trees` if growing trees is slow. At this size, layered trees take a minute."""
MOST_NODES = 4096
_NODES_AT_ONCE = 32


def hypercube_trees(network: ForestNetwork) -> Trees | None:
    """Return trees of height at most d + 1 that use the full supply of `network`, if it is a d-dimensional hypercube.

    Hypercubes are recognized by their structure, not by their node numbers. O(d * arcs).

    Returns:
        The trees. None if the network is not a hypercube or has several roots, or if the capacity of an arc is below
        supply / d. Also None if the supply is 1, because a single breadth-first tree of height d is enough then.
    """
    dimensions, roots = network.nodes.bit_length() - 1, np.flatnonzero(network.supply)
    if len(roots) != 1 or dimensions == 0 or len(network.src) != dimensions * network.nodes:
        return None
    supply = int(network.supply[roots[0]])
    weight = -(-supply // dimensions)
    # Label the nodes such that the root is 0 and every arc of a hypercube changes one bit. The root's neighbours get
    # one bit each. In a hypercube, every other node has the bits of all its neighbours that are nearer to the root.
    first = np.flatnonzero(network.src == roots[0])
    if len(first) != dimensions or supply == 1 or network.capacity.min() < weight:
        return None
    label = np.full(network.nodes, -1, dtype=np.int64)
    label[roots[0]] = 0
    label[network.dst[first]] = 1 << np.arange(dimensions)
    while (ahead := (label[network.src] >= 0) & (label[network.dst] < 0)).any():
        src, dst = network.src[ahead], network.dst[ahead]
        label[dst] = 0
        np.bitwise_or.at(label, dst, label[src])
    change = label[network.src] ^ label[network.dst]
    if not np.array_equal(np.sort(label), np.arange(network.nodes)) or (change & (change - 1)).any():
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


class InArcShares(NamedTuple):
    """The arcs over which a node receives trees. Row i: trees `lo[i]` to `hi[i] - 1` of `root[i]` arrive over `arc[i]`.

    arc: -1 if no arc can carry these trees
    """

    root: Ranks
    arc: Ranks
    lo: Integers
    hi: Integers


def in_arc_shares(network: ForestNetwork, offsets: Integers, hops: Hops, node: int, beside: bool) -> InArcShares:
    """Choose the incoming arc (in-arc) over which `node` receives each tree.

    Args:
        offsets: int64[nodes + 1]; node v has the in-arcs `offsets[v]` to `offsets[v + 1] - 1`.
        hops: [in-arcs of `node` + 1, nodes], hop counts from every node to the source of each in-arc and, in the last
            row, to `node`.
        beside: whether neighbours at the same distance from the root may also send trees to the node.
    """
    row = slice(offsets[node], offsets[node + 1])
    needs = network.supply.copy()
    needs[node] = 0
    left = network.capacity[row].copy()
    return InArcShares(*native.in_arc_shares(network.src[row], left, needs, hops, node, int(row.start), beside))


def layered_trees(network: ForestNetwork, transversal: Transversal | None = None, most_work: int = MOST_WORK) -> Trees:
    """Return low trees within the capacities. Each node chooses the arcs over which it receives trees independently.

    If all nodes find enough arcs, the trees are a complete packing. Otherwise, some trees are missing, and the
    remaining capacity may not be enough for them. O(nodes * arcs), or O(nodes * (nodes + arcs)) with symmetries.

    Args:
        transversal: symmetries of the nodes; ignored unless they preserve capacities and supplies.
        most_work: if nodes * arcs is larger, no trees are returned unless there are symmetries. With more than
            `MOST_NODES` nodes, no trees are returned.
    """
    nodes = network.nodes
    if not 1 < nodes <= MOST_NODES or not network.supply.any():
        return no_trees(nodes)
    offsets = np.searchsorted(network.dst, np.arange(nodes + 1)).astype(np.int64)
    arcs = np.array([network.src, network.dst, network.capacity])

    def keeps_arcs(move: NDArray[np.integer]) -> bool:
        image = np.array([move[network.src], move[network.dst], network.capacity])
        return np.array_equal(image[:, np.lexsort(image[:2])], arcs)

    is_even = transversal is not None and len(transversal.parent) == nodes and np.ptp(network.supply) == 0
    if transversal is not None and is_even and all(map(keeps_arcs, transversal.moves)):
        hops = hops_along((offsets, network.src))
        base = in_arc_shares(network, offsets, _hops_around(network, offsets, hops, 0), 0, beside=False)
        if base.arc.min() >= 0:
            keys = network.dst.astype(np.int64) * network.nodes + network.src
            tails = network.src[base.arc]
            pieces = []
            for node, image in enumerate(transversal.images(np.arange(network.nodes))):
                arc = np.searchsorted(keys, node * network.nodes + image[tails].astype(np.int64)).astype(np.int32)
                pieces.append(InArcShares(image[base.root], arc, base.lo, base.hi))
            return _trees(network, pieces)
    if nodes * len(network.src) > most_work:
        return no_trees(nodes)
    hops = hops_along((offsets, network.src))

    def pieces_of(nodes: slice) -> list[InArcShares]:
        around = ((node, _hops_around(network, offsets, hops, node)) for node in range(nodes.start, nodes.stop))
        return [in_arc_shares(network, offsets, rows, node, beside=True) for node, rows in around]

    return _trees(network, list(chain.from_iterable(in_threads(pieces_of, blocks(nodes, _NODES_AT_ONCE)))))


def _hops_around(network: ForestNetwork, offsets: Integers, hops: Hops, node: int) -> Hops:
    return hops[np.append(network.src[offsets[node] : offsets[node + 1]], np.int32(node))]


def _trees(network: ForestNetwork, pieces: list[InArcShares]) -> Trees:
    """Combine the arcs that nodes have chosen (`pieces`) into trees, and drop trees that do not reach every node.

    A root's consecutive units form one tree as long as no node receives them over different arcs.
    """
    span = int(network.supply.max()) + 1
    roots = np.flatnonzero(network.supply)
    inner = [piece.hi < network.supply[piece.root] for piece in pieces]
    ends = [piece.root[cut] * np.int64(span) + piece.hi[cut] for piece, cut in zip(pieces, inner, strict=True)]
    keys = np.unique(np.concatenate([*ends, roots * span + network.supply[roots]]))
    root, end = np.divmod(keys, span)
    start = np.where(np.diff(root, prepend=-1) > 0, 0, np.roll(end, 1))
    parent_arc = np.full((len(root), network.nodes), -1, dtype=np.int32)
    for node, piece in enumerate(pieces):
        base = piece.root * np.int64(span)
        first = np.searchsorted(keys, base + piece.lo, side="right")
        count = np.searchsorted(keys, base + piece.hi) + 1 - first
        tree = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        parent_arc[tree, node] = np.repeat(piece.arc, count)
    whole = np.count_nonzero(parent_arc < 0, axis=1) == 1
    return Trees(root.astype(np.int32)[whole], (end - start)[whole], parent_arc[whole])


ROLLBACKS = 3
"""After this number of consecutive batches without a usable tree, one tree is grown with the exact algorithm."""
MAX_ROOTED_WORK = 2**31
"""Maximum of trees^2 * nodes * arcs for growing trees arc by arc, which takes seconds at this size. Above it, trees are
grown one at a time, each with a weight that stands for many equal trees."""

_SCARCE = 4
"""An arc is scarce if another arc into the same node has at least this many times its capacity."""
_CUTS_PER_TEST = 64
_SPARE_ROWS = 64
_MOST_TRIES = 8
_WORK_OF_TRIES = 2**20


class ArcTable(NamedTuple):
    """A network's arcs, sorted by head (target), then by descending capacity. Arcs into v begin at `head_offsets[v]`.

    Attributes:
        name: int32 per arc, its index in the network.
        tails, heads: int32 per arc, source and target.
        capacity: int64 per arc, before any tree.
        by_tail: arcs sorted by tail; those from node v are at `tail_offsets[v]` to `tail_offsets[v + 1] - 1`.
        plenty: int64 per node: number of arcs from it that are not scarce and lead to nodes with scarce incoming arcs;
            in `by_tail`, they are the first arcs of the node.
        scarce: bool per arc, whether it has far less capacity than the widest arc into the same node.
    """

    name: Ranks
    tails: Ranks
    heads: Ranks
    capacity: Integers
    by_tail: Integers
    tail_offsets: Integers
    plenty: Integers
    head_offsets: Integers
    scarce: Flags


class ResidualNetwork(NamedTuple):
    """The capacity and supply that remain for trees that are not packed yet.

    Attributes:
        capacity: int64 per arc.
        supply: int64 per node, number of trees still to be rooted there.
        node_slack: int64 per node v: slack of the cut whose source side is {v}.
        cut_slack: int64 per known cut: its slack, which is the capacity out of the source side S minus the supply in S.
        members: uint64[nodes, words]: bit i of row v says whether node v is in S for cut i.
    """

    capacity: Integers
    supply: Integers
    node_slack: Integers
    cut_slack: Integers
    members: Matrix[np.uint64]


def pack_trees(
    network: ForestNetwork,
    objective: Objective = "height",
    seed: int = 0,
    *,
    transversal: Transversal | None = None,
    first: Trees | None = None,
    rollbacks: int = ROLLBACKS,
) -> Trees:
    """Return spanning out-trees of `network` that use the full supply of all roots within the capacities of all arcs.

    The weights of a root's trees add up to its supply. Results are exact and deterministic. Trees for one root
    of a hypercube have a closed form (`hypercube_trees`). On other networks, if they are not too large, low trees in
    layers (`layered_trees`) are tried first, and missing trees are grown. On larger networks, all trees are grown.
    Takes polynomial time, usually O(trees * nodes) and a few tests of all cuts.

    Args:
        network: a network without switches.
        objective: which packings to prefer (`objective_key`). The best packing may not be found.
        seed: number >= 0 that determines the random order of the roots.
        transversal: known symmetries of the nodes, if any.
        first: trees to use unless they leave too little capacity for others; all of them must fit together.
        rollbacks: see `ROLLBACKS`.

    Returns:
        The trees, in the order of their roots.

    Raises:
        InvalidInput: if the network has switches, or if numbers would exceed 64 bits.
        CheckFailed: if no such trees exist; the message contains a cut that proves this.
    """
    if network.nodes != network.compute_count:
        switches = f"{network.nodes - network.compute_count} switches"
        raise InvalidInput(
            "trees cannot be packed into a network with switches: {}", switches, "remove the switches first"
        )
    largest = int(network.capacity.max(initial=0)) * len(network.capacity)
    supply = int(network.supply.max(initial=0)) * network.nodes
    if max(largest, supply) >= LARGEST_AMOUNT:
        rule = f"capacities and supplies, the largest times their number, must be below {LARGEST_AMOUNT}"
        raise InvalidInput(rule, max(largest, supply), "choose a smaller k")
    if first is not None:
        return _packed(network, first, seed, rollbacks)
    if (trees := hypercube_trees(network)) is not None:
        return trees
    nothing = no_trees(network.nodes)
    layers = nothing if objective == "trees" else layered_trees(network, transversal, MOST_WORK)
    packings = [_packed(network, layers, seed, rollbacks)] if len(layers) else []
    if packings and objective == "height" and len(packings[0]) == len(layers):
        return packings[0]
    tries = _tries(network)
    late = objective == "height" and network.nodes * len(network.src) > MOST_WORK
    packings += [_packed(network, nothing, seed * tries + number, rollbacks, late) for number in range(tries)]
    return min(packings, key=lambda trees: objective_key(network, trees, objective))


def _tries(network: ForestNetwork) -> int:
    """Return how many orders of the roots to try: several on small networks, because packing is fast there."""
    return max(1, min(_MOST_TRIES, _WORK_OF_TRIES // (network.nodes * max(1, len(network.src)))))


def _packed(network: ForestNetwork, first: Trees, seed: int, rollbacks: int, late: bool = False) -> Trees:
    """Return a packing that includes those trees of `first` that leave enough capacity for all other trees.

    late: whether to try layered trees when growing trees becomes slow, and to use them if they are a complete packing
    """
    order = np.argsort(splitmix(np.arange(network.nodes) + seed * network.nodes)).astype(np.int32)
    packing = _Packing(network, order)
    index = np.empty(len(packing.arcs.name) + 1, dtype=np.int32)
    index[packing.arcs.name], index[-1] = np.arange(len(packing.arcs.name)), -1
    packing.add(Trees(first.root, first.weight, index[first.parent_arc]))
    while packing.supply.any():
        if late and packing.is_slow:
            late, layers = False, layered_trees(network, most_work=MOST_LATE_WORK)
            if layers.weight.sum() == network.supply.sum():
                return _packed(network, layers, seed, rollbacks)
        if packing.rollbacks < rollbacks:
            packing.add_batch()
        # On small networks, the exact algorithm is fast, and makes fewer trees because these have weights.
        elif _tries(network) > 1 or not packing.add_all_of_one_root():
            packing.add_exactly()
    trees = joined_trees(packing.parts)
    by_root = np.argsort(trees.root, kind="stable")
    names = np.append(packing.arcs.name, np.int32(-1))
    return Trees(trees.root[by_root], trees.weight[by_root], names[trees.parent_arc[by_root]])


class _Packing:
    """A packing in progress: the trees that are kept, the remaining capacity, and the known cuts.

    parts:            trees that are kept
    capacity, supply: capacity and supply that remain after these trees; arcs are numbered as in `arcs`
    sides:            bool[cuts, nodes], source sides of the known cuts
    order:            order in which nodes become roots
    batch:            number of roots for which trees are grown at a time
    rollbacks:        number of consecutive batches without a usable tree
    is_slow:          whether the batch size was reduced at any time because too few trees of a batch were usable
    """

    def __init__(self, network: ForestNetwork, order: Ranks) -> None:
        self.nodes = network.nodes
        name = np.lexsort((network.src, -network.capacity, network.dst))
        src, dst, capacity = network.src[name], network.dst[name], network.capacity[name]
        rows, best = np.arange(network.nodes + 1), np.zeros(network.nodes, dtype=np.int64)
        np.maximum.at(best, dst, capacity)
        scarce = capacity < best[dst] // _SCARCE
        thin = np.zeros(network.nodes, dtype=np.bool_)
        thin[dst[scarce]] = True
        awaited = thin[dst] & ~scarce
        by_tail = np.lexsort((dst, ~awaited, src))
        tail_offsets, head_offsets = np.searchsorted(src[by_tail], rows), np.searchsorted(dst, rows)
        plenty = np.bincount(src[awaited], minlength=network.nodes)
        self.arcs = ArcTable(
            name.astype(np.int32), src, dst, capacity, by_tail, tail_offsets, plenty, head_offsets, scarce
        )
        self.capacity, self.supply = self.arcs.capacity.copy(), network.supply.copy()
        self.sides = np.zeros((0, network.nodes), dtype=np.bool_)
        self.order = order
        self.batch = network.nodes
        self.rollbacks = 0
        self.is_slow = False
        self.parts: list[Trees] = []
        alone = np.eye(network.nodes, dtype=np.bool_)[: network.nodes if network.nodes > 1 else 0]
        self._learn(alone[self._room(self.sides).node_slack[: len(alone)] < 0])

    def add(self, trees: Trees) -> None:
        """Add each of `trees`, in order, unless it leaves too little capacity for the trees that are still needed."""
        self._keep(no_trees(self.nodes))
        while len(trees):
            sound = self._feasible(trees)
            self._keep(sound)
            rest = slice(len(sound) + 1, None)
            trees = Trees(trees.root[rest], trees.weight[rest], trees.parent_arc[rest])

    def add_batch(self) -> None:
        """Grow a batch of trees within the known cuts and keep the longest prefix that leaves enough capacity."""
        roots = self.order[self.supply[self.order] > 0][: self.batch]
        room, rows = self._room(self.sides), len(roots) + _SPARE_ROWS
        tables, count = [no_trees(self.nodes)], rows
        while count == rows:
            root, weight = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.int64)
            parent_arc = np.empty((rows, self.nodes), dtype=np.int32)
            count = native.grow_trees(self.arcs, room, roots, root, weight, parent_arc)
            tables.append(Trees(root[:count], weight[:count], parent_arc[:count]))
        grown = joined_trees(tables)
        sound = self._feasible(grown)
        self._keep(sound)
        if len(sound) == len(grown) and not room.supply[roots].any():
            self.batch *= 2
        else:
            smaller = max(1, min(self.batch, 2 * len(sound)))
            self.is_slow |= smaller < self.batch
            self.batch = smaller
        self.rollbacks = 0 if len(sound) else self.rollbacks + 1

    def add_all_of_one_root(self) -> bool:
        """Grow all remaining trees arc by arc, breadth first, if they have the same root. Return whether that worked.

        A tree may use an arc if enough disjoint paths from the root to the arc's head remain: one for each later tree.
        Such an arc out of an incomplete tree always exists (Lovász' proof of Edmonds' theorem), so no step is ever
        undone. A rejected arc would be rejected again, so each tree tries an arc only once. In the worst case O(trees^2
        * arcs^2), usually O(trees^2 * nodes * arcs).
        """
        roots = np.flatnonzero(self.supply)
        count = int(self.supply[roots[0]])
        if len(roots) != 1 or count**2 * len(self.supply) * len(self.capacity) > MAX_ROOTED_WORK:
            return False
        parent_arc = np.full((count, self.nodes), -1, dtype=np.int32)
        if not native.grow_rooted_trees(self.arcs, self.capacity.copy(), int(roots[0]), parent_arc):
            return False
        self._keep(Trees(np.repeat(roots, count).astype(np.int32), np.ones(count, dtype=np.int64), parent_arc))
        return True

    def add_exactly(self) -> None:
        """Grow one tree to all nodes. Backtrack if too little capacity remains for the trees that are still needed."""
        root = int(self.order[self.supply[self.order] > 0][0])
        weight, path = int(self.supply[root]), np.empty(0, dtype=np.int32)
        order, parent_arc = np.empty((2, self.nodes), dtype=np.int32)
        while len(path) < self.nodes - 1:
            weight, reached = native.continue_tree(
                self.arcs, self._room(self.sides), root, weight, path, order, parent_arc
            )
            path = self._feasible_path(root, weight, parent_arc[order[1:reached]])
        whole = np.full(self.nodes, -1, dtype=np.int32)
        whole[self.arcs.heads[path]] = path
        self._keep(Trees(np.array([root], dtype=np.int32), np.array([weight]), whole[None]))
        self.rollbacks = 0

    def _room(self, sides: Flags) -> ResidualNetwork:
        arcs, members = self.arcs, members_of(sides)
        leaving = np.zeros(self.nodes, dtype=np.int64)
        np.add.at(leaving, arcs.tails, self.capacity)
        slack = native.cut_slacks(len(sides), members, arcs.tails, arcs.heads, self.capacity, self.supply)
        return ResidualNetwork(self.capacity.copy(), self.supply.copy(), leaving - self.supply, slack, members)

    def _feasible(self, trees: Trees) -> Trees:
        """Add violated cuts to `sides`, and return the longest prefix of `trees` that leaves capacity for the rest."""
        arcs, all_nodes = self.arcs, np.ones(self.nodes, dtype=np.bool_)
        while len(trees):
            capacity, supply = self._residual_after(trees)
            if not supply.any():
                break
            sinks = violated_cuts(arcs.tails, arcs.heads, capacity, supply, all_nodes, _CUTS_PER_TEST)
            if not len(sinks):
                break
            cuts = self._learn(~sinks)
            count = native.feasible_trees(
                cuts.members, cuts.cut_slack, arcs.tails, trees.root, trees.weight, trees.parent_arc
            )
            trees = Trees(trees.root[:count], trees.weight[:count], trees.parent_arc[:count])
        return trees

    def _feasible_path(self, root: int, weight: int, path: Ranks) -> Ranks:
        """Add violated cuts to `sides`, and return the longest prefix of `path` that leaves capacity for other trees.

        `weight` equal unfinished trees of `root` use the arcs in `path`. The set R of nodes that they have reached is
        treated as an additional source node, which supplies up to `weight` to each node in R. A cut with R on its
        source side also has the additional node there (bandwidth-optimal pipeline, theorem 12).
        """
        arcs, nodes = self.arcs, self.nodes
        tails = np.append(arcs.tails, np.full(nodes, nodes, dtype=np.int32))
        heads = np.append(arcs.heads, np.arange(nodes, dtype=np.int32))
        supply = np.append(self.supply, weight)
        supply[root] -= weight
        while True:
            left, gives = self.capacity.copy(), np.zeros(nodes, dtype=np.int64)
            left[path] -= weight
            gives[arcs.heads[path]] = gives[root] = weight
            amounts = np.concatenate([left, gives])
            sinks = violated_cuts(tails, heads, amounts, supply, np.arange(nodes + 1) < nodes, _CUTS_PER_TEST)
            if not len(sinks):
                return path
            cuts = self._learn(~sinks[:, :nodes])
            count = native.feasible_arcs(cuts.members, cuts.cut_slack, arcs.tails, arcs.heads, path, root, weight)
            path = path[:count]

    def _learn(self, sides: Flags) -> ResidualNetwork:
        """Add known cuts; return the residual network with their slacks. Raises CheckFailed if a cut is violated."""
        room = self._room(sides)
        if room.cut_slack.min(initial=0) < 0:
            worst = int(room.cut_slack.argmin())
            inside = np.flatnonzero(sides[worst]).tolist()
            value = f"{-room.cut_slack[worst]} more than the capacity out of nodes {inside}"
            raise CheckFailed(
                "more trees start in a set of nodes than can leave it: {}",
                value,
                "use a smaller k or larger capacities",
            )
        self.sides = np.concatenate([self.sides, sides])
        return room

    def _residual_after(self, trees: Trees) -> tuple[Integers, Integers]:
        capacity, supply = self.capacity.copy(), self.supply.copy()
        is_arc = trees.parent_arc >= 0
        np.subtract.at(supply, trees.root, trees.weight)
        np.subtract.at(capacity, trees.parent_arc[is_arc], np.repeat(trees.weight, is_arc.sum(axis=1)))
        return capacity, supply

    def _keep(self, trees: Trees) -> None:
        self.capacity, self.supply = self._residual_after(trees)
        self.parts.append(trees)
