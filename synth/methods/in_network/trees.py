"""Divides link bandwidths among trees over ranks and switches that reduce or multicast, and computes the trees' rates.

In a pair of trees, one tree collects sums and the other spreads the results. If links have equal bandwidth in both
directions, the same tree can carry sums up and results down. Such a tree uses both directions of its links at the same
rate. So it is enough to pack out-trees such that, for each link, the rates in both directions add up to at most the
link's bandwidth. The linear program for this split has one variable per orbit of known symmetries, because averaging a
solution over the symmetries gives another solution. The result is only a proposal, which is rounded to fractions
and checked on all links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import fixed_k_optimum, optima
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Integers
from chorale.synth.bounds.tree_pairs import MergedArcs, TreeProgram, exact_vertex, merged_arcs, trim_at_switches
from chorale.synth.collective import Collective, CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.linear_program import Floats
from chorale.synth.methods.forest.network import (
    apportioned,
    at_least_scale,
    carries_all_trees,
    network_of_links,
    trees_on_links,
)
from chorale.synth.methods.forest.reversible_trees import PairedTrees, ReversibleTrees, WholeUnits, packed_trees
from chorale.synth.methods.method import Options
from chorale.synth.topology.expansions import Relabelled, promoted
from chorale.synth.topology.topology import Topology, orbits


def mates_of(topology: Topology) -> NDArray[np.int32] | None:
    """Return int32 per link: the opposite link. None unless each link has an opposite link of the same bandwidth."""
    mates, classes = topology.links.opposites(), topology.links.bandwidth_class
    return mates if (mates >= 0).all() and np.array_equal(classes, classes[mates]) else None


def with_equal_widths(topology: Topology) -> Topology | None:
    """Return `topology` with the bandwidths of opposite links made equal, by lowering the larger one.

    Returns None if a link has no opposite link. Links keep their ids, and trees that fit into the result also fit into
    `topology`.
    """
    mates, links = topology.links.opposites(), topology.links
    if (mates < 0).any():
        return None
    if np.array_equal(links.bandwidth_class, links.bandwidth_class[mates]):
        return topology
    widths = [links.bandwidths[index] for index in links.bandwidth_class.tolist()]
    narrow = [min(width, widths[mate]) for width, mate in zip(widths, mates.tolist(), strict=True)]
    table = tuple(sorted(set(narrow)))
    classes = np.array([table.index(width) for width in narrow], dtype=links.bandwidth_class.dtype)
    return replace(topology, links=replace(links, bandwidth_class=classes, bandwidths=table), automorphisms=())


def rate_of_pairs(topology: Topology, pairs: PairedTrees) -> Fraction:
    """Return the exact rate of an allreduce along `pairs`, limited by links and by how fast switches reduce data."""
    loads = np.zeros(len(topology.links), dtype=np.int64)
    for trees in (pairs.inward, pairs.outward):
        offsets, links = trees.routes.offsets, trees.routes.link_ids
        count = np.diff(offsets)[trees.route]
        position = np.arange(count.sum()) + np.repeat(offsets[trees.route] - (np.cumsum(count) - count), count)
        np.add.at(loads, links[position], np.repeat(trees.hi - trees.lo, count))
    time, inward = topology.links.longest_time(loads), pairs.inward
    for switch, ability in topology.abilities.items():
        if ability.reduce_bandwidth is not None:
            children = np.bincount(inward.tree[inward.src == switch], minlength=len(inward.root))
            time = max(time, Fraction(int(inward.weight[children > 1].sum())) / ability.reduce_bandwidth)
    return pairs.outward.units / time


_MAX_ROUNDS = 60
_MOST_CUTS = 64
_LARGEST_DENOMINATOR = 10**6
MAX_VARIABLES = 4000
"""Maximum number of variables of the linear program, which takes seconds at this size."""
MAX_UNITS = 2**22
"""Up to this number of units, a split is packed without rounding. One tree may carry many units (its weight)."""
_ROUNDED_UNITS = 2**17


@dataclass(frozen=True, slots=True, eq=False)
class UndirectedSplit:
    """A division of each link's bandwidth between the out-trees that use the link in one direction or the other.

    roots:   for each compute node that may be a root, the total rate of the trees rooted there
    outward: for each of `arcs` (one per direction of a link), the bandwidth that out-trees use
    """

    arcs: MergedArcs
    roots: tuple[Fraction, ...]
    outward: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction:
        return sum(self.roots, Fraction(0))


def best_split(relabelled: Relabelled) -> UndirectedSplit | None:
    """Return the best split for trees that span all compute nodes, or None if the linear program would be too large.

    In the split, the bandwidths in both directions of a link add up to at most the link's bandwidth, and no switch
    sends more than it receives. The caller must check whether all cuts can carry the trees (`whole_units` does).
    """
    network = relabelled.network
    arcs, nodes = merged_arcs(network), network.node_count
    keys = arcs.src * nodes + arcs.dst
    back = np.searchsorted(keys, arcs.dst * nodes + arcs.src)
    moves = [np.searchsorted(keys, move[arcs.src] * nodes + move[arcs.dst]) for move in network.automorphisms]
    node_orbit = orbits(nodes, network.automorphisms)
    root_orbit = np.unique(node_orbit[: relabelled.roots], return_inverse=True)[1].astype(np.int64)
    out_column = np.unique(orbits(len(keys), moves), return_inverse=True)[1] + int(root_orbit.max()) + 1
    # One sink of each orbit is enough, because cuts around other sinks give the same constraints.
    sinks = np.zeros(nodes, dtype=np.bool_)
    sinks[np.unique(node_orbit[: network.compute_count], return_index=True)[1]] = True
    program = TreeProgram(
        arcs, network.compute_count, nodes, root_orbit, out_column, out_column[back], sinks,
        is_mirrored=True, advice="leave switches that add out",
    )  # fmt: skip
    if program.variables > MAX_VARIABLES:
        return None
    point = _solved(program)
    matrix, bound = program.matrix(), program.exact_bound()
    values = exact_vertex(matrix, bound, point)
    if values is not None:  # check all rows exactly
        begins = matrix.indptr.tolist()
        for row, span in enumerate(map(slice, begins[:-1], begins[1:])):
            pairs = zip(matrix.indices[span].tolist(), matrix.data[span].tolist(), strict=True)
            if sum((round(factor) * values[column] for column, factor in pairs), Fraction(0)) > bound[row]:
                values = None
                break
    if values is None:
        values = [Fraction(value).limit_denominator(_LARGEST_DENOMINATOR) for value in point.tolist()]
    outward = [values[column] for column in out_column.tolist()]
    for arc, opposite in enumerate(back.tolist()):  # reduce both directions until their sum fits
        excess = outward[arc] + outward[opposite] - arcs.width[arc]
        if excess > 0:
            taken = min(excess, outward[arc])
            outward[arc] -= taken
            outward[opposite] -= excess - taken
    return UndirectedSplit(arcs, tuple(values[orbit] for orbit in root_orbit.tolist()), tuple(outward))


def _solved(program: TreeProgram) -> Floats:
    """Solve `program`, adding violated cuts until there are none; return the optimum up to the solver's tolerances.

    Many vertices are optimal, and a cut violated by one vertex says little about other vertices. So each round also
    looks for cuts that are violated halfway between the current optimum and an inner point, which satisfies all cuts.
    If there are none, the halfway point becomes the inner point. After the last round, the inner point is the result.
    Source: W. Ben-Ameur, J. Neto, "Acceleration of cutting-plane and column generation algorithms" (Networks 49, 2007),
    section 2.
    """
    most = min(int(program.sinks.sum()) + 1, _MOST_CUTS)
    carried = np.zeros(program.variables)
    carried[program.out_column] = [float(width / program.widest) / 2 for width in program.arcs.width]
    for _ in range(_MAX_ROUNDS):
        point, _ = program.solve()
        cuts = program.narrow_cuts(point, most)
        if not cuts:
            return np.asarray(point * float(program.widest))
        between = (point + carried) / 2
        deeper = program.narrow_cuts(between, most)
        if not deeper:
            carried = between
        program.gather_cuts += [*cuts, *deeper]
    return np.asarray(carried * float(program.widest))


def whole_units(relabelled: Relabelled, split: UndirectedSplit, units: int | None) -> WholeUnits:
    """Round `split` to whole units so that all cuts can carry the trees.

    Roots get units in proportion to their rates. Links are scaled by the smallest factor found for which trees fit.

    Args:
        units: approximate number of units; None for the smallest number that loses no speed, or about 2^17 if this
            number exceeds `MAX_UNITS`.

    Raises:
        InvalidInput: if the trees do not fit at any scale for which amounts fit into 64 bits.
    """
    network = relabelled.network

    def is_small(scale: Fraction | int) -> bool:
        return scale * max(network.links.bandwidths) * len(network.links) < LARGEST_AMOUNT

    def whole_at(scale: Fraction | int, counts: Sequence[int]) -> WholeUnits:
        if not is_small(scale):  # the linear program's tolerance hides a cut without any bandwidth
            rule = "the links of a split must carry its trees, in amounts of 64 bits"
            raise InvalidInput(rule, network.spec, "leave these switches as they are")
        supply = np.zeros(network.compute_count, dtype=np.int64)
        supply[: len(counts)] = counts
        return _rounded_down(network, split, scale), supply

    def fits(whole: WholeUnits) -> bool:
        return carries_all_trees(network_of_links(network, *whole))

    exact = lcm(*(value.denominator for value in (*split.roots, *split.outward)))
    if units is None and exact * split.rate <= MAX_UNITS and is_small(exact):
        whole = whole_at(exact, [int(root * exact) for root in split.roots])
        if fits(whole):
            return whole
    counts = apportioned(split.roots, units or _ROUNDED_UNITS)
    return at_least_scale(sum(counts) / split.rate, lambda scale: whole_at(scale, counts), fits)


def _rounded_down(network: Topology, split: UndirectedSplit, scale: Fraction | int) -> Integers:
    """Return int64 per link: `split` times `scale`, rounded to whole units that fit each link in both directions.

    Among parallel links, the first ones carry units in one direction, and the last ones in the other direction.
    """
    arcs, links, nodes = split.arcs, network.links, network.node_count
    demand = {
        int(src) * nodes + int(dst): int(scale * amount)
        for src, dst, amount in zip(arcs.src, arcs.dst, split.outward, strict=True)
    }
    room = np.array([int(scale * width) for width in links.bandwidths], dtype=np.int64)[links.bandwidth_class]
    carried = np.zeros(len(links), dtype=np.int64)
    parallel = links.parallel_index().tolist()
    by_pair: dict[int, list[int]] = {}
    for link, (src, dst) in enumerate(zip(links.src.tolist(), links.dst.tolist(), strict=True)):
        by_pair.setdefault(src * nodes + dst, []).append(link)
    for key, members in by_pair.items():
        src, dst = divmod(key, nodes)
        left = demand[key]
        for link in sorted(members, key=lambda link: parallel[link], reverse=src > dst):
            carried[link] = min(left, int(room[link]))
            left -= int(carried[link])
    for key, members in by_pair.items():  # reduce both directions until their sum fits
        src, dst = divmod(key, nodes)
        back = {parallel[link]: link for link in by_pair[dst * nodes + src]}
        for link in members if src < dst else ():
            other = back[parallel[link]]
            excess = int(carried[link] + carried[other] - room[link])
            if excess > 0:
                taken = min(excess, int(carried[other]))
                carried[other] -= taken
                carried[link] -= excess - taken
    trim_at_switches(network, links.src, links.dst, carried)
    return carried


def spreading_trees(
    topology: Topology, collective: Collective, switches: Sequence[int], options: Options
) -> tuple[ReversibleTrees, Fraction]:
    """Return out-trees for allgather or broadcast that span ranks and `switches`, and their time per byte.

    The trees are as fast as any trees that visit all these switches. If links have the same bandwidth in both
    directions, the reversed trees can be used as in-trees.

    Raises:
        InvalidInput: in the same cases as `packed_trees`.
    """
    relabelled = promoted(topology, switches)
    network = relabelled.network
    supply = np.zeros(network.compute_count, dtype=np.int64)
    supply[slice(topology.compute_count) if collective.root is None else collective.root] = 1
    goal = uneven_collective(CollectiveName.ALLGATHERV, supply.tolist())  # promoted switches have no data of their own
    best = fixed_k_optimum(network, goal, options.k) if options.k else next(optima(network, goal, options.gap))
    whole = trees_on_links(network, best.trees_per_bandwidth), supply * best.k
    return packed_trees(topology, relabelled, whole, options), best.time_per_byte
