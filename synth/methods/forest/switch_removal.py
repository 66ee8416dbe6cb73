"""Removes switches without loss of bandwidth: all switches of a fabric together or, if that fails, in stages.

Splitting off replaces a path through switches with a single arc between its ends, and records the path. The algorithm
of the bandwidth-optimal pipeline paper (theorems 7 and 8) splits off one pair of arcs at a time, after 2 N maximum
flows. Here, all pairs in a fabric are proposed together, and one run of the oracle (a maximum-flow test) tests all
cuts. Violated cuts constrain the next proposal. After a few failures, the longest feasible prefix of the proposal is
kept. By theorem 7, some pair can always be split off as long as every switch has as much capacity in as out, so the
final network can carry as many trees as the original one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork, carries_all_trees, members_of, narrow_cuts
from chorale.synth.methods.forest.switch_groups import SwitchGroups, clusters_below, fabrics, levels, switch_groups_of

Sets = NDArray[np.bool_]
"""bool[cuts, nodes]: for each cut, whether each node is on its sink side."""
PATIENCE = 8
"""After this number of infeasible proposals, the longest feasible prefix of the last one is used."""
FABRIC_ROUNDS = 32
_CUTS_PER_CALL = 512


class PathPieces(NamedTuple):
    """The capacity of each arc, divided into pieces. All units of a piece take the same path in the original network.

    offsets: int64[arcs + 1]: arc a has the pieces `offsets[a]` to `offsets[a + 1] - 1`
    amount:  int64 per piece: units of capacity; the pieces of an arc add up to the arc's capacity
    start, length: int64 per piece: its path is `hops[start : start + length]`
    hops:    int32: arcs of the original network; those of each path are in travel order
    """

    offsets: NDArray[np.int64]
    amount: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    hops: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class SplitNetwork:
    """A network in which arcs replace paths through switches, and the paths in the original network for each arc.

    No path visits a node twice. On each arc of `original`, all pieces together use at most the arc's capacity.
    """

    original: ForestNetwork
    network: ForestNetwork
    pieces: PathPieces

    @staticmethod
    def of(network: ForestNetwork) -> SplitNetwork:
        """Return a SplitNetwork for `network` in which nothing is split off: every arc is a single piece."""
        arcs = len(network.src)
        ones = np.ones(arcs, dtype=np.int64)
        each = np.arange(arcs + 1, dtype=np.int64)
        return SplitNetwork(
            network, network, PathPieces(each, network.capacity.copy(), each[:-1], ones, each[:-1].astype(np.int32))
        )


class Splits(NamedTuple):
    """Split i moves `amount[i]` units from path `arcs[offsets[i]:offsets[i + 1]]` to an arc between the path's ends.

    If both ends are the same node, the units are dropped.
    """

    amount: Integers
    offsets: Integers
    arcs: Integers

    def first(self, count: int) -> Splits:
        return Splits(self.amount[:count], self.offsets[: count + 1], self.arcs[: self.offsets[count]])


def network_after(network: ForestNetwork, splits: Splits) -> ForestNetwork:
    """Return the network with its capacities after `splits`, without recording paths. O(arcs log arcs)."""
    left = network.capacity.copy()
    np.subtract.at(left, splits.arcs, np.repeat(splits.amount, np.diff(splits.offsets)))
    src, dst = _ends(network, splits)
    stays, real = left > 0, src != dst
    keys = np.concatenate([network.dst[stays], dst[real]]).astype(np.int64) * network.nodes
    keys += np.concatenate([network.src[stays], src[real]])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    amount = np.concatenate([left[stays], splits.amount[real]])[order]
    capacity = np.add.reduceat(amount, first) if len(first) else np.zeros(0, dtype=np.int64)
    new_dst, new_src = np.divmod(keys[first], network.nodes)
    ends = new_src.astype(np.int32), new_dst.astype(np.int32)
    return ForestNetwork(network.compute_count, network.nodes, *ends, capacity, network.supply)


def split_off(split: SplitNetwork, splits: Splits) -> SplitNetwork:
    """Return `split` after applying `splits`. Units are taken from each arc's first pieces. O(pieces log pieces)."""
    network, pieces = split.network, split.pieces
    after = network_after(network, splits)
    left = pieces.amount.copy()
    original = split.original
    of_split, *new, hops = native.join_pieces(pieces, left, splits, original.src, original.dst, original.nodes)
    src, dst = _ends(network, splits)
    stays = left > 0
    owner = np.repeat(np.arange(len(network.src)), np.diff(pieces.offsets))[stays]
    from_node = np.concatenate([network.src[owner], src[of_split]])
    to_node = np.concatenate([network.dst[owner], dst[of_split]])
    keys = after.dst.astype(np.int64) * after.nodes + after.src
    arc = np.searchsorted(keys, to_node.astype(np.int64) * after.nodes + from_node)
    order = np.argsort(arc, kind="stable")
    amount, start, length = (
        np.concatenate([old[stays], fresh])[order]
        for old, fresh in zip((left, pieces.start, pieces.length), new, strict=True)
    )
    offsets = np.searchsorted(arc[order], np.arange(len(after.src) + 1)).astype(np.int64)
    return SplitNetwork(original, after, PathPieces(offsets, amount, start, length, hops))


def without_switches(split: SplitNetwork, dropped: NDArray[np.bool_]) -> SplitNetwork:
    """Return `split` without the arcs at dropped nodes (`dropped` has a flag per node). O(arcs + pieces)."""
    network, pieces = split.network, split.pieces
    stays = ~(dropped[network.src] | dropped[network.dst])
    rest = ForestNetwork(
        network.compute_count, network.nodes, network.src[stays], network.dst[stays], network.capacity[stays],
        network.supply,
    )  # fmt: skip
    counts = np.diff(pieces.offsets)
    kept = np.repeat(stays, counts)
    offsets = np.concatenate([[0], np.cumsum(counts[stays])]).astype(np.int64)
    return SplitNetwork(
        split.original,
        rest,
        PathPieces(offsets, pieces.amount[kept], pieces.start[kept], pieces.length[kept], pieces.hops),
    )


def _ends(network: ForestNetwork, splits: Splits) -> tuple[Ranks, Ranks]:
    return network.src[splits.arcs[splits.offsets[:-1]]], network.dst[splits.arcs[splits.offsets[1:] - 1]]


def remove_switches(network: ForestNetwork, patience: int = PATIENCE, names: Sequence[str] = ()) -> SplitNetwork:
    """Replace the switches of `network` with arcs between ranks. All trees still fit into the resulting network.

    This is always possible if no switch has more capacity out than in. Usually takes one or two runs of the oracle,
    which tests all cuts. Source: bandwidth-optimal pipeline, section 2.2.

    Args:
        network: a network whose cuts can all carry its trees (`carries_all_trees`).
        patience: see `PATIENCE`.
        names: node names, for error messages.

    Raises:
        InvalidInput: if a switch cannot be removed; the message names it.
    """
    removal = _Removal(network, patience)
    rounds = FABRIC_ROUNDS
    while rounds and removal.anything_left() and removal.remove_fabrics():
        rounds -= 1
    while removal.anything_left():
        removal.remove_lowest(names)
    # Only the ranks remain as nodes. The pieces of each arc are sorted by path length.
    network, pieces = removal.split.network, removal.split.pieces
    owner = np.repeat(np.arange(len(network.src)), np.diff(pieces.offsets))
    order = np.lexsort((pieces.length, owner))
    sorted_pieces = PathPieces(
        pieces.offsets, pieces.amount[order], pieces.start[order], pieces.length[order], pieces.hops
    )
    ranks = network.compute_count
    between = ForestNetwork(ranks, ranks, network.src, network.dst, network.capacity, network.supply[:ranks])
    return SplitNetwork(removal.split.original, between, sorted_pieces)


class _Removal:
    """State of `remove_switches`: the switches that are left, and the known cuts.

    level: for each node, its hop count from the nearest rank in the original network
    sets:  sink sides of the cuts that are known so far
    """

    def __init__(self, network: ForestNetwork, patience: int) -> None:
        self.split, self.level, self.patience = SplitNetwork.of(network), levels(network), patience
        self.sets = np.zeros((0, network.nodes), dtype=np.bool_)

    def anything_left(self) -> bool:
        """Drop the switches that no tree can use, or all switches if none is needed. Return whether any are left."""
        network = self.split.network
        while True:
            entered, left = np.zeros(network.nodes, dtype=np.bool_), np.zeros(network.nodes, dtype=np.bool_)
            entered[network.dst], left[network.src] = True, True
            useless = entered ^ left  # nodes with only incoming or only outgoing arcs
            useless[: network.compute_count] = False
            if not useless.any():
                break
            self.split = without_switches(self.split, useless)
            network = self.split.network
        if not _used_switches(network).any():
            return False
        bare = without_switches(self.split, np.arange(network.nodes) >= network.compute_count)
        if carries_all_trees(bare.network):
            self.split = bare
            return False
        return True

    def remove_fabrics(self) -> bool:
        """Replace paths through connected components of switches with arcs. Return False if that makes no progress."""
        network = self.split.network
        group = fabrics(network)
        groups = switch_groups_of(network, group, *clusters_below(network, group, self.level))
        return self._advance(groups, whole_fabrics=True)

    def remove_lowest(self, names: Sequence[str]) -> None:
        """Remove switches that are nearest to ranks and not linked to each other. Raises InvalidInput if that fails."""
        network = self.split.network
        used = _used_switches(network)
        lowest = self.level[used].min()
        # Choose a maximal set of candidates without arcs between them, those with the lowest numbers first.
        candidates = used & (self.level == lowest)
        chosen = candidates.copy()
        both = candidates[network.src] & candidates[network.dst]
        ends = np.sort(np.stack([network.src[both], network.dst[both]], axis=1), axis=1)
        for smaller, larger in ends[np.argsort(ends[:, 1], kind="stable")].tolist():
            if chosen[smaller]:
                chosen[larger] = False
        group = np.where(chosen, np.cumsum(chosen) - 1, -1).astype(np.int32)
        is_upper = (self.level >= lowest).astype(np.int32)[None, :]
        groups = switch_groups_of(network, group, is_upper, np.zeros(int(chosen.sum()), dtype=np.int64))
        if not self._advance(groups, whole_fabrics=False):
            switch = int(np.flatnonzero(chosen)[0])
            entering = int(network.capacity[network.dst == switch].sum())
            leaving = int(network.capacity[network.src == switch].sum())
            name = names[switch] if names else f"number {switch}"
            rule = "a switch that cannot copy sends more than it receives: {}"
            value = f"switch {name}, with {entering} trees in and {leaving} trees out left to join"
            raise InvalidInput(rule, value, "balance its links, or choose another k")

    def _advance(self, groups: SwitchGroups, whole_fabrics: bool) -> bool:
        """Replace paths through `groups` with arcs. Return False if no path is replaced and no new cut is found."""
        network, known = self.split.network, len(self.sets)
        for _ in range(self.patience):
            src, dst, capacity, supply = network.src, network.dst, network.capacity, network.supply
            # slack: amount by which the capacity into the sink side of each cut may decrease
            slack = [int(capacity[~inside[src] & inside[dst]].sum() - supply[~inside].sum()) for inside in self.sets]
            cuts = members_of(self.sets), np.array(slack, dtype=np.int64)
            splits = Splits(*native.propose(groups, src, dst, capacity, cuts, whole_fabrics, not whole_fabrics))
            if len(splits.amount) == 0:
                return False
            if self._is_feasible(splits):
                self.split = split_off(self.split, splits)
                return True
        low, high = 0, len(splits.amount)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_feasible(splits.first(middle)) else (low, middle)
        self.split = split_off(self.split, splits.first(low))
        return low > 0 or len(self.sets) > known

    def _is_feasible(self, splits: Splits) -> bool:
        """Return whether all cuts can still carry their trees after `splits`. If not, add violated cuts to `sets`."""
        broken = narrow_cuts(network_after(self.split.network, splits), _CUTS_PER_CALL)
        both = np.concatenate([self.sets, broken])
        self.sets, _ = np.unique(both, return_index=True, axis=0)  # without the index NumPy would import numpy.ma
        return len(broken) == 0


def _used_switches(network: ForestNetwork) -> NDArray[np.bool_]:
    used = np.zeros(network.nodes, dtype=np.bool_)
    used[network.src] = used[network.dst] = True
    used[: network.compute_count] = False
    return used
