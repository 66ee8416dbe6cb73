"""Splitting off: replaces a path through switches by a single arc between its ends, and records the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork, members_of

Sets = NDArray[np.bool_]
"""bool[sets, nodes]: whether the node is on the sink side of the cut."""


class CutTable(NamedTuple):
    """Cuts for the kernels: sets of nodes and their slack, by which the capacity into the set may decrease.

    sides: uint64[nodes, words]: bit i of a node says whether the node is on the sink side of cut i
    slack: int64 per cut: capacity into the sink side minus the supply outside
    """

    sides: Matrix[np.uint64]
    slack: Integers


def cut_table(network: ForestNetwork, sets: Sets) -> CutTable:
    """Return the cuts whose sink sides are `sets`, and their slack in `network`. O(arcs * sets)."""
    sides = members_of(sets)
    src, dst, capacity, supply = network.src, network.dst, network.capacity, network.supply
    slack = [int(capacity[~inside[src] & inside[dst]].sum() - supply[~inside].sum()) for inside in sets]
    return CutTable(sides, np.array(slack, dtype=np.int64))


class PathPieces(NamedTuple):
    """The capacity of each arc, divided into pieces. All units of a piece take the same path of original arcs.

    offsets: int64[arcs + 1]: arc a has the pieces `offsets[a]` to `offsets[a + 1] - 1`
    amount:  int64 per piece: its units of capacity, which add up to the arc's capacity
    start, length: int64 per piece: its path is `hops[start : start + length]`
    hops:    int32: arcs of the original network, in travel order
    """

    offsets: NDArray[np.int64]
    amount: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    hops: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class SplitNetwork:
    """A network after splitting off arcs at switches, and the paths in the original network for which its arcs stand.

    No path visits a node twice. All pieces together use at most the capacity of each arc in `original`.
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

    def paths(self, arc: int) -> list[tuple[int, list[int]]]:
        """Return the pieces of `arc` as (units of capacity, original arcs in travel order)."""
        amount, start, length, hops = self.pieces[1:]
        own = range(int(self.pieces.offsets[arc]), int(self.pieces.offsets[arc + 1]))
        return [(int(amount[piece]), hops[start[piece] : start[piece] + length[piece]].tolist()) for piece in own]


class Splits(NamedTuple):
    """Split i moves `amount[i]` units from path `arcs[offsets[i]:offsets[i + 1]]` to the arc between the path's ends.

    If both ends are the same node, the units are dropped.
    """

    amount: Integers
    offsets: Integers
    arcs: Integers

    def first(self, count: int) -> Splits:
        return Splits(self.amount[:count], self.offsets[: count + 1], self.arcs[: self.offsets[count]])


def network_after(network: ForestNetwork, splits: Splits) -> ForestNetwork:
    """Return the network with the capacities after `splits`, without tracking paths. O(arcs log arcs)."""
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
    """Return `split` after applying `splits`. Units are taken from an arc's first pieces. O(pieces log pieces)."""
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
    """Return `split` without the arcs at the `dropped` nodes (flags per node). O(arcs + pieces)."""
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
