"""Lengths of the arcs between switches that keep shortest paths between ranks from crowding together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import compiled
from chorale.synth.kernels.heap import drop_first, push
from chorale.synth.kernels.types import Matrix

FAR = 65535
_ROUNDS = 12
_GRAIN = 4
_LONGEST = 255
_BRIDGE = 3
_LITTLE = 0.01  # of what ranks give: so much may find no room on shortest paths

Distances = NDArray[np.uint16]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """The inside of one group of switches.

    src, dst:   int32 per arc, sorted by src, switches numbered 0 to `size - 1`;  capacity: int64 per arc
    give, take: int64 per switch: capacity from and to the ranks around
    """

    size: int
    src: Ranks
    dst: Ranks
    capacity: Integers
    give: Integers
    take: Integers


@dataclass(frozen=True, slots=True, eq=False)
class _LengthTrial:
    """Lengths before and after rounding, distances, and the load per arc if all pairs of switches exchange their
    part of give and take over all shortest paths evenly; beyond: what of the loads does not fit, added up.
    """

    price: Reals
    lengths: Integers
    distances: Distances
    load: Reals
    beyond: float


def spreading_lengths(wiring: Wiring) -> tuple[Integers, Distances]:
    """Return (length per arc, uint16[size, size] distances, `FAR` where there is no path).

    With arcs of length 1, some may be overloaded where others are not: in a dragonfly, ways over two global links are
    as short as those over one. Next, arcs that close no triangle, such as those between groups of routers, are
    longer; then all arcs get longer by their loads, as multiplicative weights do. The lengths that leave least
    beyond the capacities are taken, the first ones if nothing. Only quality depends on this. O(size * arcs).
    """
    arcs = len(wiring.src)
    if arcs == 0 or not wiring.take.any():
        return np.ones(arcs, dtype=np.int64), _distances(wiring, np.ones(arcs))
    little = _LITTLE * wiring.give.sum()
    best = _trial(wiring, np.ones(arcs))
    if best.beyond > little:
        best = _better(best, _trial(wiring, _triangle_lengths(wiring)))
    last = best
    for _ in range(_ROUNDS):
        if best.beyond <= little:
            break
        price = last.price * ((1 + last.load / wiring.capacity) / 2) ** 2
        last = _trial(wiring, np.clip(_GRAIN * price / price.min(), 1, _LONGEST))
        best = _better(best, last)
    return best.lengths, best.distances


def _better(one: _LengthTrial, other: _LengthTrial) -> _LengthTrial:
    return other if other.beyond < 0.9 * one.beyond else one


def _trial(wiring: Wiring, price: Reals) -> _LengthTrial:
    lengths = np.rint(price).astype(np.int64)
    table = _distances(wiring, lengths)
    farthest_first = np.argsort(table, axis=0, kind="stable")[::-1]
    ends = (wiring.src, wiring.dst)
    load = _loads(table, farthest_first, *ends, wiring.capacity, lengths, wiring.give, wiring.take)
    return _LengthTrial(price, lengths, table, load, float(np.maximum(load - wiring.capacity, 0).sum()))


def _triangle_lengths(wiring: Wiring) -> Reals:
    """Return 1 for arcs beside which two others lead the same way, else `_BRIDGE`."""
    return np.where(_closes_triangle(wiring.size, wiring.src, wiring.dst), 1.0, float(_BRIDGE))


@compiled
def _closes_triangle(size: int, src: Ranks, dst: Ranks) -> NDArray[np.bool_]:
    """Return bool[arcs]: whether two other arcs lead where the arc does. O(sum of squares of degrees)."""
    offsets = np.searchsorted(src, np.arange(size + 1))
    beside = np.zeros(len(src), dtype=np.bool_)
    two_away = np.full(size, -1, dtype=np.int64)
    for node in range(size):
        for first in range(offsets[node], offsets[node + 1]):
            for second in range(offsets[dst[first]], offsets[dst[first] + 1]):
                two_away[dst[second]] = node
        for arc in range(offsets[node], offsets[node + 1]):
            beside[arc] = two_away[dst[arc]] == node
    return beside


def _distances(wiring: Wiring, lengths: NDArray[np.number]) -> Distances:
    return _all_distances(wiring.size, wiring.src, wiring.dst, lengths.astype(np.float64))


@compiled
def _all_distances(size: int, src: Ranks, dst: Ranks, lengths: Reals) -> Matrix[np.uint16]:
    """Return uint16[size, size], at most `FAR`, by Dijkstra's algorithm from every node. O(size * arcs * log arcs)."""
    offsets = np.searchsorted(src, np.arange(size + 1))
    table = np.full((size, size), FAR, dtype=np.uint16)
    keys, nodes = np.empty(len(src) + 1, dtype=np.float64), np.empty(len(src) + 1, dtype=np.int32)
    for source in range(size):
        table[source, source] = 0
        count = push(keys, nodes, 0, 0.0, source)
        while count > 0:
            key, node = keys[0], nodes[0]
            count = drop_first(keys, nodes, count)
            if key > table[source, node]:
                continue
            for arc in range(offsets[node], offsets[node + 1]):
                further = key + lengths[arc]
                if further < table[source, dst[arc]]:
                    table[source, dst[arc]] = int(further)
                    count = push(keys, nodes, count, further, dst[arc])
    return table


@compiled
def _loads(
    table: Matrix[np.uint16],
    farthest_first: Matrix[np.int64],
    src: Ranks,
    dst: Ranks,
    capacity: Integers,
    lengths: Integers,
    give: Integers,
    take: Integers,
) -> Reals:
    """Return the load per arc; a switch splits what it passes on by the capacity of the arcs that lead on."""
    size = len(table)
    load = np.zeros(len(src), dtype=np.float64)
    offsets = np.searchsorted(src, np.arange(size + 1))
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
