"""Lengths of the arcs between switches, such that shortest paths between ranks do not crowd together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from synth.compiled import compiled
from synth.flow.graph import Integers, Ranks

FAR = 65535
_ROUNDS = 12
_GRAIN = 8
_LONGEST = 255
Distances = NDArray[np.uint16]


def spreading_lengths(
    size: int, src: Ranks, dst: Ranks, capacity: Integers, give: Integers, take: Integers
) -> tuple[Integers, Distances]:
    """Return (length per arc, distance table [size, size]) inside one group of `size` switches.

    give, take: int64 per switch, capacity from and to the ranks around. If every pair of switches exchanges its
    part of that over all shortest paths evenly, arcs of length 1 may be overloaded where others are not: in a
    dragonfly, ways over two global links are as short as those over one. Then loaded arcs get longer, as
    multiplicative weights do, and the lengths with the least load are kept. Only quality depends on this.
    O(rounds * size * arcs).
    """
    price = np.ones(len(src), dtype=np.float64)
    lengths = np.ones(len(src), dtype=np.int64)
    best_lengths, best_table, least = lengths, distances(size, src, dst, lengths), np.inf
    if len(src) == 0 or take.sum() == 0:
        return best_lengths, best_table
    for _ in range(_ROUNDS):
        table = distances(size, src, dst, lengths)
        order = np.argsort(table, axis=0, kind="stable")[::-1]
        load = _loads(table, order, src, dst, capacity, lengths, give, take) / capacity
        if load.max() < 0.99 * least:
            best_lengths, best_table, least = lengths, table, load.max()
        if least <= 1:
            break
        price *= ((1 + load) / 2) ** 2
        lengths = np.clip(np.rint(_GRAIN * price / price.min()), 1, _LONGEST).astype(np.int64)
    return best_lengths, best_table


def distances(size: int, src: Ranks, dst: Ranks, lengths: Integers) -> Distances:
    """Return uint16[size, size]: the length of a shortest path, `FAR` where there is none."""
    if len(src) == 0:
        table = np.full((size, size), np.inf)
    else:
        graph = csr_array((lengths.astype(np.float64), (src, dst)), shape=(size, size))
        table = shortest_path(graph, method="D")
    np.fill_diagonal(table, 0)
    return np.asarray(np.minimum(table, FAR), dtype=np.uint16)


@compiled
def _loads(
    table: Distances,
    farthest_first: Integers,
    src: Ranks,
    dst: Ranks,
    capacity: Integers,
    lengths: Integers,
    give: Integers,
    take: Integers,
) -> NDArray[np.float64]:
    """Return the load per arc; a switch splits what it passes on by the capacity of the arcs that lead on."""
    size = len(table)
    load = np.zeros(len(src), dtype=np.float64)
    offsets = np.searchsorted(src, np.arange(size + 1))  # arcs come sorted by source
    total = take.sum()
    for target in range(size):
        if take[target] == 0:
            continue
        passing = give * (take[target] / total)
        for node in farthest_first[:, target]:
            left = int(table[node, target])
            if left in (0, FAR):
                continue
            width = 0
            for arc in range(offsets[node], offsets[node + 1]):
                if int(table[dst[arc], target]) + lengths[arc] == left:
                    width += capacity[arc]
            for arc in range(offsets[node], offsets[node + 1]):
                if int(table[dst[arc], target]) + lengths[arc] == left:
                    part = passing[node] * (capacity[arc] / width)
                    load[arc] += part
                    passing[dst[arc]] += part
    return load
