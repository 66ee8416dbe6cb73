"""The best allreduce by pairs of trees: roots add up their parts over in-trees and spread them over out-trees.

Roots may have parts of any size, and links may be shared in any proportion between in-trees and out-trees (ForestColl,
appendix E). On symmetric fabrics that is no better than reduce_scatter followed by allgather. Where some ranks have
less bandwidth than others it is: a rank that is no root sends and receives M instead of 2 M (N - 1) / N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.certificate import proven_time
from chorale.synth.bounds.cut_oracle import Flags
from chorale.synth.bounds.cut_search import CutSearch
from chorale.synth.bounds.exact_vertex import exact_vertex
from chorale.synth.bounds.optimum import improving_cuts
from chorale.synth.bounds.pair_program import Multipliers, PairProgram, PairSolution
from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import common_denominator
from chorale.synth.sparse_matrix import Floats
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class MergedArcs:
    """Links without self-loops, parallel ones joined. src, dst: int64 per arc;  width: bandwidth per arc."""

    src: Integers
    dst: Integers
    width: tuple[Fraction, ...]

    @property
    def transposed(self) -> MergedArcs:
        return MergedArcs(self.dst, self.src, self.width)


@dataclass(frozen=True, slots=True, eq=False)
class PairSplit:
    """A feasible split: trees rooted at rank v may carry `roots[v]`, in and out, all at once.

    gather, reduce: bandwidth per arc for out-trees and in-trees, together at most its width. Switches get as much as
    they pass on to out-trees, at least, and pass on as much as they get of in-trees, so that trees exist.
    """

    arcs: MergedArcs
    roots: tuple[Fraction, ...]
    gather: tuple[Fraction, ...]
    reduce: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction:
        """M / T_B of the allreduce."""
        return sum(self.roots, Fraction(0))


def merged_arcs(topology: Topology) -> MergedArcs:
    """Return the arcs of `topology` in the order of (src, dst). O(links log links)."""
    links = topology.links
    useful = np.flatnonzero(links.src != links.dst)
    keys = links.src[useful].astype(np.int64) * topology.node_count + links.dst[useful]
    pairs, arc_of_link = np.unique(keys, return_inverse=True)
    width = [Fraction(0)] * len(pairs)
    for arc, bandwidth_class in zip(arc_of_link.tolist(), links.bandwidth_class[useful].tolist(), strict=True):
        width[arc] += links.bandwidths[bandwidth_class]
    return MergedArcs(pairs // topology.node_count, pairs % topology.node_count, tuple(width))


def even_split(topology: Topology, arcs: MergedArcs) -> PairSplit | None:
    """Return reduce_scatter with allgather: equal roots, half of every link each; None on one-way networks."""
    if not topology.is_eulerian:
        return None
    _, scale = topology.links.integer_bandwidths()
    halves = np.array([int(width * scale) for width in arcs.width], dtype=np.int64)
    ones = np.ones(topology.compute_count, dtype=np.int64)
    return counted_split(topology, arcs, (ones, halves, halves), Fraction(1, 2 * scale))


def rounded_split(topology: Topology, arcs: MergedArcs, point: PairSolution, unit: Fraction) -> PairSplit | None:
    """Return `point` rounded down to whole `unit`s and slowed down until all cuts hold; None if nothing is left."""
    room = np.array([int(width / unit) for width in arcs.width], dtype=np.int64)
    roots, gather, reduce = (_whole(values, unit) for values in (point.roots, point.gather, point.reduce))
    gather = np.minimum(gather, room)
    reduce = np.minimum(reduce, room - gather)
    trim_at_switches(topology, arcs.src, arcs.dst, gather)
    trim_at_switches(topology, arcs.dst, arcs.src, reduce)
    return counted_split(topology, arcs, (roots, gather, reduce), unit)


def exact_split(topology: Topology, arcs: MergedArcs, program: PairProgram, point: PairSolution) -> PairSplit | None:
    """Return the vertex of `program` that `point` is, in rationals; None where it is too large or was not recovered."""
    matrix = program.matrix()
    bound = [*arcs.width, *[Fraction(0)] * (matrix.rows - len(arcs.width))]
    values = exact_vertex(matrix, bound, point.values)
    return None if values is None else split_of_values(topology, arcs, values)


def split_of_values(topology: Topology, arcs: MergedArcs, values: Sequence[Fraction]) -> PairSplit | None:
    """Return the split of `values`, (roots, gather per arc, reduce per arc), cut down to what links and switches allow.

    None where no 64-bit unit makes the values whole, and where nothing is left.
    """
    scale = lcm(*(value.denominator for value in (*values, *arcs.width)))
    whole = [int(value * scale) for value in values]
    if max(*whole, *(int(width * scale) for width in arcs.width)) >= _LARGEST_WHOLE:
        return None
    ranks, links = topology.compute_count, len(arcs.width)
    roots, gather, reduce = np.split(np.array(whole, dtype=np.int64), [ranks, ranks + links])
    room = np.array([int(width * scale) for width in arcs.width], dtype=np.int64)
    gather = np.minimum(gather, room)
    reduce = np.minimum(reduce, room - gather)
    trim_at_switches(topology, arcs.src, arcs.dst, gather)
    trim_at_switches(topology, arcs.dst, arcs.src, reduce)
    return counted_split(topology, arcs, (roots, gather, reduce), Fraction(1, scale))


def _whole(values: NDArray[np.float64], unit: Fraction) -> Integers:
    # A solver's 2.9999999 is a 3; what that adds too much is taken off again where it matters.
    return np.floor(values / float(unit) + 1e-4).astype(np.int64)


def trim_at_switches(topology: Topology, src: NDArray[np.integer], dst: NDArray[np.integer], amounts: Integers) -> None:
    """Take from the `amounts` of arcs out of switches what these do not get.

    What is taken from one switch may be missing at the next, around circles too; later rounds take twice as much as
    the one before, so that circles run dry.
    """
    switches = range(topology.compute_count, topology.node_count)
    rounds = 0
    short = True
    while short:
        short = False
        for switch in switches:
            outgoing = np.flatnonzero((src == switch) & (amounts > 0))
            excess = int(amounts[outgoing].sum() - amounts[dst == switch].sum())
            short |= excess > 0
            surplus = max(excess, 0) << max(0, rounds - len(switches))
            for arc in outgoing:
                taken = min(surplus, int(amounts[arc]))
                amounts[arc] -= taken
                surplus -= taken
        rounds += 1


def counted_split(
    topology: Topology, arcs: MergedArcs, amounts: tuple[Integers, Integers, Integers], unit: Fraction
) -> PairSplit | None:
    """Return the split with the rates of roots scaled to what the narrowest cut allows."""
    roots, gather, reduce = amounts
    if not roots.any():
        return None
    try:
        slowest = max(_time(topology, arcs, roots, gather), _time(topology, arcs.transposed, roots, reduce))
    except InvalidInput:  # rounding has cut off a rank, or the numbers are too fine for 64 bits
        return None
    return PairSplit(
        arcs,
        tuple(int(root) * unit / slowest for root in roots),
        tuple(int(amount) * unit for amount in gather),
        tuple(int(amount) * unit for amount in reduce),
    )


def _time(topology: Topology, arcs: MergedArcs, roots: Integers, amounts: Integers) -> Fraction:
    """Return the largest (roots outside T) / (amounts into T)."""
    columns: Sequence[list[int]] = (arcs.src.tolist(), arcs.dst.tolist(), amounts.tolist())
    links = Links.build(Link(src, dst, Fraction(amount)) for src, dst, amount in zip(*columns, strict=True) if amount)
    part = Topology(topology.spec, topology.node_ids, topology.compute_count, links)
    *_, (time, _) = improving_cuts(CutSearch.of(part, roots))
    return time


MAX_RANKS = 256
MAX_LINKS = 2048
_MAX_ROUNDS = 100
_EVEN_ROUNDS = 8
_MOST_RANKS_ALL_EVEN, _MOST_RANKS_EVEN = 32, 128
"""Up to the first all rounds begin anew, which takes less than a second; up to the second the first ones do."""
_MET = 1e-9
_COMMON = 2**20
_FINE = 2**24
_LARGEST_WHOLE = 2**50
_DENOMINATORS = (100, 1000, 10_000, 2**24)


@dataclass(frozen=True, slots=True, eq=False)
class TreePairs:
    """A split of the network that was checked exactly, and what no split can beat.

    time_per_byte: of `split`, exact;  bound: no pairs of trees take less, as `certificate` proves (see
    `check_pair_certificate`). It is no bound on allreduce in general.
    """

    split: PairSplit
    bound: Fraction
    certificate: Mapping[str, Any]

    @property
    def time_per_byte(self) -> Fraction:
        return 1 / self.split.rate

    @property
    def gap(self) -> Fraction:
        """time_per_byte / bound - 1; 0 if the split is proven to be the best."""
        return self.time_per_byte / self.bound - 1


def is_within_limits(topology: Topology) -> bool:
    """Whether `tree_pairs` takes the network: at most 256 ranks and 2048 links between pairs of nodes."""
    return topology.compute_count <= MAX_RANKS and len(merged_arcs(topology).src) <= MAX_LINKS


def tree_pairs(topology: Topology, even: bool = False) -> TreePairs:
    """Return the best pairs of trees for allreduce, with the gap that rounding leaves (mostly 0).

    Solves the program over known cuts, asks the oracle for cuts that its answer breaks, and repeats. The answer is
    rounded down and counted exactly; the multipliers of the cuts are rounded into a certificate. Of optimal answers
    `even` asks for one whose rates suit few whole trees better; that takes 2 to 8 times as long. Raises InvalidInput
    above 256 ranks or 2048 links between pairs of nodes: with twice as many, packing the trees may take minutes.
    """
    arcs = merged_arcs(topology)
    if not is_within_limits(topology):
        rule = f"the linear program of allreduce takes at most {MAX_RANKS} ranks and {MAX_LINKS} links"
        value = f"{topology.compute_count} ranks and {len(arcs.src)} links"
        raise InvalidInput(rule, value, "take reduce_scatter and allgather, or a smaller fabric")
    widest = max(arcs.width)
    width = np.array([float(value / widest) for value in arcs.width])
    program = PairProgram(topology.compute_count, topology.node_count, arcs.src, arcs.dst, width)
    equal = even_split(topology, arcs)
    even_rounds = _even_rounds(topology.compute_count, even)
    for rounds_left in reversed(range(_MAX_ROUNDS)):
        point, multipliers = program.solve()
        met = equal is not None and float(point.roots.sum()) <= float(equal.rate / widest) * (1 + _MET)
        # Cuts that no solve has seen have no multipliers: the last round adds none.
        if met or rounds_left == 0 or program.add_cuts(point) == 0:
            break
        if _MAX_ROUNDS - rounds_left <= even_rounds:
            program.start_over()
    point, width = point.scaled(float(widest)), width * float(widest)
    units = [Fraction(1, common_denominator(np.concatenate([point.values, width]), _COMMON)), widest / _FINE]
    splits = [equal, *(rounded_split(topology, arcs, point, unit) for unit in units)]
    if not met:
        splits.append(exact_split(topology, arcs, program, point))
    certificate = _certificate(topology, program, multipliers)
    best = max((split for split in splits if split is not None), key=lambda split: split.rate, default=None)
    if best is None:
        rule = "pairs of trees are counted in 64-bit units of the widest link"
        raise InvalidInput(rule, topology.spec, "take reduce_scatter and allgather, or bandwidths that differ less")
    return TreePairs(best, Fraction(certificate["time_per_byte"]), certificate)


def _even_rounds(ranks: int, even: bool) -> int:
    """Return how many rounds let the solver begin anew: trees are lower for it, and later rounds much quicker."""
    if ranks <= _MOST_RANKS_ALL_EVEN or (even and ranks <= _MOST_RANKS_EVEN):
        return _MAX_ROUNDS
    return _EVEN_ROUNDS if ranks <= _MOST_RANKS_EVEN else 0


def pairs_if_countable(topology: Topology, even: bool = False) -> TreePairs | None:
    """Return `tree_pairs`; None beyond its limits, and where bandwidths differ too much for it."""
    if not is_within_limits(topology):
        return None
    try:
        return tree_pairs(topology, even)
    except (InvalidInput, Unavailable):
        return None


def _certificate(topology: Topology, program: PairProgram, multipliers: Multipliers) -> Mapping[str, Any]:
    """Return the rounding of `multipliers` that proves most."""
    candidates = [_rounded(topology, program, multipliers, largest) for largest in _DENOMINATORS]
    return max(candidates, key=lambda candidate: Fraction(candidate["time_per_byte"]))


def _rounded(topology: Topology, program: PairProgram, multipliers: Multipliers, largest: int) -> Mapping[str, Any]:
    names = np.array(topology.node_ids)
    switches = topology.node_ids[topology.compute_count :]

    def weighted(cuts: Sequence[Flags], values: Floats) -> list[dict[str, Any]]:
        pairs = zip(cuts, _rationals(values, largest), strict=True)
        return [{"nodes": names[cut].tolist(), "weight": str(weight)} for cut, weight in pairs if weight]

    def worth(values: Floats) -> dict[str, str]:
        pairs = zip(switches, _rationals(values, largest), strict=True)
        return {name: str(value) for name, value in pairs if value}

    certificate = {
        "kind": "tree-pairs",
        "gather_cuts": weighted(program.gather_cuts, multipliers.gather_cuts),
        "reduce_cuts": weighted(program.reduce_cuts, multipliers.reduce_cuts),
        "gather_switches": worth(multipliers.gather_switches),
        "reduce_switches": worth(multipliers.reduce_switches),
    }
    return certificate | {"time_per_byte": str(proven_time(topology, certificate))}


def _rationals(values: Floats, largest: int) -> list[Fraction]:
    return [Fraction(value).limit_denominator(largest) for value in values.tolist()]
