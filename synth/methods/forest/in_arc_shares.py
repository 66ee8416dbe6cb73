"""Over which in-arc a node takes each tree, so that every tree stays as low as hops allow where that fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.splitmix import mix
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.forest.transport import transport

Hops = NDArray[np.uint16]


class InArcShares(NamedTuple):
    """What one node takes: of the trees `lo` to `hi` - 1 of `root`, over `arc`; -1 where no arc can carry them."""

    root: Ranks
    arc: Ranks
    lo: Integers
    hi: Integers


def in_arc_shares(network: ForestNetwork, offsets: Integers, hops: Hops, node: int, beside: bool) -> InArcShares:
    """Return over which in-arc `node` takes each tree.

    hops:   [in-arcs of `node` + 1, nodes]: hops from every node to the tails of its in-arcs, and to `node` itself
    beside: whether neighbours at its own distance may help
    """
    row = slice(offsets[node], offsets[node + 1])
    needs = network.supply.copy()
    needs[node] = 0
    left = network.capacity[row].copy()
    return InArcShares(*_shares(network.src[row], left, needs, hops, node, int(row.start), beside))


@compiled
def _shares(
    tails: Ranks, left: Integers, needs: Integers, hops: Matrix[np.uint16], node: int, first_arc: int, beside: bool
) -> tuple[Ranks, Ranks, Integers, Integers]:
    """Return the columns of `InArcShares`, root after root; `left` and `needs` are lowered by what is placed."""
    places, nodes = len(tails), len(needs)
    allowed = np.zeros((nodes, places), dtype=np.bool_)
    for root in range(nodes):
        for place in range(places):
            allowed[root, place] = int(hops[place, root]) + 1 == hops[places, root]
    amounts = np.zeros((nodes, places), dtype=np.int64)
    if not transport(allowed, needs, left, amounts) and beside:
        _allow_neighbours(allowed, tails, hops, node)
        transport(allowed, needs, left, amounts)
    count = 0
    for root in range(nodes):
        for place in range(places):
            count += int(amounts[root, place] > 0)
        count += int(needs[root] > 0)
    roots, arcs = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    lo, hi = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    piece = 0
    for root in range(nodes):
        begin = 0
        for place in range(places + 1):
            amount = needs[root] if place == places else amounts[root, place]
            if amount > 0:
                roots[piece], arcs[piece] = root, -1 if place == places else first_arc + place
                lo[piece], hi[piece] = begin, begin + amount
                begin += amount
                piece += 1
    return roots, arcs, lo, hi


@inlined
def _allow_neighbours(allowed: Matrix[np.bool_], tails: Ranks, hops: Matrix[np.uint16], node: int) -> None:
    """Allow tails at the distance of `node` itself, in one direction of each arc, drawn for each root."""
    places, nodes = len(tails), len(allowed)
    for root in range(nodes):
        own = mix(np.uint64(node * nodes + root))
        for place in range(places):
            if hops[place, root] == hops[places, root] and mix(np.uint64(int(tails[place]) * nodes + root)) < own:
                allowed[root, place] = True
