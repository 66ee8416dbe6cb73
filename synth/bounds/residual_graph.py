"""Defines digraphs that store every arc with its reverse arc, and the oracle, which tests all cuts by maximum flows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Ranks = NDArray[np.int32]

LARGEST_AMOUNT = 2**60
"""Each capacity and the sum of supplies must be below this limit, so that no sum in a kernel exceeds 64 bits."""


class ResidualGraph(NamedTuple):
    """A digraph as half-arcs (arcs and their reverses): half-arcs `offsets[v]` to `offsets[v + 1] - 1` end at node v.

    tails: int32, the node at which each half-arc starts; ascending among half-arcs that end at the same node
    mates: int64, the half-arc in the opposite direction, which exists for every half-arc

    Amounts (capacities, residuals) are int64 arrays with one value per half-arc: 0 if the network has no such arc.
    """

    offsets: Integers
    tails: Ranks
    mates: Integers

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1


def residual_graph(nodes: int, src: NDArray[np.integer], dst: NDArray[np.integer]) -> tuple[ResidualGraph, Integers]:
    """Return (graph, each arc's half-arc index) for arcs from `src[i]` to `dst[i]`. Parallel arcs share a half-arc.

    Self-loops are not allowed. O(arcs * log(arcs)).
    """
    into, out_of = (np.multiply(head, nodes, dtype=np.int64) + tail for head, tail in ((dst, src), (src, dst)))
    keys = np.unique(np.concatenate([into, out_of]))
    heads, tails = np.divmod(keys, nodes)
    offsets = np.searchsorted(heads, np.arange(nodes + 1)).astype(np.int64)
    mates = np.searchsorted(keys, tails * nodes + heads)
    return ResidualGraph(offsets, tails.astype(np.int32), mates), np.searchsorted(keys, into)


def amounts_on(graph: ResidualGraph, half_arcs: Integers, amounts: Integers) -> Integers:
    """Return int64[half-arcs]: the sum of the `amounts` of all arcs that share each half-arc."""
    total = np.zeros(len(graph.tails), dtype=np.int64)
    np.add.at(total, half_arcs, amounts)
    return total


def violated_cuts(
    src: NDArray[np.integer], dst: NDArray[np.integer], amounts: Integers, supply: Integers, sinks: Flags, most: int
) -> Flags:
    """Return cuts around `sinks` whose links cannot carry the supply from outside. Empty only if no such cut exists.

    Args:
        src, dst, amounts: arcs without self-loops, and each arc's capacity, int64.
        supply: int64 per node, units that start there and must reach every sink.
        sinks: flags per node; cuts around the flagged nodes are tested.
        most: the search ends after this number of cuts.
    Returns:
        bool[cuts, nodes], the sink side of each cut.
    """
    nodes = len(supply)
    graph, half_arcs = residual_graph(nodes, src, dst)
    cuts = np.zeros((most, nodes), dtype=np.bool_)
    settled = np.zeros(nodes, dtype=np.bool_)
    return cuts[: native.violated_cuts(graph, amounts_on(graph, half_arcs, amounts), supply, sinks, settled, cuts)]
