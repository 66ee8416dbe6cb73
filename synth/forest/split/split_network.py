"""A network in which switches give way to arcs between their neighbours, and the paths behind every arc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.forest.network import ForestNetwork


class PathPieces(NamedTuple):
    """What the capacity of each arc is made of: units that all take the same path of original arcs.

    offsets: int64[arcs + 1]: arc a has the pieces `offsets[a]` to `offsets[a + 1] - 1`
    amount:  int64 per piece: units; they add up to the capacity of the arc
    start, length: int64 per piece: its path is `hops[start : start + length]`
    hops:    int32: arcs of the original network, in travel order
    """

    offsets: NDArray[np.int64]
    amount: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    hops: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class SplitNetwork:
    """`network` after some pairs of arcs were split off at switches; `pieces` says what its arcs stand for.

    No path visits a node twice. All pieces together put at most its capacity on every arc of `original`.
    """

    original: ForestNetwork
    network: ForestNetwork
    pieces: PathPieces

    @staticmethod
    def of(network: ForestNetwork) -> SplitNetwork:
        """Return `network` before anything is split off: every arc is its own single piece."""
        arcs = len(network.src)
        ones = np.ones(arcs, dtype=np.int64)
        each = np.arange(arcs + 1, dtype=np.int64)
        return SplitNetwork(
            network, network, PathPieces(each, network.capacity.copy(), each[:-1], ones, each[:-1].astype(np.int32))
        )

    def paths(self, arc: int) -> list[tuple[int, list[int]]]:
        """Return (units, original arcs in travel order) of every piece of `arc`."""
        amount, start, length, hops = self.pieces[1:]
        own = range(int(self.pieces.offsets[arc]), int(self.pieces.offsets[arc + 1]))
        return [(int(amount[piece]), hops[start[piece] : start[piece] + length[piece]].tolist()) for piece in own]
