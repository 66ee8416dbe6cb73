"""Splitting off: a path through switches gives way to one arc between its ends, which remembers the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.methods.forest.network import ForestNetwork


@inlined
def with_capacity(values: Ranks, used: int, more: int) -> Ranks:
    """Return `values`, or a copy of its first `used` entries in a larger array, with room for `more` behind them."""
    if used + more <= len(values):
        return values
    larger = np.empty(2 * (used + more), np.int32)
    larger[:used] = values[:used]
    return larger


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


class _NewPathPieces(NamedTuple):
    """split, amount, start, length: int64 per piece; hops: int32, the old hops and those of the new pieces."""

    split: Integers
    amount: Integers
    start: Integers
    length: Integers
    hops: Ranks


def network_after(network: ForestNetwork, splits: Splits) -> ForestNetwork:
    """Return the capacities that `splits` leave, without looking at paths. O(arcs log arcs)."""
    left = _left_over(network.capacity, splits)
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
    new = _join(pieces, left, splits, split.original.src, split.original.dst, split.original.nodes)
    src, dst = _ends(network, splits)
    stays = left > 0
    owner = np.repeat(np.arange(len(network.src)), np.diff(pieces.offsets))[stays]
    from_node = np.concatenate([network.src[owner], src[new.split]])
    to_node = np.concatenate([network.dst[owner], dst[new.split]])
    arc = arc_between(after, from_node, to_node)
    order = np.argsort(arc, kind="stable")
    amount, start, length = (
        np.concatenate([old[stays], fresh])[order]
        for old, fresh in ((left, new.amount), (pieces.start, new.start), (pieces.length, new.length))
    )
    offsets = np.searchsorted(arc[order], np.arange(len(after.src) + 1)).astype(np.int64)
    return SplitNetwork(split.original, after, PathPieces(offsets, amount, start, length, new.hops))


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


@compiled
def _left_over(capacity: Integers, splits: Splits) -> Integers:
    left = capacity.copy()
    for split in range(len(splits.amount)):
        for index in range(splits.offsets[split], splits.offsets[split + 1]):
            left[splits.arcs[index]] -= splits.amount[split]
    return left


@inlined
def _append_hops(path: Ranks, depth: int, hops: Ranks, dst: Ranks, place: Ranks) -> int:
    """Append `hops` to `path[:depth]`, leaving out every cycle; `place[v]` is the depth at node v, -1 off the path."""
    for hop in hops:
        node = dst[hop]
        if place[node] < 0:
            path[depth] = hop
            depth += 1
            place[node] = depth
        else:
            while depth > place[node]:
                depth -= 1
                place[dst[path[depth]]] = -1
            place[node] = depth
    return depth


@compiled
def _join(pieces: PathPieces, left: Integers, splits: Splits, src: Ranks, dst: Ranks, nodes: int) -> _NewPathPieces:
    """Take the units of `splits` from `left` (units per piece) and return the pieces that they make."""
    count = len(splits.amount)
    most = count + len(left)  # every piece made ends a split or an old piece
    of_split, amounts = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    starts, lengths = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    hops, used, made = pieces.hops.copy(), len(pieces.hops), 0
    path, place = np.empty(nodes + 1, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
    cursor = pieces.offsets[:-1].copy()
    for split in range(count):
        arcs = splits.arcs[splits.offsets[split] : splits.offsets[split + 1]]
        wanted = splits.amount[split]
        while wanted > 0:
            amount = wanted
            for arc in arcs:
                while left[cursor[arc]] == 0:
                    cursor[arc] += 1
                amount = min(amount, left[cursor[arc]])
            first_hop = pieces.hops[pieces.start[cursor[arcs[0]]]]
            depth, origin = 0, src[first_hop]
            place[origin] = 0
            for arc in arcs:
                piece = cursor[arc]
                left[piece] -= amount
                begin = pieces.start[piece]
                depth = _append_hops(path, depth, pieces.hops[begin : begin + pieces.length[piece]], dst, place)
            wanted -= amount
            place[origin] = -1
            for index in range(depth):
                place[dst[path[index]]] = -1
            if depth > 0:
                hops = with_capacity(hops, used, depth)
                hops[used : used + depth] = path[:depth]
                of_split[made], amounts[made], starts[made], lengths[made] = split, amount, used, depth
                used += depth
                made += 1
    return _NewPathPieces(of_split[:made], amounts[:made], starts[:made], lengths[:made], hops[:used])
