"""Cuts learned from the oracle: node sets that may lose no more of the capacity into them than their slack."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, amounts_on, residual_graph
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
