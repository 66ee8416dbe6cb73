"""Finds the best allreduce along pairs of trees: in-trees add up each root's data, and out-trees spread the results.

Roots may have parts of any size, and in-trees and out-trees may share a link in any proportion (ForestColl, appendix
E). On symmetric networks, this is no better than reduce_scatter followed by allgather. It is better if some ranks have
less bandwidth than others: a rank that is not a root sends and receives M bytes instead of 2 M (N - 1) / N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from chorale.synth.bounds.certificate import proven_time
from chorale.synth.bounds.optimum import CutSearch, improving_cuts
from chorale.synth.bounds.residual_graph import Flags, Integers
from chorale.synth.bounds.tree_program import (
    MergedArcs,
    Multipliers,
    TreeProgram,
    exact_vertex,
    merged_arcs,
    trim_at_switches,
)
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import common_denominator
from chorale.synth.linear_program import Floats
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology

MAX_RANKS = 256
MAX_LINKS = 2048
_MAX_ROUNDS = 100
_EVEN_ROUNDS = 8
_MOST_RANKS_ALL_EVEN, _MOST_RANKS_EVEN = 32, 128
"""Up to 32 ranks, the solver starts all rounds from scratch, in less than a second; up to 128 ranks, the first few."""
_MET = 1e-9
_COMMON = 2**20
_FINE = 2**24
_LARGEST_WHOLE = 2**50
_DENOMINATORS = (100, 1000, 10_000, 2**24)


@dataclass(frozen=True, slots=True, eq=False)
class PairSplit:
    """A division of the network's bandwidth between out-trees and in-trees that satisfies all cuts.

    Attributes:
        roots: rate of the trees rooted at each rank, which is the same in both directions.
        gather, reduce: each arc's bandwidth for out-trees and for in-trees. Their sum is at most the arc's width. Every
            switch receives at least as much of the out-trees' data as it sends, and sends at least as much of the
            in-trees' data as it receives.
    """

    arcs: MergedArcs
    roots: tuple[Fraction, ...]
    gather: tuple[Fraction, ...]
    reduce: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction:
        """Rate M / T_B of the allreduce."""
        return sum(self.roots, Fraction(0))


@dataclass(frozen=True, slots=True, eq=False)
class TreePairs:
    """The best known division of the network between pairs of trees, checked exactly, and a bound on any division.

    Attributes:
        bound: lower bound on the time per byte of any pairs of trees, proved by `certificate` (see
            `check_pair_certificate`). Other kinds of allreduce may be faster.
    """

    split: PairSplit
    bound: Fraction
    certificate: Mapping[str, Any]

    @property
    def time_per_byte(self) -> Fraction:
        return 1 / self.split.rate

    @property
    def gap(self) -> Fraction:
        """Time above the bound, relative to the bound; 0 if the split is proven to be the best."""
        return self.time_per_byte / self.bound - 1


def is_within_limits(topology: Topology) -> bool:
    """Return whether `tree_pairs` accepts the network: at most 256 ranks and 2048 links between pairs of nodes."""
    return topology.compute_count <= MAX_RANKS and len(merged_arcs(topology).src) <= MAX_LINKS


def pairs_if_countable(topology: Topology, even: bool = False) -> TreePairs | None:
    """Return the result of `tree_pairs`, or None if the network is too large or bandwidths differ too much."""
    if not is_within_limits(topology):
        return None
    try:
        return tree_pairs(topology, even)
    except (InvalidInput, Unavailable):
        return None


def tree_pairs(topology: Topology, even: bool = False) -> TreePairs:
    """Return the best pairs of trees for allreduce. Rounding may leave a gap to the bound, but it is usually 0.

    Solves the linear program with the known cuts, adds the cuts that the solution violates, and repeats this. Then the
    solution is rounded down and checked exactly, and the dual values of the cuts are rounded to a certificate.

    Args:
        topology: at most 256 ranks and 2048 links between pairs of nodes. With twice as many, packing the trees may
            take minutes.
        even: prefer an optimal solution with rates that few trees can achieve; takes 2 to 8 times as long.

    Raises:
        InvalidInput: above these limits, and if bandwidths differ too much for 64-bit units.
        Unavailable: if the solver finds no optimum.
    """
    arcs, ranks = merged_arcs(topology), topology.compute_count
    if not is_within_limits(topology):
        rule = f"the linear program of allreduce takes at most {MAX_RANKS} ranks and {MAX_LINKS} links"
        value = f"{ranks} ranks and {len(arcs.src)} links"
        raise InvalidInput(rule, value, "use reduce_scatter and allgather, or a smaller network")
    links = np.arange(len(arcs.src))
    program = TreeProgram(
        arcs, ranks, topology.node_count, np.arange(ranks), ranks + links, ranks + len(links) + links,
        np.arange(topology.node_count) < ranks, is_mirrored=False, advice="use reduce_scatter and allgather",
    )  # fmt: skip
    equal = None
    if topology.is_eulerian:  # reduce_scatter, then allgather: equal roots, and half of every link for each phase
        _, scale = topology.links.integer_bandwidths()
        halves = np.array([int(width * scale) for width in arcs.width], dtype=np.int64)
        equal = _counted_split(topology, arcs, np.ones(ranks, dtype=np.int64), halves, halves, Fraction(1, 2 * scale))
    even_rounds = _even_rounds(ranks, even)
    for rounds_left in reversed(range(_MAX_ROUNDS)):
        point, marginals = program.solve()
        met = equal is not None and float(point[:ranks].sum()) <= float(equal.rate / program.widest) * (1 + _MET)
        if met or rounds_left == 0:  # the last round adds no cuts, because they would not have dual values
            break
        gather, reduce = (program.narrow_cuts(point, ranks + 1, inward=inward) for inward in (False, True))
        if not gather and not reduce:
            break
        program.gather_cuts += gather
        program.reduce_cuts += reduce
        if _MAX_ROUNDS - rounds_left <= even_rounds:
            program.start_over()
    multipliers = program.multipliers(marginals)
    widest = float(program.widest)
    point, width = point * widest, np.array([float(value / program.widest) for value in arcs.width]) * widest
    units = [Fraction(1, common_denominator(np.concatenate([point, width]), _COMMON)), program.widest / _FINE]
    splits = [equal, *(_rounded_split(topology, arcs, point, unit) for unit in units)]
    if not met and (vertex := exact_vertex(program.matrix(), program.exact_bound(), point)) is not None:
        splits.append(split_of_values(topology, arcs, vertex))
    best = max((split for split in splits if split is not None), key=lambda split: split.rate, default=None)
    if best is None:
        rule = "pairs of trees are counted in 64-bit units of the widest link"
        raise InvalidInput(rule, topology.spec, "use reduce_scatter and allgather, or bandwidths that differ less")
    candidates = [_certificate(topology, program, multipliers, largest) for largest in _DENOMINATORS]
    certificate = max(candidates, key=lambda candidate: Fraction(candidate["time_per_byte"]))
    return TreePairs(best, Fraction(certificate["time_per_byte"]), certificate)


def _even_rounds(ranks: int, even: bool) -> int:
    """Return in how many rounds the solver starts from scratch, for shallower trees and much faster later rounds."""
    if ranks <= _MOST_RANKS_ALL_EVEN or (even and ranks <= _MOST_RANKS_EVEN):
        return _MAX_ROUNDS
    return _EVEN_ROUNDS if ranks <= _MOST_RANKS_EVEN else 0


def _certificate(topology: Topology, program: TreeProgram, multipliers: Multipliers, largest: int) -> Mapping[str, Any]:
    """Return the certificate made from `multipliers`, rounded to fractions with denominators up to `largest`."""
    names = np.array(topology.node_ids)
    switches = topology.node_ids[topology.compute_count :]

    def rationals(values: Floats) -> list[Fraction]:
        return [Fraction(value).limit_denominator(largest) for value in values.tolist()]

    def weighted(cuts: Sequence[Flags], values: Floats) -> list[dict[str, Any]]:
        pairs = zip(cuts, rationals(values), strict=True)
        return [{"nodes": names[cut].tolist(), "weight": str(weight)} for cut, weight in pairs if weight]

    def worth(values: Floats) -> dict[str, str]:
        return {name: str(value) for name, value in zip(switches, rationals(values), strict=True) if value}

    certificate = {
        "kind": "tree-pairs",
        "gather_cuts": weighted(program.gather_cuts, multipliers.gather_cuts),
        "reduce_cuts": weighted(program.reduce_cuts, multipliers.reduce_cuts),
        "gather_switches": worth(multipliers.gather_switches),
        "reduce_switches": worth(multipliers.reduce_switches),
    }
    return certificate | {"time_per_byte": str(proven_time(topology, certificate))}


def _rounded_split(topology: Topology, arcs: MergedArcs, point: Floats, unit: Fraction) -> PairSplit | None:
    """Return `point` rounded to multiples of `unit` and lowered until all cuts hold, or None if nothing is left."""
    whole = np.floor(point / float(unit) + 1e-4).astype(np.int64)
    return _trimmed_split(topology, arcs, whole, unit)


def split_of_values(topology: Topology, arcs: MergedArcs, values: Sequence[Fraction]) -> PairSplit | None:
    """Return the split with these `values`, lowered if they exceed the limits of links or switches.

    Args:
        values: rates of the roots, then each arc's bandwidth for out-trees, then for in-trees.

    Returns:
        The split, or None if no 64-bit unit makes all values integers or if nothing is left.
    """
    scale = lcm(*(value.denominator for value in (*values, *arcs.width)))
    whole = [int(value * scale) for value in values]
    if max(*whole, *(int(width * scale) for width in arcs.width)) >= _LARGEST_WHOLE:
        return None
    return _trimmed_split(topology, arcs, np.array(whole, dtype=np.int64), Fraction(1, scale))


def _trimmed_split(topology: Topology, arcs: MergedArcs, whole: Integers, unit: Fraction) -> PairSplit | None:
    """Return the split with `whole` units per variable, lowered if it exceeds the limits of links or switches."""
    roots, gather, reduce = np.split(whole, np.cumsum([topology.compute_count, len(arcs.width)]))
    room = np.array([int(width / unit) for width in arcs.width], dtype=np.int64)
    gather = np.minimum(gather, room)
    reduce = np.minimum(reduce, room - gather)
    trim_at_switches(topology, arcs.src, arcs.dst, gather)
    trim_at_switches(topology, arcs.dst, arcs.src, reduce)
    return _counted_split(topology, arcs, roots, gather, reduce, unit)


def _counted_split(
    topology: Topology, arcs: MergedArcs, roots: Integers, gather: Integers, reduce: Integers, unit: Fraction
) -> PairSplit | None:
    """Return the split with root rates scaled so that all cuts can carry them, or None if a rank is cut off."""
    if not roots.any():
        return None

    def time(ends: MergedArcs, amounts: Integers) -> Fraction:
        """Return the largest (rates of roots outside T) / (amounts into T) over all node sets T that contain a rank."""
        columns: Sequence[list[int]] = (ends.src.tolist(), ends.dst.tolist(), amounts.tolist())
        rows = zip(*columns, strict=True)
        links = Links.build(Link(src, dst, Fraction(amount)) for src, dst, amount in rows if amount)
        part = Topology(topology.spec, topology.node_ids, topology.compute_count, links)
        *_, (slowest, _) = improving_cuts(CutSearch.of(part, roots))
        return slowest

    try:
        slowest = max(time(arcs, gather), time(arcs.transposed, reduce))
    except InvalidInput:  # rounding has cut off a rank, or the numbers are too fine for 64 bits
        return None
    return PairSplit(
        arcs,
        tuple(int(root) * unit / slowest for root in roots),
        tuple(int(amount) * unit for amount in gather),
        tuple(int(amount) * unit for amount in reduce),
    )
