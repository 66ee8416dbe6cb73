"""The residual network of a packing: arcs in rows, what trees leave of them, the slack of known cuts as bits per node.

Its oracle tells whether that is enough for the trees that are still to come.
"""

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Flags, Integers, Ranks, ResidualGraph, amounts_on, residual_graph
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.forest.split.splitting_off import members_of

_SCARCE = 4
"""An arc is scarce if the best one into the same node has at least so many times its capacity."""


class ArcTable(NamedTuple):
    """The arcs of a network in rows by head, within a row by falling capacity; row v begins at `head_offsets[v]`.

    name:         int32 per arc, its number in the network
    tails, heads: int32 per arc
    capacity:     int64 per arc, before any tree
    by_tail:      arcs in order of their tails; row v is `tail_offsets[v]` to `tail_offsets[v + 1] - 1`
    plenty:       int64 per node: the first so many arcs of its row by tail are not scarce, but others into their heads
    scarce:       flags of the arcs that have far less capacity than the best arc into the same node
    """

    name: Ranks
    tails: Ranks
    heads: Ranks
    capacity: Integers
    by_tail: Integers
    tail_offsets: Integers
    plenty: Integers
    head_offsets: Integers
    scarce: Flags


class ResidualNetwork(NamedTuple):
    """What the trees so far have left.

    capacity: int64 per arc
    supply:   int64 per node: trees still to be rooted there
    node_slack: int64 per node v: slack of the set {v}
    cut_slack: int64 per known cut: slack of its source side S
    members:  uint64[nodes, words]: bit i of row v says whether v is in S of cut i
    """

    capacity: Integers
    supply: Integers
    node_slack: Integers
    cut_slack: Integers
    members: Matrix[np.uint64]


def arc_table_of(network: ForestNetwork) -> ArcTable:
    """Return the arcs of `network` in rows. O(arcs log arcs)."""
    name = np.lexsort((network.src, -network.capacity, network.dst))
    src, dst, capacity = network.src[name], network.dst[name], network.capacity[name]
    rows = np.arange(network.nodes + 1)
    head_offsets = np.searchsorted(dst, rows)
    best = np.zeros(network.nodes, dtype=np.int64)
    np.maximum.at(best, dst, capacity)
    scarce = capacity < best[dst] // _SCARCE
    thin = np.zeros(network.nodes, dtype=np.bool_)
    thin[dst[scarce]] = True
    awaited = thin[dst] & ~scarce
    by_tail = np.lexsort((dst, ~awaited, src))
    tail_offsets = np.searchsorted(src[by_tail], rows)
    plenty = np.bincount(src[awaited], minlength=network.nodes)
    return ArcTable(name.astype(np.int32), src, dst, capacity, by_tail, tail_offsets, plenty, head_offsets, scarce)


def residual_network_of(arcs: ArcTable, capacity: Integers, supply: Integers, sides: Flags) -> ResidualNetwork:
    """Return the slacks of all {v} and of the given cuts, bool[cuts, nodes] flags of their source sides."""
    members = members_of(sides)
    leaving = np.zeros(len(supply), dtype=np.int64)
    np.add.at(leaving, arcs.tails, capacity)
    slack = native.cut_slacks(len(sides), members, arcs.tails, arcs.heads, capacity, supply)
    return ResidualNetwork(capacity.copy(), supply.copy(), leaving - supply, slack, members)


_CUTS_PER_TEST = 64


class CutOracle:
    """Tests all cuts of one network for changing capacities and supplies; its graphs are built when first needed."""

    def __init__(self, arcs: ArcTable, nodes: int) -> None:
        self._arcs = arcs
        self._nodes = nodes
        self._graph: tuple[ResidualGraph, Integers] | None = None
        self._graph_of_part: tuple[ResidualGraph, Integers] | None = None

    def violated(self, capacity: Integers, supply: Integers) -> Flags:
        """Return bool[cuts, nodes]: source sides S with less capacity out of S than supply in S; none if all hold."""
        if self._graph is None:
            self._graph = residual_graph(self._nodes, self._arcs.tails, self._arcs.heads)
        return self._violated(self._graph, capacity, supply)

    def violated_by_partial_tree(
        self, capacity: Integers, supply: Integers, root: int, weight: int, path: Ranks
    ) -> Flags:
        """Return the same after `weight` unfinished trees of `root` have taken the arcs of `path`.

        The nodes R that they have reached are one more supply: a node of its own that gives `weight` to any node
        of R. It is on the source side of a cut if R is (bandwidth-optimal pipeline, theorem 12).
        """
        nodes, arcs = self._nodes, self._arcs
        if self._graph_of_part is None:
            every = np.arange(nodes, dtype=np.int32)
            src, dst = np.append(arcs.tails, np.full(nodes, nodes, dtype=np.int32)), np.append(arcs.heads, every)
            self._graph_of_part = residual_graph(nodes + 1, src, dst)
        left, gives = capacity.copy(), np.zeros(nodes, dtype=np.int64)
        left[path] -= weight
        gives[arcs.heads[path]] = weight
        gives[root] = weight
        still = np.append(supply, weight)
        still[root] -= weight
        return self._violated(self._graph_of_part, np.concatenate([left, gives]), still)

    def _violated(self, graph: tuple[ResidualGraph, Integers], capacity: Integers, supply: Integers) -> Flags:
        sinks, settled = np.zeros((2, len(supply)), dtype=np.bool_)
        sinks[: self._nodes] = True
        cuts = np.zeros((_CUTS_PER_TEST, len(supply)), dtype=np.bool_)
        found = native.violated_cuts(graph[0], amounts_on(*graph, capacity), supply, sinks, settled, cuts)
        return np.asarray(~cuts[:found, : self._nodes])
