"""Asking the oracle whether what trees leave of a network is enough for the trees that are still to come."""

from __future__ import annotations

import numpy as np

from chorale.synth.flow.graph import Integers, Ranks, ResidualGraph, amounts_on, residual_graph
from chorale.synth.flow.oracle import Flags, violated_cuts
from chorale.synth.forest.room import ArcTable

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
        found = violated_cuts(graph[0], amounts_on(*graph, capacity), supply, sinks, settled, cuts)
        return np.asarray(~cuts[:found, : self._nodes])
