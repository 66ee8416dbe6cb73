"""Search for the cuts of a network that cannot carry what has to cross them, by the oracle of tree packing.

Every bound here has one form: weights w on the ranks say how many shards start there, and all shards must reach
all ranks. A set of nodes T then needs at least w(outside T) / (bandwidth into T) time per shard, if it holds a
rank. allgather has weight 1 everywhere, a broadcast has it at its root only.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.cut_oracle import Flags, violated_cuts
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Integers, ResidualGraph, amounts_on, residual_graph
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.topology import Topology

_MANY_RANKS = 512
"""From so many ranks on it pays to look at symmetries, so that cuts around one rank of each orbit are enough."""

Nodes = NDArray[np.int64]
"""Node indices in ascending order: the sink side T of a cut."""


@dataclass(frozen=True, slots=True, eq=False)
class CutSearch:
    """One search over the cuts of a network, for times that only grow: ranks that have passed stay settled.

    weights: int64 per node, shards that start there (0 for switches);  ingress: int64 per node, in units
    units:   int64 per link, bandwidth in units of 1 / scale;  useful: links that are no self-loops
    busiest: the largest number of useful links into one node
    settled: ranks around which every cut is known to hold
    typical: flags of ranks such that known symmetries take one of them to any other rank
    """

    topology: Topology
    weights: Integers
    units: Integers
    scale: int
    useful: Integers
    busiest: int
    ingress: Integers
    graph: ResidualGraph
    half_arcs: Integers
    settled: Flags
    typical: Flags

    @staticmethod
    def of(topology: Topology, weights: Integers) -> CutSearch:
        """Return a search that has settled nothing yet. `weights` per rank. O(links log links).

        Symmetries are looked at on large networks whose ranks all have the same weight.
        """
        links = topology.links
        units, scale = links.integer_bandwidths()
        useful = np.flatnonzero(links.src != links.dst)
        busiest = int(np.bincount(links.dst[useful]).max(initial=0))
        _require_small(int(units.max(initial=0)) * busiest, 0)
        ingress = np.zeros(topology.node_count, dtype=np.int64)
        np.add.at(ingress, links.dst[useful], units[useful])
        everywhere = np.zeros(topology.node_count, dtype=np.int64)
        everywhere[: topology.compute_count] = weights
        graph, half_arcs = residual_graph(topology.node_count, links.src[useful], links.dst[useful])
        settled = np.zeros(topology.node_count, dtype=np.bool_)
        typical = _typical_ranks(topology, weights)
        return CutSearch(
            topology, everywhere, units, scale, useful, busiest, ingress, graph, half_arcs, settled, typical
        )

    def narrowest_rank(self) -> Nodes:
        """Return the rank that must receive most for its bandwidth, as a cut. O(ranks log ranks)."""
        ranks = self.topology.compute_count
        weights, ingress = self.weights[:ranks], self.ingress[:ranks]
        total = int(weights.sum())
        narrowest: dict[int, int] = {}
        for rank in np.lexsort((ingress, weights)).tolist():
            if weights[rank] < total:
                narrowest.setdefault(int(weights[rank]), rank)
        for rank in narrowest.values():
            _require_reached(self.topology, int(ingress[rank]), rank)
        best = max(narrowest.values(), key=lambda rank: Fraction(total - int(weights[rank]), int(ingress[rank])))
        return np.array([best])

    def violated_cut(self, trees_per_bandwidth: Fraction, k: int, sinks: Flags | None = None) -> Nodes | None:
        """Return a cut around one of `sinks` that cannot carry k trees per unit of weight, None if all cuts can.

        A link of bandwidth b carries floor(U * b) trees, U = `trees_per_bandwidth`. What a link carries per tree
        of a shard, floor(U * b) / k, must not shrink from call to call: settled ranks are not asked again. Raises
        InvalidInput where amounts would leave 64 bits. `sinks` as flags per rank, all ranks unless given; the cut is
        the smallest one around its sink. Cost: O(links) and few flows.
        """
        links = self.topology.links
        table = [int(trees_per_bandwidth * bandwidth) for bandwidth in links.bandwidths]
        _require_small(max(table, default=0) * self.busiest, k * int(self.weights.sum()))
        amounts = np.array(table, dtype=np.int64)[links.bandwidth_class[self.useful]]
        capacity = amounts_on(self.graph, self.half_arcs, amounts)
        is_sink = np.zeros(self.topology.node_count, dtype=np.bool_)
        is_sink[: self.topology.compute_count] = True if sinks is None else sinks
        cuts = np.zeros((1, self.topology.node_count), dtype=np.bool_)
        found = violated_cuts(self.graph, capacity, self.weights * k, is_sink, self.settled, cuts)
        return np.flatnonzero(cuts[0]) if found else None

    def outside_weight(self, cut: Nodes) -> int:
        """Return the number of shards that start outside `cut`."""
        return int(self.weights.sum() - self.weights[cut].sum())

    def entering(self, cut: Nodes) -> list[tuple[Fraction, int]]:
        """Return (bandwidth, number of links) of the links that lead into `cut`. O(links)."""
        links = self.topology.links
        inside = np.zeros(self.topology.node_count, dtype=np.bool_)
        inside[cut] = True
        classes = links.bandwidth_class[inside[links.dst] & ~inside[links.src]]
        counts = np.bincount(classes, minlength=len(links.bandwidths)).tolist()
        present = [(bandwidth, count) for bandwidth, count in zip(links.bandwidths, counts, strict=True) if count]
        _require_reached(self.topology, len(present), int(cut[0]))
        return present

    def time_per_shard(self, cut: Nodes) -> Fraction:
        """Return the time that `cut` proves: the shards outside over the bandwidth into it. O(links)."""
        bandwidth = sum((value * count for value, count in self.entering(cut)), Fraction(0))
        return self.outside_weight(cut) / bandwidth


def _typical_ranks(topology: Topology, weights: Integers) -> Flags:
    """Return flags of the first rank of every orbit of known symmetries (each checked), if weights are equal."""
    typical = np.ones(topology.compute_count, dtype=np.bool_)
    if len(typical) >= _MANY_RANKS and topology.automorphisms and np.all(weights == weights[0]):
        typical[:] = False
        typical[np.unique(checked_orbits(topology)[: len(typical)], return_index=True)[1]] = True
    return typical


def _require_small(busiest: int, supply: int) -> None:
    if max(busiest, supply) >= LARGEST_AMOUNT:
        rule = f"exact bounds count trees in integers below 2^{LARGEST_AMOUNT.bit_length() - 1}"
        value = f"{busiest} into one node" if busiest >= supply else f"{supply} in all"
        raise InvalidInput(rule, value, "round the bandwidths to fewer digits, or choose a small fixed k")


def _require_reached(topology: Topology, bandwidth: int, node: int) -> None:
    if bandwidth == 0:
        name = topology.node_ids[node]
        raise InvalidInput("every rank must be reached by every other", f"no link leads to {name}", "add links")
