"""Splitting off: a path through switches gives way to one arc between its ends, which remembers the path.

Cuts learned from the oracle: node sets that may lose no more of the capacity into them than their slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks, amounts_on, residual_graph
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork

MAX_CUTS_PER_CALL = 512
Sets = NDArray[np.bool_]
"""bool[sets, nodes]: sink sides of cuts."""
Bits = NDArray[np.uint64]


def members_of(sides: Sets) -> Bits:
    """Return uint64[nodes, words] for bool[cuts, nodes]: bit i of row v says whether v is in `sides[i]`."""
    cuts, nodes = sides.shape
    words = -(-cuts // 64)
    padded = np.zeros((nodes, words * 64), dtype=np.bool_)
    padded[:, :cuts] = sides.T
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").reshape(nodes, words).astype(np.uint64)


class CutTable(NamedTuple):
    """Cuts as kernels want them.

    sides: uint64[nodes, words]: bit i of a node says whether it is on the sink side of cut i
    slack: int64 per cut: capacity into the sink side beyond the supply outside
    """

    sides: Matrix[np.uint64]
    slack: Integers


def find_violated_cuts(network: ForestNetwork, max_cuts: int = MAX_CUTS_PER_CALL) -> Sets:
    """Return up to `max_cuts` cuts that cannot carry the trees that must cross them; none if and only if all can."""
    graph, half_arcs = residual_graph(network.nodes, network.src, network.dst)
    capacity = amounts_on(graph, half_arcs, network.capacity)
    sinks = np.arange(network.nodes) < network.compute_count
    cuts = np.zeros((max_cuts, network.nodes), dtype=np.bool_)
    found = native.violated_cuts(graph, capacity, network.supply, sinks, np.zeros(network.nodes, dtype=np.bool_), cuts)
    return cuts[:found]


def cut_table(network: ForestNetwork, sets: Sets) -> CutTable:
    """Return the cuts with the sink sides `sets` and their slack in `network`. O(arcs * sets)."""
    sides = members_of(sets)
    src, dst, capacity, supply = network.src, network.dst, network.capacity, network.supply
    slack = [int(capacity[~inside[src] & inside[dst]].sum() - supply[~inside].sum()) for inside in sets]
    return CutTable(sides, np.array(slack, dtype=np.int64))


class PathPieces(NamedTuple):
    """What the capacity of each arc is made of: units that all take the same path of original arcs.

    offsets: int64[arcs + 1]: arc a has the pieces `offsets[a]` to `offsets[a + 1] - 1`
    amount:  int64 per piece: units; they add up to the capacity of the arc
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
    """`network` after some pairs of arcs were split off at switches; `pieces` says what its arcs stand for.

    No path visits a node twice. All pieces together put at most its capacity on every arc of `original`.
    """

    original: ForestNetwork
    network: ForestNetwork
    pieces: PathPieces

    @staticmethod
    def of(network: ForestNetwork) -> SplitNetwork:
        """Return `network` before anything is split off: every arc is its own single piece."""
        arcs = len(network.src)
        ones = np.ones(arcs, dtype=np.int64)
        each = np.arange(arcs + 1, dtype=np.int64)
        return SplitNetwork(
            network, network, PathPieces(each, network.capacity.copy(), each[:-1], ones, each[:-1].astype(np.int32))
        )

    def paths(self, arc: int) -> list[tuple[int, list[int]]]:
        """Return (units, original arcs in travel order) of every piece of `arc`."""
        amount, start, length, hops = self.pieces[1:]
        own = range(int(self.pieces.offsets[arc]), int(self.pieces.offsets[arc + 1]))
        return [(int(amount[piece]), hops[start[piece] : start[piece] + length[piece]].tolist()) for piece in own]


class Splits(NamedTuple):
    """Split i takes `amount[i]` units of every arc in `arcs[offsets[i]:offsets[i + 1]]`, a path, and gives them to
    the arc between its ends. Where the ends are one node, the units are dropped.
    """

    amount: Integers
    offsets: Integers
    arcs: Integers

    def first(self, count: int) -> Splits:
        """Return the first `count` splits."""
        return Splits(self.amount[:count], self.offsets[: count + 1], self.arcs[: self.offsets[count]])


def network_after(network: ForestNetwork, splits: Splits) -> ForestNetwork:
    """Return the capacities that `splits` leave, without looking at paths. O(arcs log arcs)."""
    left = network.capacity.copy()
    np.subtract.at(left, splits.arcs, np.repeat(splits.amount, np.diff(splits.offsets)))
    src, dst = _ends(network, splits)
    stays, real = left > 0, src != dst
    return merged_network(
        network,
        np.concatenate([network.src[stays], src[real]]),
        np.concatenate([network.dst[stays], dst[real]]),
        np.concatenate([left[stays], splits.amount[real]]),
    )


def merged_network(like: ForestNetwork, src: Ranks, dst: Ranks, amount: Integers) -> ForestNetwork:
    """Return the network with the nodes of `like` and these arcs, parallel ones added up. O(arcs log arcs)."""
    keys = dst.astype(np.int64) * like.nodes + src
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    capacity = np.add.reduceat(amount[order], first) if len(first) else np.zeros(0, dtype=np.int64)
    pairs = ordered[first]
    new_src, new_dst = (pairs % like.nodes).astype(np.int32), (pairs // like.nodes).astype(np.int32)
    return ForestNetwork(like.compute_count, like.nodes, new_src, new_dst, capacity, like.supply)


def split_off(split: SplitNetwork, splits: Splits) -> SplitNetwork:
    """Return `split` after `splits`; units leave an arc in the order in which they came. O(pieces log pieces)."""
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
    arc = arc_between(after, from_node, to_node)
    order = np.argsort(arc, kind="stable")
    amount, start, length = (
        np.concatenate([old[stays], fresh])[order]
        for old, fresh in zip((left, pieces.start, pieces.length), new, strict=True)
    )
    offsets = np.searchsorted(arc[order], np.arange(len(after.src) + 1)).astype(np.int64)
    return SplitNetwork(original, after, PathPieces(offsets, amount, start, length, hops))


def without_switches(split: SplitNetwork, dropped: NDArray[np.bool_]) -> SplitNetwork:
    """Return `split` without the arcs that touch the `dropped` nodes (flags per node). O(arcs + pieces)."""
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


def arc_between(network: ForestNetwork, src: Ranks, dst: Ranks) -> Integers:
    """Return the arc of `network` between each pair of nodes; it must exist."""
    keys = network.dst.astype(np.int64) * network.nodes + network.src
    return np.searchsorted(keys, dst.astype(np.int64) * network.nodes + src)


def _ends(network: ForestNetwork, splits: Splits) -> tuple[Ranks, Ranks]:
    return network.src[splits.arcs[splits.offsets[:-1]]], network.dst[splits.arcs[splits.offsets[1:] - 1]]
