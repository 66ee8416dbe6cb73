"""Optimal tree packing: spanning trees that use up the supply of every root within the capacity of every arc.

Trees are grown in batches under the cuts known so far; one run of the oracle then finds the cuts that a batch violates,
and the part of the batch that violates none is kept. Where this goes on failing for a root, one tree is grown with a
test after every step back: the exact algorithm of Bérczi and Frank (bandwidth-optimal pipeline, section 2.3). Where one
root is left in a large network, its trees are grown arc by arc (`chorale.synth.methods.forest.rooted_trees`). Trees
that are kept leave enough for all that are to come, so that packing always ends. A portfolio takes the best of many
seeds.
"""

import numpy as np

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Flags, Integers, Ranks
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.layered import MOST_LATE_WORK, MOST_WORK, layered_trees, shuffled_order
from chorale.synth.methods.forest.network import ForestNetwork, Trees, joined_trees, no_trees, objective_key
from chorale.synth.methods.forest.residual_network import (
    CutOracle,
    ResidualNetwork,
    arc_table_of,
    residual_network_of,
)
from chorale.synth.methods.forest.rooted_trees import hypercube_trees, rooted_trees
from chorale.synth.methods.method import Objective, SynthesisTask
from chorale.synth.topology.translations import Transversal

ROLLBACKS = 3
"""How often in a row no tree of a batch may be kept before one tree is grown exactly."""

_SPARE_ROWS = 64
_MOST_TRIES = 8
_WORK_OF_TRIES = 2**20


def pack_trees(
    network: ForestNetwork,
    objective: Objective = "height",
    seed: int = 0,
    *,
    transversal: Transversal | None = None,
    first: Trees | None = None,
    rollbacks: int = ROLLBACKS,
) -> Trees:
    """Return spanning out-trees of `network`: weights of a root add up to its supply, loads stay within capacities.

    objective:   what to prefer among such packings (`objective_key`); none is promised to be best
    seed:        at least 0, shuffles the order of the roots
    transversal: known symmetries of the nodes, if any
    first:       trees to keep as far as they leave enough for the others; they fit side by side

    Trees come in the order of their roots. Every choice of them is exact and optimal. Those of one root of a hypercube
    have a closed form (`chorale.synth.methods.forest.rooted_trees`). Else low trees are tried for by layers on
    networks that are not too large (`chorale.synth.methods.forest.layered`), and completed or else grown freely. Same
    arguments, same trees. Polynomial; mostly O(trees * nodes) and a few tests of all cuts. Raises InvalidInput for
    switches and for amounts that would leave 64 bits, and CheckFailed with a cut where no such trees exist.
    """
    if network.nodes != network.compute_count:
        switches = f"{network.nodes - network.compute_count} switches"
        raise InvalidInput("trees are packed into networks without switches", switches, "remove the switches first")
    largest = int(network.capacity.max(initial=0)) * len(network.capacity)
    supply = int(network.supply.max(initial=0)) * network.nodes
    if max(largest, supply) >= LARGEST_AMOUNT:
        rule = f"capacities and supplies, the largest times how many there are, stay below {LARGEST_AMOUNT}"
        raise InvalidInput(rule, max(largest, supply), "choose a smaller k")
    if first is not None:
        return _packed(network, first, seed, rollbacks)
    if (trees := hypercube_trees(network)) is not None:
        return trees
    layers = no_trees(network.nodes) if objective == "trees" else layered_trees(network, transversal, MOST_WORK)
    packings = [_packed(network, layers, seed, rollbacks)] if len(layers) else []
    if packings and objective == "height" and len(packings[0]) == len(layers):
        return packings[0]
    tries = _tries(network)
    late = objective == "height" and network.nodes * len(network.src) > MOST_WORK
    packings += [_packed(network, no_trees(network.nodes), seed * tries + n, rollbacks, late) for n in range(tries)]
    return min(packings, key=lambda trees: objective_key(network, trees, objective))


def _tries(network: ForestNetwork) -> int:
    """Return how many orders of the roots to try: several on small networks, where that takes no time."""
    return max(1, min(_MOST_TRIES, _WORK_OF_TRIES // (network.nodes * max(1, len(network.src)))))


def _packed(network: ForestNetwork, first: Trees, seed: int, rollbacks: int, late: bool = False) -> Trees:
    """Return a packing that begins with those of `first` that leave enough.

    late: whether trees by layers, if they are a whole packing, are taken once growing has become slow
    """
    packing = _Packing(network, shuffled_order(network.nodes, seed))
    place = np.empty(len(packing.arcs.name) + 1, dtype=np.int32)
    place[packing.arcs.name], place[-1] = np.arange(len(packing.arcs.name)), -1
    packing.add(Trees(first.root, first.weight, place[first.parent_arc]))
    while packing.supply.any():
        if late and packing.is_slow:
            late, layers = False, layered_trees(network, most_work=MOST_LATE_WORK)
            if layers.weight.sum() == network.supply.sum():
                return _packed(network, layers, seed, rollbacks)
        if packing.rollbacks >= rollbacks:
            is_small = _tries(network) > 1  # growing exactly is fast there, and its trees have weights
            if is_small or not packing.add_all_of_one_root():
                packing.add_exactly()
        else:
            packing.add_batch()
    trees = joined_trees(packing.parts)
    by_root = np.argsort(trees.root, kind="stable")
    names = np.append(packing.arcs.name, np.int32(-1))
    return Trees(trees.root[by_root], trees.weight[by_root], names[trees.parent_arc[by_root]])


class _Packing:
    """Trees that are kept, what they leave, and the cuts that were learned.

    capacity, supply: what the trees in `parts` leave; arcs are counted as in `arcs`
    sides:            bool[cuts, nodes], source sides of the known cuts
    order:            nodes in the order in which they become roots
    batch:            how many roots to grow trees for at a time
    rollbacks:        how many batches in a row kept no tree
    is_slow:          whether a batch kept so few trees that the next ones are smaller
    """

    def __init__(self, network: ForestNetwork, order: Ranks) -> None:
        self.nodes = network.nodes
        self.arcs = arc_table_of(network)
        self.certifier = CutOracle(self.arcs, network.nodes)
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
        """Keep those of `trees` that leave enough, one after the other."""
        self._keep(no_trees(self.nodes))
        while len(trees):
            sound = self._feasible(trees)
            self._keep(sound)
            rest = slice(len(sound) + 1, None)
            trees = Trees(trees.root[rest], trees.weight[rest], trees.parent_arc[rest])

    def add_batch(self) -> None:
        """Grow a batch of trees, keep those from the first on that leave enough."""
        roots = self.order[self.supply[self.order] > 0][: self.batch]
        grown, stuck = self._grow(roots)
        sound = self._feasible(grown)
        self._keep(sound)
        if len(sound) == len(grown) and not stuck:
            self.batch *= 2
        else:
            smaller = max(1, min(self.batch, 2 * len(sound)))
            self.is_slow |= smaller < self.batch
            self.batch = smaller
        self.rollbacks = 0 if len(sound) else self.rollbacks + 1

    def add_all_of_one_root(self) -> bool:
        """Grow all trees that are to come, arc by arc, if they have one root; return whether that is done."""
        trees = rooted_trees(self.arcs, self.capacity, self.supply)
        if trees is not None:
            self._keep(trees)
        return trees is not None

    def add_exactly(self) -> None:
        """Grow one tree, keeping what of it leaves enough, until it spans all nodes."""
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
        return residual_network_of(self.arcs, self.capacity, self.supply, sides)

    def _grow(self, roots: Ranks) -> tuple[Trees, bool]:
        """Return trees of `roots` that keep all known cuts, and whether the next one is stuck."""
        room, rows = self._room(self.sides), len(roots) + _SPARE_ROWS
        tables, count = [no_trees(self.nodes)], rows
        while count == rows:
            root, weight = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.int64)
            parent_arc = np.empty((rows, self.nodes), dtype=np.int32)
            count = native.grow_trees(self.arcs, room, roots, root, weight, parent_arc)
            tables.append(Trees(root[:count], weight[:count], parent_arc[:count]))
        return joined_trees(tables), bool(room.supply[roots].any())

    def _feasible(self, trees: Trees) -> Trees:
        """Return the first of `trees` that leave enough for the others, as many as the cuts found on the way allow."""
        while len(trees):
            capacity, supply = self._residual_after(trees)
            overdrawn = self.certifier.violated(capacity, supply) if supply.any() else self.sides[:0]
            if not len(overdrawn):
                break
            cuts = self._learn(overdrawn)
            count = native.feasible_trees(
                cuts.members, cuts.cut_slack, self.arcs.tails, trees.root, trees.weight, trees.parent_arc
            )
            trees = Trees(trees.root[:count], trees.weight[:count], trees.parent_arc[:count])
        return trees

    def _feasible_path(self, root: int, weight: int, path: Ranks) -> Ranks:
        """Return the first arcs of `path` that leave enough, as many as the cuts found on the way allow."""
        arcs = self.arcs
        while True:
            overdrawn = self.certifier.violated_by_partial_tree(self.capacity, self.supply, root, weight, path)
            if not len(overdrawn):
                return path
            cuts = self._learn(overdrawn)
            path = path[
                : native.feasible_arcs(cuts.members, cuts.cut_slack, arcs.tails, arcs.heads, path, root, weight)
            ]

    def _learn(self, sides: Flags) -> ResidualNetwork:
        """Add cuts to the known ones; return their room. They hold now, unless no packing exists."""
        room = self._room(sides)
        if room.cut_slack.min(initial=0) < 0:
            worst = int(room.cut_slack.argmin())
            inside = np.flatnonzero(sides[worst]).tolist()
            value = f"{-room.cut_slack[worst]} more than the capacity out of nodes {inside}"
            raise CheckFailed("all trees of a set of nodes can leave it", value, "lower k or raise capacities")
        self.sides = np.concatenate([self.sides, sides])
        return room

    def _residual_after(self, trees: Trees) -> tuple[Integers, Integers]:
        capacity, supply = self.capacity.copy(), self.supply.copy()
        native.take_trees(trees.root, trees.weight, trees.parent_arc, capacity, supply)
        return capacity, supply

    def _keep(self, trees: Trees) -> None:
        self.capacity, self.supply = self._residual_after(trees)
        self.parts.append(trees)


MAX_SEEDS = 10_000


def best_trees(
    task: SynthesisTask, network: ForestNetwork, transversal: Transversal | None = None, first: Trees | None = None
) -> Trees:
    """Return the packing of `network` that suits the objective of `task` best, the first of equals.

    Several seeds are as many tasks of the executor. transversal, first: as for `pack_trees`
    """
    options = task.options
    if not 1 <= options.seeds <= MAX_SEEDS:
        raise InvalidInput(f"there must be 1 to {MAX_SEEDS} seeds", options.seeds, "choose another --seeds")
    if options.seeds == 1:
        return pack_trees(network, options.objective, options.seed, transversal=transversal, first=first)
    seeds = range(options.seed, options.seed + options.seeds)
    packings = task.executor.map(_pack, seeds, (network, options.objective, transversal, first), task.progress)
    return min(packings, key=lambda trees: objective_key(network, trees, options.objective))


def _pack(problem: tuple[ForestNetwork, Objective, Transversal | None, Trees | None], seed: int) -> Trees:
    network, objective, transversal, first = problem
    return pack_trees(network, objective, seed, transversal=transversal, first=first)
