"""Computes bounds for networks with switches that cannot copy and have more outgoing than incoming bandwidth.

The cut bound cannot be reached on these networks, because a switch that cannot copy data sends at most what it
receives. If these switches use only part of their outgoing bandwidth, so that none sends more than it receives, there
are trees that are as fast as the narrowest cut (bandwidth-optimal pipeline, theorem 4). A linear program over cuts
finds the best bandwidth to use on each link. Few cuts are needed: each round adds the last solution's narrowest cut.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds import optimum
from chorale.synth.bounds.tree_pairs import trim_at_switches
from chorale.synth.collective import Collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lazy_modules import optimize, sparse
from chorale.synth.topology.topology import Links, Topology

_GRID_BITS = 23
_CLOSE = 1e-6
MAX_ROUNDS = 512
MAX_LINKS = 2**12
"""Maximum number of links for which `switch_bound` is computed."""
_WHOLE = 2.0**40


@dataclass(frozen=True, slots=True)
class SwitchedUse:
    """Part of each link's bandwidth that the fastest trees use if switches cannot copy, and dual values as a proof.

    network: the topology with each link's bandwidth reduced to the part that is used
    kept:    topology ids of the links in `network`; unused links are left out
    cuts:    cuts that limit the rate, as the nodes on the sink side
    weights: dual value of each cut
    worth:   dual value of each switch's balance constraint, by node index
    """

    network: Topology
    kept: NDArray[np.int64]
    cuts: Sequence[NDArray[np.int64]]
    weights: NDArray[np.float64]
    worth: Mapping[int, float]


def within_switches(topology: Topology, weights: NDArray[np.int64], copying: Collection[int] = ()) -> SwitchedUse:
    """Return the part of each link's bandwidth that the fastest trees use if only switches in `copying` can copy.

    The result is slower than the optimum by at most one millionth.

    weights: int64 per rank, number of trees rooted there
    """
    links, ranks = topology.links, topology.compute_count
    widths = np.array([float(width) for width in links.bandwidths])[links.bandwidth_class]
    switches = [switch for switch in range(ranks, topology.node_count) if switch not in copying]
    count = len(links)
    row_of = np.full(topology.node_count, -1)
    row_of[switches] = np.arange(len(switches))
    sent, received = np.flatnonzero(row_of[links.src] >= 0), np.flatnonzero(row_of[links.dst] >= 0)
    places = np.concatenate([row_of[links.src[sent]], row_of[links.dst[received]]]), np.concatenate([sent, received])
    signs = np.concatenate([np.ones(len(sent)), -np.ones(len(received))])
    program = sparse.csr_array((signs, places), shape=(len(switches), count + 1))
    cuts = [np.array([rank]) for rank in range(ranks) if weights.sum() > weights[rank]]
    added = cuts
    for _ in range(MAX_ROUNDS):
        program = sparse.vstack(
            [program, sparse.csr_array(np.stack([_row(topology, weights, cut) for cut in added]))], format="csr"
        )
        goal = np.zeros(count + 1)
        goal[count] = -1.0
        limits = [(0.0, width) for width in widths.tolist()] + [(0.0, None)]
        solution = optimize.linprog(goal, program, np.zeros(program.shape[0]), bounds=limits, method="highs")
        if solution.x is None:
            break
        network, kept = _rounded(topology, solution.x[:count])
        *_, (time, cut) = optimum.improving_cuts(optimum.CutSearch(network, weights))
        if 1 / float(time) >= solution.x[count] * (1 - _CLOSE):
            worth = -solution.ineqlin.marginals
            of_switches = dict(zip(switches, worth.tolist(), strict=False))
            return SwitchedUse(network, kept, cuts, worth[len(switches) :], of_switches)
        added = [cut]
        cuts = [*cuts, cut]
    raise CheckFailed("no use of links without copies was found", topology.spec, "report this network")


def switch_bound(topology: Topology, collective: Collective) -> optimum.Bound | None:
    """Return the bound due to switches that cannot copy, or None if no such switch has more bandwidth out than in.

    For reduce_scatter and reduce, the bound is due to switches that cannot reduce data and have more bandwidth in than
    out. Also returns None if there are more than `MAX_LINKS` links, or if the linear program fails.
    """
    search = optimum.search_for(topology, collective)
    outward = optimum.cut_direction(collective) == "out-of"
    able = {node for node, each in topology.abilities.items() if (each.reduce if outward else each.multicast)}
    surplus = np.zeros(topology.node_count, dtype=np.int64)
    np.add.at(surplus, search.topology.links.src, search.units)
    np.subtract.at(surplus, search.topology.links.dst, search.units)
    narrow = [node for node in range(topology.compute_count, topology.node_count) if surplus[node] > 0]
    if not set(narrow) - able or len(topology.links) > MAX_LINKS:
        return None
    try:
        use = within_switches(search.topology, search.weights[: topology.compute_count], able)
    except (CheckFailed, InvalidInput):
        return None
    scale = _WHOLE / max([*use.weights.tolist(), *use.worth.values()])
    weights = [round(weight * scale) for weight in use.weights.tolist()]
    worth = {node: each for node, value in use.worth.items() if (each := round(value * scale)) > 0}
    links, price = search.topology.links, np.zeros(len(topology.links), dtype=object)
    counted = 0
    for cut, weight in zip(use.cuts, weights, strict=True):
        inside = np.zeros(topology.node_count, dtype=np.bool_)
        inside[cut] = True
        price += weight * (inside[links.dst] & ~inside[links.src]).astype(object)
        counted += weight * int(search.weights[~inside].sum())
    for node, value in worth.items():
        price += value * ((links.dst == node).astype(object) - (links.src == node).astype(object))
    priced = zip(search.topology.links, price.tolist(), strict=True)
    earned = sum((link.bandwidth * each for link, each in priced if each > 0), Fraction(0))
    proof = [(weight, optimum.node_set(cut)) for cut, weight in zip(use.cuts, weights, strict=True) if weight > 0]
    if not proof or not earned:
        return None
    value = counted / earned / optimum.shards_of_vector(topology, collective)
    kind = "cuts-out-of" if outward else "cuts-into"
    prices, parts = zip(*proof, strict=True)
    return optimum.Bound(kind, max(proof)[1], value, parts=parts, prices=prices, worth=tuple(worth.items()))


def _row(topology: Topology, weights: NDArray[np.int64], cut: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the matrix row of the constraint that the links into `cut` carry all trees rooted outside `cut`."""
    inside = np.zeros(topology.node_count, dtype=np.bool_)
    inside[cut] = True
    row = np.zeros(len(topology.links) + 1)
    row[:-1] = -1.0 * (inside[topology.links.dst] & ~inside[topology.links.src])
    row[-1] = weights[~inside[: topology.compute_count]].sum()
    return row


def _rounded(topology: Topology, used: NDArray[np.float64]) -> tuple[Topology, NDArray[np.int64]]:
    """Return (network in which links have the bandwidth `used`, rounded down to a common unit; ids of these links).

    If a switch sends more than it receives after rounding, its outgoing bandwidths are lowered further.
    """
    links = topology.links
    unit = 2.0 ** (math.frexp(float(max(links.bandwidths)))[1] - _GRID_BITS)
    units = np.floor(used / unit).astype(np.int64)
    trim_at_switches(topology, links.src, links.dst, units)
    kept = np.flatnonzero(units)
    values, classes = np.unique(units[kept], return_inverse=True)
    bandwidths = tuple(int(value) * Fraction(unit) for value in values.tolist())
    smaller = Links(
        links.src[kept], links.dst[kept], classes.astype(np.int32), bandwidths, links.latency_class[kept],
        links.latencies_s,
    )  # fmt: skip
    return Topology(topology.spec, topology.node_ids, topology.compute_count, smaller, topology.bandwidth_unit), kept
