"""Removes switches without loss: a complete fabric at a time with one test, or switch by switch if that fails.

Theorems 7 and 8 of the bandwidth-optimal pipeline paper split off one pair of arcs at a time, after 2 N maximum flows.
Here, all pairs in a fabric are proposed together, and one run of the oracle tests all cuts. Violated cuts constrain the
next proposal, and after a few failures the longest feasible prefix is kept. By theorem 7, some pair is always possible
as long as all switches have as much capacity in as out, so the final network has room for as many trees. Switches with
two neighbours are removed first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork, carries_all_trees, narrow_cuts
from chorale.synth.methods.forest.split.splitting_off import (
    PathPieces,
    Sets,
    SplitNetwork,
    Splits,
    cut_table,
    network_after,
    split_off,
    without_switches,
)
from chorale.synth.methods.forest.split.switch_groups import (
    SwitchGroups,
    clusters_below,
    fabrics,
    levels,
    switch_groups_of,
)

Flags = NDArray[np.bool_]


def series_switches(network: ForestNetwork) -> tuple[Flags, Splits]:
    """Return (flags of switches that have at most two neighbours, splits after which these switches can be dropped).

    No cut between the other nodes gets smaller, because a switch forwards at most the smaller of both capacities. If
    two such switches are neighbours, the higher-numbered switch is left for the next call. O(arcs log arcs).
    """
    first, last = _outer_neighbours(network)
    # Narrow: a switch with arcs, but without neighbours other than `first` and `last`.
    wide = np.zeros(network.nodes, dtype=bool)
    for node, other in ((network.src, network.dst), (network.dst, network.src)):
        wide[node[(other != first[node]) & (other != last[node])]] = True
    used = np.zeros(network.nodes, dtype=bool)
    used[network.src] = used[network.dst] = True
    narrow = used & ~wide & (np.arange(network.nodes) >= network.compute_count)
    chosen = narrow.copy()
    for neighbour in (first, last):
        switch = np.flatnonzero(narrow)
        beside = neighbour[switch]
        waits = narrow[beside] & (beside < switch)
        chosen[switch[waits]] = False
    return chosen, _through(network, chosen, first + last)


def _outer_neighbours(network: ForestNetwork) -> tuple[Integers, Integers]:
    """Return the lowest- and highest-numbered neighbour of each node, in either direction; the node itself if alone."""
    first = np.arange(network.nodes, dtype=np.int64)
    last = first.copy()
    nodes, others = np.concatenate([network.src, network.dst]), np.concatenate([network.dst, network.src])
    alone = np.ones(network.nodes, dtype=bool)
    alone[nodes] = False
    first[~alone], last[~alone] = network.nodes, -1
    np.minimum.at(first, nodes, others)
    np.maximum.at(last, nodes, others)
    return first, last


def _through(network: ForestNetwork, chosen: Flags, ends: Integers) -> Splits:
    """Return the splits between the neighbours of each chosen switch, whose numbers add up to `ends[switch]`."""
    keys = network.dst.astype(np.int64) * network.nodes + network.src
    entry = np.flatnonzero(chosen[network.dst])
    switch = network.dst[entry]
    wanted = (ends[switch] - network.src[entry]) * network.nodes + switch
    leave = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    real = (keys[leave] == wanted) & (network.src[entry] != network.dst[leave])
    pairs = np.stack([entry[real], leave[real]], axis=1)
    offsets = 2 * np.arange(len(pairs) + 1, dtype=np.int64)
    return Splits(network.capacity[pairs].min(axis=1), offsets, pairs.ravel())


PATIENCE = 8
"""After this number of infeasible proposals, the longest feasible prefix is used."""

FABRIC_ROUNDS = 32
_CUTS_PER_CALL = 512


def remove_switches(network: ForestNetwork, patience: int = PATIENCE, names: Sequence[str] = ()) -> SplitNetwork:
    """Return `network` with arcs between ranks instead of switches, into which all trees still fit.

    This is always possible if no switch has more capacity out than in. Usually takes one or two runs of the oracle,
    which tests all cuts. Source: bandwidth-optimal pipeline, section 2.2.
    Args:
        network: a network whose cuts can all carry its trees (`carries_all_trees`).
        patience: see `PATIENCE`.
        names: node names, for error messages.

    Raises:
        InvalidInput: if a switch cannot be removed; the message names it.
    """
    removal = _Removal(SplitNetwork.of(network), levels(network), patience)
    removal.remove_series()
    removal.remove_fabrics()
    while removal.anything_left():
        removal.remove_lowest(names)
    return _between_ranks(removal.split)


@dataclass(slots=True)
class _Removal:
    """State of the removal of switches.

    level: each node's hops from the nearest rank in the original network
    sets:  sink sides of the cuts that are known so far
    """

    split: SplitNetwork
    level: Integers
    patience: int
    sets: Sets = field(init=False)

    def __post_init__(self) -> None:
        self.sets = np.zeros((0, self.split.network.nodes), dtype=np.bool_)

    def anything_left(self) -> bool:
        """Drop switches that no tree can use, or all if they are not needed. Return whether switches are left."""
        network = self.split.network
        while (useless := _blind_switches(network)).any():
            self.split = without_switches(self.split, useless)
            network = self.split.network
        if not _used_switches(network).any():
            return False
        bare = without_switches(self.split, np.arange(network.nodes) >= network.compute_count)
        if carries_all_trees(bare.network):
            self.split = bare
            return False
        return True

    def remove_series(self) -> None:
        chosen, splits = series_switches(self.split.network)
        while chosen.any():
            self.split = without_switches(split_off(self.split, splits), chosen)
            chosen, splits = series_switches(self.split.network)

    def remove_fabrics(self) -> None:
        for _ in range(FABRIC_ROUNDS):
            if not self.anything_left():
                return
            network = self.split.network
            group = fabrics(network)
            groups = switch_groups_of(network, group, *clusters_below(network, group, self.level))
            if not self._advance(groups, whole_fabrics=True):
                return

    def remove_lowest(self, names: Sequence[str]) -> None:
        """Remove a maximal set of the lowest switches without arcs between them. Raises InvalidInput if that fails."""
        network = self.split.network
        used = _used_switches(network)
        lowest = self.level[used].min()
        # Choose a maximal set of candidates without common arcs, lowest-numbered first.
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
        """Split off arcs at `groups`. Return False if known cuts forbid every split or if no new cuts are found."""
        network, known = self.split.network, len(self.sets)
        for _ in range(self.patience):
            cuts = cut_table(network, self.sets)
            arcs = (network.src, network.dst, network.capacity)
            splits = Splits(*native.propose(groups, *arcs, cuts, whole_fabrics, not whole_fabrics))
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
        """Return whether all cuts remain wide enough after `splits`. Violated cuts are added to `sets`."""
        broken = narrow_cuts(network_after(self.split.network, splits), _CUTS_PER_CALL)
        both = np.concatenate([self.sets, broken])
        self.sets, _ = np.unique(both, return_index=True, axis=0)  # without the index NumPy would import numpy.ma
        return len(broken) == 0


def _used_switches(network: ForestNetwork) -> NDArray[np.bool_]:
    used = np.zeros(network.nodes, dtype=np.bool_)
    used[network.src] = used[network.dst] = True
    used[: network.compute_count] = False
    return used


def _blind_switches(network: ForestNetwork) -> NDArray[np.bool_]:
    """Return flags of switches with only incoming or only outgoing arcs, which no tree can use."""
    entered, left = np.zeros(network.nodes, dtype=np.bool_), np.zeros(network.nodes, dtype=np.bool_)
    entered[network.dst], left[network.src] = True, True
    blind = entered ^ left
    blind[: network.compute_count] = False
    return blind


def _between_ranks(split: SplitNetwork) -> SplitNetwork:
    """Return `split` with only the ranks as nodes, and with the pieces of each arc sorted by path length."""
    network, pieces = split.network, split.pieces
    owner = np.repeat(np.arange(len(network.src)), np.diff(pieces.offsets))
    order = np.lexsort((pieces.length, owner))
    sorted_pieces = PathPieces(
        pieces.offsets, pieces.amount[order], pieces.start[order], pieces.length[order], pieces.hops
    )
    ranks = network.compute_count
    between = ForestNetwork(ranks, ranks, network.src, network.dst, network.capacity, network.supply[:ranks])
    return SplitNetwork(split.original, between, sorted_pieces)
