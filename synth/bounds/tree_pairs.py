"""The best allreduce by pairs of trees: roots add up their parts over in-trees and spread them over out-trees.

Roots may have parts of any size, and links may be shared in any proportion between in-trees and out-trees (ForestColl,
appendix E). On symmetric fabrics that is no better than reduce_scatter followed by allgather. Where some ranks have
less bandwidth than others it is: a rank that is no root sends and receives M instead of 2 M (N - 1) / N.

ForestColl, appendix E, writes "c units of flow reach every rank" as flows, 2 N variables per link. Here it is one row
per cut that is known to be too narrow, so that the program stays small and its dual is a short certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.certificate import proven_time
from chorale.synth.bounds.optimum import CutSearch, improving_cuts
from chorale.synth.bounds.residual_graph import Flags, Integers, amounts_on, residual_graph
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import common_denominator
from chorale.synth.kernels import native
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import Floats, GrowingProgram, SparseMatrix, of_entries
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology

MAX_VARIABLES = 160
"""Elimination in rationals takes long beyond."""
_ZERO = 1e-13
_TIGHT = 1e-10
_FREE_DENOMINATOR = 10**6

Row = dict[int, Fraction]
"""Coefficients by column; the bound of the row has the column -1."""


def exact_vertex(matrix: SparseMatrix, bound: Sequence[Fraction], point: Floats) -> list[Fraction] | None:
    """Return the x that meets with equality the rows of `matrix` @ x <= `bound` that `point` meets, nearly.

    Variables that are 0 stay 0. Where the rows leave a variable open, it is a fraction close to its value. The
    coefficients are whole numbers. None for more than `MAX_VARIABLES` variables above 0. O(variables ^ 2 * rows).
    """
    used = np.flatnonzero(point > _ZERO * point.max(initial=0.0)).tolist()
    if len(used) > MAX_VARIABLES:
        return None
    pivots = _eliminated(_tight_rows(matrix, bound, point, set(used)))
    values = {column: Fraction(float(point[column])).limit_denominator(_FREE_DENOMINATOR) for column in used}
    for column, row in reversed(pivots):
        rest = sum((value * values[other] for other, value in row.items() if other not in (-1, column)), Fraction(0))
        values[column] = row.get(-1, Fraction(0)) - rest
    return [max(Fraction(0), values.get(column, Fraction(0))) for column in range(len(point))]


def _tight_rows(matrix: SparseMatrix, bound: Sequence[Fraction], point: Floats, used: set[int]) -> list[Row]:
    sizes = abs(matrix) @ point
    slack = np.array([float(value) for value in bound]) - matrix @ point
    rows, begins = list[Row](), matrix.indptr.tolist()
    for index in np.flatnonzero(slack <= _TIGHT * sizes).tolist():
        span = slice(begins[index], begins[index + 1])
        pairs = zip(matrix.indices[span].tolist(), matrix.data[span].tolist(), strict=True)
        row = {column: Fraction(round(value)) for column, value in pairs if column in used}
        if row:
            rows.append(row | {-1: bound[index]})
    return rows


def _eliminated(rows: list[Row]) -> list[tuple[int, Row]]:
    """Return (pivot column, row with 1 there and nothing in earlier pivots), in order; rows that contradict are left
    out."""
    pivots: list[tuple[int, Row]] = []
    for given in sorted(rows, key=len):
        row = dict(given)
        for column, pivot in pivots:
            factor = row.pop(column, Fraction(0))
            if factor:
                for other, value in pivot.items():
                    if other != column:
                        row[other] = row.get(other, Fraction(0)) - factor * value
        row = {column: value for column, value in row.items() if value or column == -1}
        column = max((column for column in row if column != -1), default=-1)
        if column != -1:
            lead = row[column]
            pivots.append((column, {other: value / lead for other, value in row.items()}))
    return pivots


_UNITS = 2**40
_SLACK = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class PairSolution:
    """roots: rate of the trees rooted at each rank;  gather, reduce: bandwidth for them per arc; all float64."""

    roots: Floats
    gather: Floats
    reduce: Floats

    def scaled(self, factor: float) -> PairSolution:
        return PairSolution(self.roots * factor, self.gather * factor, self.reduce * factor)

    @property
    def values(self) -> Floats:
        return np.concatenate([self.roots, self.gather, self.reduce])


@dataclass(frozen=True, slots=True, eq=False)
class Multipliers:
    """What the rows are worth, float64: of gather_cuts, of reduce_cuts, and of the balance of each switch, twice."""

    gather_cuts: Floats
    reduce_cuts: Floats
    gather_switches: Floats
    reduce_switches: Floats


@dataclass(slots=True, eq=False)
class PairProgram:
    """Maximise the rates of all roots, where out-trees and in-trees share the `width` of every arc.

    src, dst: int per arc;  width: float64 per arc. A switch gets at least what it passes on to out-trees, and passes
    on at least what it gets of in-trees. A set T of nodes with a rank needs, for out-trees, as much bandwidth into it
    as the rate of roots outside (`gather_cuts`); for in-trees, out of it (`reduce_cuts`). bool[nodes] each.
    """

    ranks: int
    nodes: int
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    width: Floats
    gather_cuts: list[Flags] = field(init=False)
    reduce_cuts: list[Flags] = field(init=False)
    _is_gather: list[bool] = field(init=False, default_factory=list)
    """Of each cut that the solver has seen, in the order of its rows."""
    _program: GrowingProgram | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        alone = list(np.eye(self.nodes, dtype=np.bool_)[: self.ranks])
        self.gather_cuts, self.reduce_cuts = list(alone), list(alone)

    def solve(self) -> tuple[PairSolution, Multipliers]:
        """Return the optimum for the rows so far, up to the solver's tolerances."""
        arcs, switches = len(self.src), self.nodes - self.ranks
        found, marginals = self._grown().minimum()
        # Solvers return numbers a little below zero, which the oracle must not see.
        point = PairSolution(*np.split(np.maximum(0.0, found), [self.ranks, self.ranks + arcs]))
        worth = np.maximum(0.0, -marginals)
        _, out_trees, in_trees, cuts = np.split(worth, np.cumsum([arcs, switches, switches]))
        of_gather = np.array(self._is_gather)
        return point, Multipliers(cuts[of_gather], cuts[~of_gather], out_trees, in_trees)

    def start_over(self) -> None:
        """Let the solver begin from nothing: slow, but its interior point leads to a more even vertex."""
        self._program = None

    def _grown(self) -> GrowingProgram:
        """Return the program with the cuts that it has not seen yet."""
        if self._program is not None:
            seen = [self._is_gather.count(kind) for kind in (True, False)]
            gather, reduce = self.gather_cuts[seen[0] :], self.reduce_cuts[seen[1] :]
            self._is_gather += [True] * len(gather) + [False] * len(reduce)
            rows = self._crossing(gather, reduce)
            self._program.add_rows(rows, np.zeros(rows.shape[0]))
            return self._program
        matrix = self.matrix()
        self._is_gather = [True] * len(self.gather_cuts) + [False] * len(self.reduce_cuts)
        bound = np.concatenate([self.width, np.zeros(matrix.shape[0] - len(self.src))])
        objective = np.concatenate([np.full(self.ranks, -1.0), np.zeros(2 * len(self.src))])
        self._program = GrowingProgram(objective, matrix, bound, "leave the program out")
        return self._program

    def matrix(self) -> SparseMatrix:
        """Return the rows so far: what arcs carry, what switches lack, and what crosses cuts beyond their bandwidth."""
        parts = [self._capacity(), self._balance(), self._crossing(self.gather_cuts, self.reduce_cuts)]
        return sparse.vstack(parts, format="csr")

    def add_cuts(self, point: PairSolution) -> int:
        """Add cuts that are too narrow for `point`; return how many were found."""
        gather = self._too_narrow(self.src, self.dst, point.gather, point.roots)
        reduce = self._too_narrow(self.dst, self.src, point.reduce, point.roots)
        self.gather_cuts += gather
        self.reduce_cuts += reduce
        return len(gather) + len(reduce)

    def _too_narrow(
        self, src: NDArray[np.int64], dst: NDArray[np.int64], amounts: Floats, roots: Floats
    ) -> list[Flags]:
        graph, half_arcs = residual_graph(self.nodes, src, dst)
        unit = _UNITS / float(self.width.max())
        capacity = amounts_on(graph, half_arcs, np.ceil(amounts * unit).astype(np.int64))
        supply = np.zeros(self.nodes, dtype=np.int64)
        supply[: self.ranks] = np.floor(roots * unit * (1 - _SLACK))
        sinks, settled = np.arange(self.nodes) < self.ranks, np.zeros(self.nodes, dtype=np.bool_)
        cuts = np.zeros((self.ranks + 1, self.nodes), dtype=np.bool_)
        return list(cuts[: native.violated_cuts(graph, capacity, supply, sinks, settled, cuts)])

    def _capacity(self) -> SparseMatrix:
        arcs = np.arange(len(self.src))
        rows, columns = np.concatenate([arcs, arcs]), self.ranks + np.arange(2 * len(arcs))
        return self._matrix(rows, columns, np.ones(len(rows)), len(arcs))

    def _balance(self) -> SparseMatrix:
        """Rows of what a switch passes on beyond what it gets, for out-trees; the other way round for in-trees."""
        arcs, switches = len(self.src), self.nodes - self.ranks
        parts = []
        for ends, sign in ((self.src, 1.0), (self.dst, -1.0)):
            used = np.flatnonzero(ends >= self.ranks)
            rows, signs = ends[used] - self.ranks, np.full(len(used), sign)
            parts.append((rows, self.ranks + used, signs))
            parts.append((switches + rows, self.ranks + arcs + used, -signs))
        rows, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        return self._matrix(rows, columns, values, 2 * switches)

    def _crossing(self, gather_cuts: list[Flags], reduce_cuts: list[Flags]) -> SparseMatrix:
        gather, reduce = (np.array(cuts, dtype=np.bool_).reshape(-1, self.nodes) for cuts in (gather_cuts, reduce_cuts))
        outside, first = np.nonzero(~np.concatenate([gather, reduce])[:, : self.ranks])
        rows_in, columns_in = np.nonzero(gather[:, self.dst] & ~gather[:, self.src])
        rows_out, columns_out = np.nonzero(reduce[:, self.src] & ~reduce[:, self.dst])
        rows = np.concatenate([outside, rows_in, len(gather) + rows_out])
        columns = np.concatenate([first, self.ranks + columns_in, self.ranks + len(self.src) + columns_out])
        values = np.concatenate([np.ones(len(outside)), np.full(len(rows_in) + len(rows_out), -1.0)])
        return self._matrix(rows, columns, values, len(gather) + len(reduce))

    def _matrix(self, rows: NDArray[np.int64], columns: NDArray[np.int64], values: Floats, count: int) -> SparseMatrix:
        return of_entries(rows, columns, values, count, self.ranks + 2 * len(self.src))


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
    roots, gather, reduce = (
        np.floor(values / float(unit) + 1e-4).astype(np.int64) for values in (point.roots, point.gather, point.reduce)
    )
    gather = np.minimum(gather, room)
    reduce = np.minimum(reduce, room - gather)
    trim_at_switches(topology, arcs.src, arcs.dst, gather)
    trim_at_switches(topology, arcs.dst, arcs.src, reduce)
    return counted_split(topology, arcs, (roots, gather, reduce), unit)


def exact_split(topology: Topology, arcs: MergedArcs, program: PairProgram, point: PairSolution) -> PairSplit | None:
    """Return the vertex of `program` that `point` is, in rationals; None where it is too large or was not recovered."""
    matrix = program.matrix()
    bound = [*arcs.width, *[Fraction(0)] * (matrix.shape[0] - len(arcs.width))]
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
"""Up to 32 ranks all rounds start from scratch, in less than a second; up to 128 ranks only the first ones do."""
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
    """Return in how many rounds the solver starts from scratch: this gives lower trees and much faster later rounds."""
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


def cheapest_tree(cost: Floats, root: int) -> NDArray[np.int64]:
    """Return int64[nodes], the parents in a cheapest tree from `root` to all, -1 for the root.

    Chu, Liu, Edmonds: everyone's cheapest parent; a cycle becomes one node, whose way in replaces the cycle's own.
    O(nodes^3).
    """
    nodes = len(cost)
    weights = cost.copy()
    np.fill_diagonal(weights, np.inf)
    parent: NDArray[np.int64] = weights.argmin(axis=0)
    parent[root] = -1
    cycle = _cycle(parent)
    if cycle is None:
        return parent
    outside = np.setdiff1d(np.arange(nodes), cycle)
    within = weights[parent[cycle], cycle]
    entering = weights[np.ix_(outside, cycle)] - within
    leaving = weights[np.ix_(cycle, outside)]
    smaller = np.full((len(outside) + 1, len(outside) + 1), np.inf)
    smaller[:-1, :-1] = weights[np.ix_(outside, outside)]
    smaller[:-1, -1], smaller[-1, :-1] = entering.min(axis=1), leaving.min(axis=0)
    inner = cheapest_tree(smaller, int(np.flatnonzero(outside == root)[0]))
    for place, above in enumerate(inner[:-1].tolist()):
        node = outside[place]
        if above == len(outside):
            parent[node] = cycle[leaving[:, place].argmin()]
        elif above >= 0:
            parent[node] = outside[above]
    gate = int(inner[-1])
    parent[cycle[entering[gate].argmin()]] = outside[gate]
    return parent


def _cycle(parent: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the nodes of a cycle of parents, None without one."""
    seen = np.full(len(parent), -1)
    for start in range(len(parent)):
        node = start
        while node >= 0 and seen[node] < 0:
            seen[node] = start
            node = int(parent[node])
        if node >= 0 and seen[node] == start:
            cycle = [node]
            while (node := int(parent[node])) != cycle[0]:
                cycle.append(node)
            return np.array(cycle)
    return None
