"""What fits through switches that send more than they receive: they cannot copy, so that not every cut is reached.

A switch that cannot copy data passes on at most what it receives. If links of such switches are used less, so that no
switch sends more than it gets, trees as fast as the narrowest cut exist again (bandwidth-optimal pipeline, theorem 4).
How much less is a linear program over cuts, of which few are needed: each round adds the narrowest cut of what the last
one found.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import CutSearch, improving_cuts
from chorale.synth.errors import CheckFailed
from chorale.synth.lazy_modules import optimize, sparse
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology

_GRID_BITS = 23
_CLOSE = 1e-6
MAX_ROUNDS = 512


def within_switches(topology: Topology, weights: NDArray[np.int64]) -> tuple[Topology, NDArray[np.int64]]:
    """Return `topology` with links used less so that no switch sends more than it receives, and its links there.

    No other such use is faster by more than a millionth, for trees of `weights` per rank.
    """
    links, ranks = topology.links, topology.compute_count
    widths = np.array([float(width) for width in links.bandwidths])[links.bandwidth_class]
    rows, columns, entries = [], [], []
    for switch in range(ranks, topology.node_count):
        for ends, sign in ((links.src, 1.0), (links.dst, -1.0)):
            found = np.flatnonzero((ends == switch) & (links.src != links.dst))
            rows += [switch - ranks] * len(found)
            columns += found.tolist()
            entries += [sign] * len(found)
    count = len(links)
    program = sparse.csr_array((entries, (rows, columns)), shape=(topology.switch_count, count + 1))
    cuts = [np.array([rank]) for rank in range(ranks) if weights.sum() > weights[rank]]
    for _ in range(MAX_ROUNDS):
        added = sparse.csr_array(np.stack([_row(topology, weights, cut) for cut in cuts]))
        program, cuts = sparse.vstack([program, added], format="csr"), []
        goal = np.zeros(count + 1)
        goal[count] = -1.0
        limits = [(0.0, width) for width in widths.tolist()] + [(0.0, None)]
        solution = optimize.linprog(goal, program, np.zeros(program.shape[0]), bounds=limits, method="highs")
        if solution.x is None:
            break
        network, kept = _rounded(topology, solution.x[:count])
        *_, (time, cut) = improving_cuts(CutSearch.of(network, weights))
        if 1 / float(time) >= solution.x[count] * (1 - _CLOSE):
            return network, kept
        cuts = [cut]
    raise CheckFailed("a use of links without copies must be found", topology.spec, "report this network")


def _row(topology: Topology, weights: NDArray[np.int64], cut: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a row of the program: what must get into `cut` is at most what its links carry."""
    inside = np.zeros(topology.node_count, dtype=np.bool_)
    inside[cut] = True
    row = np.zeros(len(topology.links) + 1)
    row[:-1] = -1.0 * (inside[topology.links.dst] & ~inside[topology.links.src])
    row[-1] = weights[~inside[: topology.compute_count]].sum()
    return row


def _rounded(topology: Topology, used: NDArray[np.float64]) -> tuple[Topology, NDArray[np.int64]]:
    """Return the network of what is `used` of each link, rounded down to a grid, and its links in `topology`.

    Switches that round to less in than out send less, in turn, until none does.
    """
    links = topology.links
    unit = 2.0 ** (math.frexp(float(max(links.bandwidths)))[1] - _GRID_BITS)
    units = np.floor(used / unit).astype(np.int64)
    while True:
        surplus = np.zeros(topology.node_count, dtype=np.int64)
        np.add.at(surplus, links.src, units)
        np.subtract.at(surplus, links.dst, units)
        over = [switch for switch in range(topology.compute_count, topology.node_count) if surplus[switch] > 0]
        if not over:
            break
        outward = np.flatnonzero((links.src == over[0]) & (links.dst != over[0]) & (units > 0))
        largest = outward[np.argmax(units[outward])]
        units[largest] -= min(int(surplus[over[0]]), int(units[largest]))
    kept = np.flatnonzero(units)
    values, classes = np.unique(units[kept], return_inverse=True)
    bandwidths = tuple(int(value) * Fraction(unit) for value in values.tolist())
    smaller = Links(
        links.src[kept],
        links.dst[kept],
        classes.astype(np.int32),
        bandwidths,
        links.latency_class[kept],
        links.latencies_s,
    )
    return Topology(topology.spec, topology.node_ids, topology.compute_count, smaller, topology.bandwidth_unit), kept
