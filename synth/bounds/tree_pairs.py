"""Finds the best allreduce along pairs of trees: in-trees collect sums at roots, and out-trees spread the results.

Each root may own any fraction of the vector, and in-trees and out-trees may share a link in any proportion (ForestColl,
appendix E). On symmetric networks, this is no faster than reduce_scatter followed by allgather. It is faster if some
ranks have less bandwidth than others: a rank that is not a root sends and receives M bytes, not 2 M (N - 1) / N.

The variables of the linear program are the rate of each root and the bandwidths of each arc. ForestColl formulates
"every rank receives c units" with flows, which takes 2 N variables per link. Here, every cut that was found to be too
narrow is one row, so the program stays small, and its dual solution is a short certificate.
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
from chorale.synth.bounds.optimum import CutSearch, improving_cuts
from chorale.synth.bounds.residual_graph import Flags, Integers, violated_cuts
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import common_denominator
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import Floats, GrowingProgram, SparseMatrix, of_entries
from chorale.synth.topology.topology import Link, Links, Topology

MAX_VARIABLES = 160
"""Maximum number of variables for Gaussian elimination in rationals, which would take too long with more."""
_ZERO = 1e-13
_TIGHT = 1e-10
_FREE_DENOMINATOR = 10**6
_UNITS = 2**40
_SLACK = 1e-7
Row = dict[int, Fraction]
"""Maps column numbers to coefficients. The right-hand side is stored under column -1."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedArcs:
    """The links of a network, except self-loops; parallel links are merged into one arc.

    src, dst: int64 per arc
    width:    total bandwidth of each arc
    """

    src: Integers
    dst: Integers
    width: tuple[Fraction, ...]

    @property
    def transposed(self) -> MergedArcs:
        return MergedArcs(self.dst, self.src, self.width)


def merged_arcs(topology: Topology) -> MergedArcs:
    """Return the arcs of `topology`, sorted by (src, dst). O(links log links)."""
    links = topology.links
    useful = np.flatnonzero(links.src != links.dst)
    keys = links.src[useful].astype(np.int64) * topology.node_count + links.dst[useful]
    pairs, arc_of_link = np.unique(keys, return_inverse=True)
    width = [Fraction(0)] * len(pairs)
    for arc, bandwidth_class in zip(arc_of_link.tolist(), links.bandwidth_class[useful].tolist(), strict=True):
        width[arc] += links.bandwidths[bandwidth_class]
    return MergedArcs(pairs // topology.node_count, pairs % topology.node_count, tuple(width))


def trim_at_switches(topology: Topology, src: NDArray[np.integer], dst: NDArray[np.integer], amounts: Integers) -> None:
    """Lower the `amounts` of arcs, in place, until no switch sends more than it receives.

    If one switch sends less, the next switch may receive too little, and so on, possibly around a cycle. To empty
    cycles quickly, each round after the first `len(switches)` rounds doubles the amounts to remove.
    """
    switches = range(topology.compute_count, topology.node_count)
    rounds = 0
    is_short = True
    while is_short:
        is_short = False
        for switch in switches:
            outgoing = np.flatnonzero((src == switch) & (amounts > 0))
            excess = int(amounts[outgoing].sum() - amounts[dst == switch].sum())
            is_short |= excess > 0
            surplus = max(excess, 0) << max(0, rounds - len(switches))
            for arc in outgoing:
                taken = min(surplus, int(amounts[arc]))
                amounts[arc] -= taken
                surplus -= taken
        rounds += 1


class TreeProgram:
    """A linear program that maximises the total rate of all roots, in units of the widest arc.

    At every switch, out-trees take at least as much incoming as outgoing bandwidth, and in-trees at most as much. If a
    set of nodes contains a rank, the arcs into the set must carry the out-trees of all roots outside (`gather_cuts`),
    and the arcs out of the set must carry their in-trees (`reduce_cuts`). Cuts (bool[nodes]) are added when found.

    Args:
        arcs: the network.
        ranks, nodes: number of compute nodes (which have the lowest indices), and of all nodes.
        root_column, out_column, in_column: column of each root's variable, and of each arc's variables for out-trees
            and in-trees. Roots or arcs that symmetries map to one another may share a variable.
        sinks: flags per node; cuts are only searched around the flagged compute nodes.
        is_mirrored: whether in-trees are reversed out-trees; in-trees then need no rows.
        advice: what the error message recommends if the solver fails.
    """

    def __init__(
        self, arcs: MergedArcs, ranks: int, nodes: int, root_column: Integers, out_column: Integers,
        in_column: Integers, sinks: Flags, *, is_mirrored: bool, advice: str,
    ) -> None:  # fmt: skip
        self.arcs, self.ranks, self.nodes, self.sinks = arcs, ranks, nodes, sinks
        self.root_column, self.out_column, self.in_column = root_column, out_column, in_column
        self.is_mirrored, self._advice = is_mirrored, advice
        self.widest = max(arcs.width)
        self.roots = int(root_column.max()) + 1
        self.variables = int(max(out_column.max(), in_column.max())) + 1
        low, high = np.minimum(out_column, in_column), np.maximum(out_column, in_column)
        self._first_of_width = np.unique(low * self.variables + high, return_index=True)[1]
        alone = list(np.eye(nodes, dtype=np.bool_)[sinks])
        self.gather_cuts, self.reduce_cuts = list(alone), [] if is_mirrored else list(alone)
        self._is_gather: list[bool] = []  # for each of the solver's cuts, in row order
        self._program: GrowingProgram | None = None

    def solve(self) -> tuple[Floats, Floats]:
        """Return (value of each variable, dual value of each row), accurate up to the solver's tolerances."""
        if self._program is None:
            bound = np.array([float(value / self.widest) for value in self.exact_bound()])
            objective = np.zeros(self.variables)
            np.subtract.at(objective, self.root_column, 1.0)
            self._program = GrowingProgram(objective, self.matrix(), bound, self._advice)
            self._is_gather = [True] * len(self.gather_cuts) + [False] * len(self.reduce_cuts)
        else:
            gather = self.gather_cuts[self._is_gather.count(True) :]
            reduce = self.reduce_cuts[self._is_gather.count(False) :]
            self._is_gather += [True] * len(gather) + [False] * len(reduce)
            rows = self._crossing(gather, reduce)
            self._program.add_rows(rows, np.zeros(rows.shape[0]))
        point, marginals = self._program.minimum()
        # Solvers may return numbers slightly below zero, which the search for cuts does not accept.
        return np.maximum(0.0, point), np.maximum(0.0, -marginals)

    def start_over(self) -> None:
        """Make the next `solve` start from scratch, with a slower method that makes root rates more equal."""
        self._program = None

    def multipliers(self, marginals: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the dual values in four parts: out-tree cuts, in-tree cuts, out-tree balances and in-tree balances."""
        switches = self.nodes - self.ranks
        _, out_trees, in_trees, cuts = np.split(marginals, np.cumsum([len(self._first_of_width), switches, switches]))
        of_gather = np.array(self._is_gather)
        return cuts[of_gather], cuts[~of_gather], out_trees, in_trees

    def exact_bound(self) -> list[Fraction]:
        """Return the right-hand sides of all constraints as exact fractions, in the unit of `arcs.width`."""
        widths = [self.arcs.width[arc] for arc in self._first_of_width.tolist()]
        zeros = (self.nodes - self.ranks) * (1 if self.is_mirrored else 2) + len(self.gather_cuts + self.reduce_cuts)
        return [*widths, *[Fraction(0)] * zeros]

    def matrix(self) -> SparseMatrix:
        """Return the matrix with all current rows: arc widths, then switch balances, then cuts."""
        arcs, ranks = self.arcs, self.ranks
        first = self._first_of_width
        row, one = np.arange(len(first)), np.ones(len(first))
        widths = self._rows([(row, self.out_column[first], one), (row, self.in_column[first], one)], len(first))
        parts, switches = [], self.nodes - ranks
        for ends, sign in ((arcs.src, 1.0), (arcs.dst, -1.0)):
            used = np.flatnonzero(ends >= ranks)
            switch, signs = ends[used] - ranks, np.full(len(used), sign)
            parts.append((switch, self.out_column[used], signs))
            if not self.is_mirrored:
                parts.append((switches + switch, self.in_column[used], -signs))
        balance = self._rows(parts, switches * (1 if self.is_mirrored else 2))
        cuts = self._crossing(self.gather_cuts, self.reduce_cuts)
        return sparse.vstack([widths, balance, cuts], format="csr")

    def _crossing(self, gather_cuts: Sequence[Flags], reduce_cuts: Sequence[Flags]) -> SparseMatrix:
        parts, first = [], 0
        arcs, roots = self.arcs, len(self.root_column)
        for cuts, tails, heads, columns in (
            (gather_cuts, arcs.src, arcs.dst, self.out_column),
            (reduce_cuts, arcs.dst, arcs.src, self.in_column),
        ):
            inside = np.array(cuts, dtype=np.bool_).reshape(-1, self.nodes)
            row, root = np.nonzero(~inside[:, :roots])
            parts.append((first + row, self.root_column[root], np.ones(len(row))))
            row, arc = np.nonzero(inside[:, heads] & ~inside[:, tails])
            parts.append((first + row, columns[arc], np.full(len(row), -1.0)))
            first += len(cuts)
        return self._rows(parts, first)

    def _rows(self, parts: Sequence[tuple[Integers, Integers, Floats]], count: int) -> SparseMatrix:
        row, column, value = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        return of_entries(row, column, value, count, self.variables)

    def narrow_cuts(self, point: Floats, most: int, *, inward: bool = False) -> list[Flags]:
        """Return up to `most` cuts that the solution `point` overloads with out-trees (with in-trees if `inward`)."""
        arcs = self.arcs.transposed if inward else self.arcs
        amounts = np.ceil(point[self.in_column if inward else self.out_column] * _UNITS).astype(np.int64)
        supply = np.zeros(self.nodes, dtype=np.int64)
        supply[: len(self.root_column)] = np.floor(point[self.root_column] * _UNITS * (1 - _SLACK))
        return list(violated_cuts(arcs.src, arcs.dst, amounts, supply, self.sinks, most))


def exact_vertex(matrix: SparseMatrix, bound: Sequence[Fraction], point: Floats) -> list[Fraction] | None:
    """Turn the approximate vertex `point` into an exact one: nearly tight constraints become equations, solved exactly.

    Args:
        matrix, bound: constraints `matrix` @ x <= `bound`, with integer coefficients.
        point: a floating-point vertex. Variables that are 0 remain 0. A variable that the constraints do not determine
            is rounded to a fraction.

    Returns:
        The values of the variables, or None if more than `MAX_VARIABLES` are above 0. O(variables ^ 2 * rows).
    """
    used = np.flatnonzero(point > _ZERO * point.max(initial=0.0)).tolist()
    if len(used) > MAX_VARIABLES:
        return None
    sizes = abs(matrix) @ point
    slack = np.array([float(value) for value in bound]) - matrix @ point
    tight, begins, members = list[Row](), matrix.indptr.tolist(), set(used)
    for index in np.flatnonzero(slack <= _TIGHT * sizes).tolist():
        span = slice(begins[index], begins[index + 1])
        pairs = zip(matrix.indices[span].tolist(), matrix.data[span].tolist(), strict=True)
        row = {column: Fraction(round(value)) for column, value in pairs if column in members}
        if row:
            tight.append(row | {-1: bound[index]})
    # Gaussian elimination. A pivot row has 1 in its pivot column and 0 in earlier pivot columns. Contradictory rows
    # are dropped.
    pivots: list[tuple[int, Row]] = []
    for row in sorted(tight, key=len):
        for column, pivot in pivots:
            factor = row.pop(column, Fraction(0))
            if factor:
                for other, value in pivot.items():
                    if other != column:
                        row[other] = row.get(other, Fraction(0)) - factor * value
        left = {column: value for column, value in row.items() if value or column == -1}
        column = max(left)
        if column != -1:
            pivots.append((column, {other: value / left[column] for other, value in left.items()}))
    values = {column: Fraction(float(point[column])).limit_denominator(_FREE_DENOMINATOR) for column in used}
    for column, row in reversed(pivots):
        rest = sum((value * values[other] for other, value in row.items() if other not in (-1, column)), Fraction(0))
        values[column] = row.get(-1, Fraction(0)) - rest
    return [max(Fraction(0), values.get(column, Fraction(0))) for column in range(len(point))]


MAX_RANKS = 256
MAX_LINKS = 2048
_MAX_ROUNDS = 100
_EVEN_ROUNDS = 8
_MOST_RANKS_ALL_EVEN, _MOST_RANKS_EVEN = 32, 128
"""Up to the first number of ranks, the solver starts from scratch in every round.

Up to the second number, it does so in every round if `even` is set, otherwise in the first `_EVEN_ROUNDS` rounds.
"""
_MET = 1e-9
_COMMON = 2**20
_FINE = 2**24
_LARGEST_WHOLE = 2**50
_DENOMINATORS = (100, 1000, 10_000, 2**24)


@dataclass(frozen=True, slots=True, eq=False)
class PairSplit:
    """A division of the bandwidths of `arcs` between out-trees and in-trees that satisfies all cuts.

    Attributes:
        roots: rate of the out-trees of each rank, which is also the rate of its in-trees.
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
        """Rate of the allreduce, M / T_B: the vector size divided by the bandwidth time."""
        return sum(self.roots, Fraction(0))


@dataclass(frozen=True, slots=True, eq=False)
class TreePairs:
    """The best known division of link bandwidths among pairs of trees, checked exactly, and a bound on all divisions.

    Attributes:
        split: the best known division.
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
    """Return the best pairs of trees, or None if `tree_pairs` does not support the network's size or bandwidths."""
    if not is_within_limits(topology):
        return None
    try:
        return tree_pairs(topology, even)
    except (InvalidInput, Unavailable):
        return None


def tree_pairs(topology: Topology, even: bool = False) -> TreePairs:
    """Return the best pairs of trees for allreduce. Rounding may leave a gap to the bound, but the gap is usually 0.

    Solves the linear program with the known cuts, adds the cuts that the solution violates, and repeats this. Then the
    solution is rounded down and checked exactly, and the dual values of the cuts are rounded to a certificate.

    Args:
        topology: a network with at most 256 ranks and 2048 links between pairs of nodes. On networks of twice this
            size, packing the trees may take minutes.
        even: whether to prefer an optimal solution with rates that few trees can achieve; takes 2 to 8 times as long.

    Raises:
        InvalidInput: if the network exceeds these limits, or its bandwidths differ too much for 64-bit units.
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
    # In the first rounds, the solver starts from scratch. This makes trees shallower and later rounds much faster.
    is_all_even = ranks <= _MOST_RANKS_ALL_EVEN or (even and ranks <= _MOST_RANKS_EVEN)
    even_rounds = _MAX_ROUNDS if is_all_even else _EVEN_ROUNDS if ranks <= _MOST_RANKS_EVEN else 0
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
    widest = float(program.widest)
    point, width = point * widest, np.array([float(value / program.widest) for value in arcs.width]) * widest
    units = [Fraction(1, common_denominator(np.concatenate([point, width]), _COMMON)), program.widest / _FINE]
    splits = [equal]
    for unit in units:
        whole = np.floor(point / float(unit) + 1e-4).astype(np.int64)
        splits.append(_trimmed_split(topology, arcs, whole, unit))
    if not met and (vertex := exact_vertex(program.matrix(), program.exact_bound(), point)) is not None:
        splits.append(split_of_values(topology, arcs, vertex))
    best = max((split for split in splits if split is not None), key=lambda split: split.rate, default=None)
    if best is None:
        rule = "pairs of trees are counted in 64-bit units of the widest link"
        raise InvalidInput(rule, topology.spec, "use reduce_scatter and allgather, or bandwidths that differ less")
    candidates = [_certificate(topology, program, marginals, largest) for largest in _DENOMINATORS]
    certificate = max(candidates, key=lambda candidate: Fraction(candidate["time_per_byte"]))
    return TreePairs(best, Fraction(certificate["time_per_byte"]), certificate)


def _certificate(topology: Topology, program: TreeProgram, marginals: Floats, largest: int) -> Mapping[str, Any]:
    """Return a certificate with the dual values as weights, rounded to fractions with denominators up to `largest`."""
    gather_cuts, reduce_cuts, gather_switches, reduce_switches = program.multipliers(marginals)
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
        "gather_cuts": weighted(program.gather_cuts, gather_cuts),
        "reduce_cuts": weighted(program.reduce_cuts, reduce_cuts),
        "gather_switches": worth(gather_switches),
        "reduce_switches": worth(reduce_switches),
    }
    return certificate | {"time_per_byte": str(proven_time(topology, certificate))}


def split_of_values(topology: Topology, arcs: MergedArcs, values: Sequence[Fraction]) -> PairSplit | None:
    """Return the split with the exact `values`, lowered where they exceed the limits of links or switches.

    Args:
        values: the rate of each root, then each arc's bandwidth for out-trees, then each arc's bandwidth for in-trees.

    Returns:
        The split, or None if the values have no common unit that keeps them within 64 bits, or if all rates become 0.
    """
    scale = lcm(*(value.denominator for value in (*values, *arcs.width)))
    whole = [int(value * scale) for value in values]
    if max(*whole, *(int(width * scale) for width in arcs.width)) >= _LARGEST_WHOLE:
        return None
    return _trimmed_split(topology, arcs, np.array(whole, dtype=np.int64), Fraction(1, scale))


def _trimmed_split(topology: Topology, arcs: MergedArcs, whole: Integers, unit: Fraction) -> PairSplit | None:
    """Return the split with the values `whole` * `unit`, lowered where they exceed the limits of links or switches."""
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
    """Return the split with root rates scaled down until no cut is overloaded, or None if a rank cannot be reached."""
    if not roots.any():
        return None

    def time(ends: MergedArcs, amounts: Integers) -> Fraction:
        """Return the largest (rates of roots outside T) / (amounts into T) over all node sets T that contain a rank."""
        columns: Sequence[list[int]] = (ends.src.tolist(), ends.dst.tolist(), amounts.tolist())
        rows = zip(*columns, strict=True)
        links = Links.build(Link(src, dst, Fraction(amount)) for src, dst, amount in rows if amount)
        part = Topology(topology.spec, topology.node_ids, topology.compute_count, links)
        *_, (slowest, _) = improving_cuts(CutSearch(part, roots))
        return slowest

    try:
        slowest = max(time(arcs, gather), time(arcs.transposed, reduce))
    except InvalidInput:  # after rounding, a rank is unreachable, or the amounts need more than 64 bits
        return None
    return PairSplit(
        arcs,
        tuple(int(root) * unit / slowest for root in roots),
        tuple(int(amount) * unit for amount in gather),
        tuple(int(amount) * unit for amount in reduce),
    )
