"""Which switches form a fabric, and which ranks are close without it: a box of GPUs seen from the network above."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from chorale.synth.flow.graph import Integers, Ranks
from chorale.synth.forest.network import ForestNetwork


def levels(network: ForestNetwork) -> Integers:
    """Return int64 per node: arcs on a shortest way to it from a rank; `nodes` if there is none."""
    level = np.full(network.nodes, network.nodes, dtype=np.int64)
    level[: network.compute_count] = 0
    while True:
        next_level = level.copy()
        np.minimum.at(next_level, network.dst, level[network.src] + 1)
        next_level = np.minimum(next_level, network.nodes)
        if np.array_equal(next_level, level):
            return level
        level = next_level


def fabrics(network: ForestNetwork) -> Ranks:
    """Return int32 per node: the number of the connected group of switches it belongs to, -1 for ranks and for
    switches without arcs.
    """
    ranks = network.compute_count
    between = (network.src >= ranks) & (network.dst >= ranks)
    label = _components(network.nodes, network.src[between], network.dst[between])
    used = np.zeros(network.nodes, dtype=bool)
    used[network.src] = used[network.dst] = True
    used[:ranks] = False
    group = np.full(network.nodes, -1, dtype=np.int32)
    group[used] = np.unique(label[used], return_inverse=True)[1]
    return group


def clusters_below(network: ForestNetwork, fabric: Ranks, level: Integers) -> tuple[NDArray[np.int32], Integers]:
    """Return (components as rows [heights, nodes], row of each fabric): the components of the network below it.

    Direct arcs between ranks are below every fabric; of two fabrics, the one is lower whose switches are nearer to
    ranks, which reaches far fewer ranks, or which has far fatter arcs: a rail that misses a rank is not below the
    others. Components are numbered by their first node.
    """
    heights = _heights(network, fabric, level, int(fabric.max(initial=-1)) + 1)
    distinct = sorted(set(heights))
    row_of = np.array([distinct.index(height) for height in heights], dtype=np.int64)
    rows = np.empty((len(distinct), network.nodes), dtype=np.int32)
    of_arc = np.maximum(fabric[network.src], fabric[network.dst])
    arc_row = np.where(of_arc < 0, -1, row_of[of_arc])
    for row in range(len(distinct)):
        usable = arc_row < row
        rows[row] = _components(network.nodes, network.src[usable], network.dst[usable])
    return rows, row_of


def _heights(network: ForestNetwork, fabric: Ranks, level: Integers, count: int) -> list[tuple[int, int, int]]:
    switches = fabric >= 0
    highest, fattest = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(highest, fabric[switches], level[switches])
    entering = (fabric[network.src] < 0) & (fabric[network.dst] >= 0)
    reached = np.unique(fabric[network.dst[entering]].astype(np.int64) * network.nodes + network.src[entering])
    ranks = np.bincount(reached // network.nodes, minlength=count)
    np.maximum.at(fattest, fabric[network.dst[entering]], network.capacity[entering])
    sizes, widths = _magnitudes(ranks), _magnitudes(fattest)
    return [(int(highest[one]), sizes[int(ranks[one])], -widths[int(fattest[one])]) for one in range(count)]


def _magnitudes(values: Integers) -> dict[int, int]:
    """Return a number for each value, growing with it, equal for values within a factor of 3/2 of the smallest."""
    magnitudes: dict[int, int] = {}
    smallest, number = 0, -1
    for value in np.unique(values).tolist():
        if number < 0 or 2 * value > 3 * smallest:
            smallest, number = value, number + 1
        magnitudes[value] = number
    return magnitudes


def _components(nodes: int, src: Ranks, dst: Ranks) -> NDArray[np.int32]:
    graph = csr_array((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(nodes, nodes))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int32)
