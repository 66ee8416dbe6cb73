"""What a packing works on: the arcs of a network in rows, and what the trees so far have left of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.flow.graph import Integers, Ranks
from chorale.synth.flow.oracle import Flags
from chorale.synth.forest.cuts import Bits, cut_slacks, members_of
from chorale.synth.forest.network import ForestNetwork

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
    node:     int64 per node v: slack of the set {v}
    cut:      int64 per known cut: slack of its source side S
    members:  uint64[nodes, words]: bit i of row v says whether v is in S of cut i
    """

    capacity: Integers
    supply: Integers
    node_slack: Integers
    cut_slack: Integers
    members: Bits


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
    slack = cut_slacks(len(sides), members, arcs.tails, arcs.heads, capacity, supply)
    return ResidualNetwork(capacity.copy(), supply.copy(), leaving - supply, slack, members)
