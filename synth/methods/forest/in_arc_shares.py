"""Over which in-arc a node takes each tree, so that every tree stays as low as hops allow where that fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork

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
    return InArcShares(*native.in_arc_shares(network.src[row], left, needs, hops, node, int(row.start), beside))
