"""A digraph for flow kernels: every arc beside its reverse, so that flow can be pushed back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled

Integers = NDArray[np.int64]
Ranks = NDArray[np.int32]

LARGEST_AMOUNT = 2**60
"""Capacities and the sum of supplies stay below this, so that no sum inside a kernel leaves 64 bits."""


class ResidualGraph(NamedTuple):
    """Half-arcs in rows by the node they enter: `offsets[v]` to `offsets[v + 1] - 1` enter node v.

    tails: int32, the node where each half-arc starts; ascending within a row
    mates: int64, the half-arc between the same nodes the other way round; it exists for every half-arc

    Amounts (capacities, residuals) are int64 arrays over half-arcs, 0 where a direction has no arc.
    """

    offsets: Integers
    tails: Ranks
    mates: Integers

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def heads(self) -> Ranks:
        """Return the node that each half-arc enters. O(half-arcs)."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.offsets))


def residual_graph(nodes: int, src: NDArray[np.integer], dst: NDArray[np.integer]) -> tuple[ResidualGraph, Integers]:
    """Return (graph, half-arc of each given arc) for arcs from `src[i]` to `dst[i]`; parallel arcs share a half-arc.

    Self-loops are not allowed: no flow needs them. O(arcs + nodes).
    """
    heads = np.concatenate([dst, src]).astype(np.int32)
    tails = np.concatenate([src, dst]).astype(np.int32)
    by_head = _stably_sorted(heads, _stably_sorted(tails, np.arange(len(heads)), nodes), nodes)
    offsets, row_tails, half_of = _rows(heads, tails, by_head, nodes)
    forward, backward = half_of[: len(src)], half_of[len(src) :]
    mates = np.empty(len(row_tails), dtype=np.int64)
    mates[forward], mates[backward] = backward, forward
    return ResidualGraph(offsets, row_tails, mates), forward


@compiled
def _stably_sorted(keys: Ranks, entries: Integers, count: int) -> Integers:
    """Return `entries` sorted by `keys[entry]`, which are 0 to `count - 1`; equal keys keep their order."""
    starts = np.zeros(count + 1, dtype=np.int64)
    for key in keys:
        starts[key + 1] += 1
    starts = np.cumsum(starts)
    result = np.empty_like(entries)
    for entry in entries:
        key = keys[entry]
        result[starts[key]] = entry
        starts[key] += 1
    return result


@compiled
def _rows(heads: Ranks, tails: Ranks, ordered: Integers, nodes: int) -> tuple[Integers, Ranks, Integers]:
    """Return (offsets, tails per half-arc, half-arc of each entry) for entries ordered by head, then by tail."""
    offsets = np.zeros(nodes + 1, dtype=np.int64)
    row_tails, half_of = np.empty(len(ordered), dtype=np.int32), np.empty(len(ordered), dtype=np.int64)
    rows, head, tail = 0, -1, -1
    for entry in ordered:
        if heads[entry] != head or tails[entry] != tail:
            head, tail = heads[entry], tails[entry]
            row_tails[rows] = tail
            offsets[head + 1] += 1
            rows += 1
        half_of[entry] = rows - 1
    return np.cumsum(offsets), row_tails[:rows].copy(), half_of


def amounts_on(graph: ResidualGraph, half_arcs: Integers, amounts: Integers) -> Integers:
    """Return int64 per half-arc: the sum of the `amounts` of the arcs that share it."""
    total = np.zeros(len(graph.tails), dtype=np.int64)
    np.add.at(total, half_arcs, amounts)
    return total
