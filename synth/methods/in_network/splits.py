"""The best split of links that are as wide both ways, for trees that carry sums up and results down.

A tree takes its rate of both directions of every link that it uses, so that out-trees alone may be packed if what they
take of a link there and back together stays within its bandwidth. The linear program has a row per cut that is known
to be too narrow (as `chorale.synth.bounds.tree_pairs`) and a variable per orbit of known symmetries: averaging over
them keeps every solution a solution. It proposes; what it says is rounded to fractions and counted again on all links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import FEW_TREES, CutSearch, close_rates, fewest_trees, improving_cuts
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Flags, Integers, amounts_on, residual_graph
from chorale.synth.bounds.tree_pairs import MergedArcs, exact_vertex, merged_arcs, trim_at_switches
from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import Floats, GrowingProgram, SparseMatrix, of_entries
from chorale.synth.methods.forest.network import apportioned, at_least_scale, network_of_links, trees_on_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.splitting_off import find_violated_cuts
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import tree_transfers
from chorale.synth.methods.in_network.paired_trees import ReversibleTrees, without_leaf_switches
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.automorphism import orbits
from chorale.synth.topology.relabelling import Relabelled, promoted
from chorale.synth.topology.topology import Topology

_MAX_ROUNDS = 60
_UNITS = 2**40
_SLACK = 1e-7
_LARGEST_DENOMINATOR = 10**6
MAX_VARIABLES = 4000
"""The linear program of so many orbits of links takes seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class UndirectedSplit:
    """roots: rate of trees per compute node, as many as may be roots;  outward: bandwidth of out-trees per arc."""

    arcs: MergedArcs
    roots: tuple[Fraction, ...]
    outward: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction:
        return sum(self.roots, Fraction(0))


def best_split(relabelled: Relabelled) -> UndirectedSplit | None:
    """Return the best split for trees that span all compute nodes; None above the limits of the linear program.

    Its amounts keep within links and its switches pass on no more than they get, exactly; whether all cuts carry the
    trees is for the caller to count.
    """
    program = _Program.of(relabelled)
    if program.variables > MAX_VARIABLES:
        return None
    point = program.solved()
    matrix, bound = program.matrix(), program.exact_bound()
    values = exact_vertex(matrix, bound, point)
    if values is None or not program.is_met(values):
        values = [Fraction(value).limit_denominator(_LARGEST_DENOMINATOR) for value in point.tolist()]
    roots, outward = values[: program.root_orbits], values[program.root_orbits :]
    return UndirectedSplit(
        program.arcs,
        tuple(roots[orbit] for orbit in program.root_orbit.tolist()),
        program.within(tuple(outward[orbit] for orbit in program.arc_orbit.tolist())),
    )


@dataclass(slots=True, eq=False)
class _Program:
    """Maximise the rate: variables are the rate per orbit of roots, then the outward bandwidth per orbit of arcs.

    back: per arc, the arc back;  sinks: one compute node of each orbit
    cuts: bool[nodes] each, a set of nodes with a compute node
    """

    relabelled: Relabelled
    arcs: MergedArcs
    back: Integers
    root_orbit: Integers
    arc_orbit: Integers
    sinks: Flags = field(init=False)
    cuts: list[Flags] = field(init=False)

    @staticmethod
    def of(relabelled: Relabelled) -> _Program:
        network = relabelled.network
        arcs, nodes = merged_arcs(network), network.node_count
        keys = arcs.src * nodes + arcs.dst
        back = np.searchsorted(keys, arcs.dst * nodes + arcs.src)
        moves = [np.searchsorted(keys, move[arcs.src] * nodes + move[arcs.dst]) for move in network.automorphisms]
        arc_orbit = _numbered(orbits(len(keys), moves))
        root_orbit = _numbered(orbits(nodes, network.automorphisms)[: relabelled.roots])
        return _Program(relabelled, arcs, back, root_orbit, arc_orbit)

    def __post_init__(self) -> None:
        # One compute node of each orbit: the others say the same of the same variables.
        compute = self.relabelled.network.compute_count
        first = np.unique(orbits(self.nodes, self.relabelled.network.automorphisms)[:compute], return_index=True)[1]
        self.sinks = np.zeros(self.nodes, dtype=np.bool_)
        self.sinks[first] = True
        self.cuts = list(np.eye(self.nodes, dtype=np.bool_)[first])

    @property
    def nodes(self) -> int:
        return self.relabelled.network.node_count

    @property
    def root_orbits(self) -> int:
        return int(self.root_orbit.max()) + 1

    @property
    def variables(self) -> int:
        return self.root_orbits + int(self.arc_orbit.max()) + 1

    def solved(self) -> Floats:
        """Return the optimum, cuts added until none is violated, up to the tolerances of the solver.

        Many vertices are optimal, and a cut that one of them violates says little of the others. So cuts are also
        looked for halfway to a point that all cuts carry, which moves there where none is found, and is the result
        where rounds run out. Source: W. Ben-Ameur, J. Neto, "Acceleration of cutting-plane and column generation
        algorithms" (Networks 49, 2007), section 2.
        """
        widest = float(max(self.arcs.width))
        program = self._started(widest)
        half = np.zeros(self.variables - self.root_orbits)
        half[self.arc_orbit] = [float(width) / 2 for width in self.arcs.width]
        carried = np.concatenate([np.zeros(self.root_orbits), half / widest])
        for _ in range(_MAX_ROUNDS):
            point = np.maximum(0.0, program.minimum()[0])
            cuts = self._violated(point)
            if not cuts:
                return np.asarray(point * widest)
            between = (point + carried) / 2
            deeper = self._violated(between)
            if not deeper:
                carried = between
            self.cuts += [*cuts, *deeper]
            rows = self._crossing([*cuts, *deeper])
            program.add_rows(rows, np.zeros(rows.shape[0]))
        return np.asarray(carried * widest)

    def _started(self, widest: float) -> GrowingProgram:
        """Return the program with the rows so far, in units of `widest`."""
        objective = np.zeros(self.variables)
        np.subtract.at(objective, self.root_orbit, 1.0)
        bound = np.array([float(value) for value in self.exact_bound()]) / widest
        return GrowingProgram(objective, self.matrix(), bound, "leave switches that add out")

    def exact_bound(self) -> list[Fraction]:
        """Return the right sides of all rows."""
        ends = np.unique(self._width_orbits(), return_index=True)[1]
        rows = self.matrix().shape[0]
        return [*(self.arcs.width[arc] for arc in ends.tolist()), *[Fraction(0)] * (rows - len(ends))]

    def _width_orbits(self) -> Integers:
        """Return a number per arc, equal for arcs whose widths are shared in the same way."""
        there, back = self.arc_orbit, self.arc_orbit[self.back]
        return _numbered(np.minimum(there, back) * len(there) + np.maximum(there, back))

    def matrix(self) -> SparseMatrix:
        """Return the rows: widths shared both ways, what switches lack, what crosses cuts beyond their bandwidth."""
        return sparse.vstack([self._shared_widths(), self._balance(), self._crossing(self.cuts)], format="csr")

    def _shared_widths(self) -> SparseMatrix:
        columns = self.root_orbits + self.arc_orbit
        first = np.unique(self._width_orbits(), return_index=True)[1]
        row, one = np.arange(len(first)), np.ones(len(first))
        return self._rows([(row, columns[first], one), (row, columns[self.back[first]], one)], len(first))

    def _balance(self) -> SparseMatrix:
        compute, parts = self.relabelled.network.compute_count, []
        for ends, sign in ((self.arcs.src, 1.0), (self.arcs.dst, -1.0)):
            used = np.flatnonzero(ends >= compute)
            parts.append((ends[used] - compute, self.root_orbits + self.arc_orbit[used], np.full(len(used), sign)))
        return self._rows(parts, self.nodes - compute)

    def _crossing(self, cuts: list[Flags]) -> SparseMatrix:
        parts = []
        for row, cut in enumerate(cuts):
            outside = self.root_orbit[~cut[: self.relabelled.roots]]
            into = self.root_orbits + self.arc_orbit[cut[self.arcs.dst] & ~cut[self.arcs.src]]
            parts.append((np.full(len(outside), row), outside, np.ones(len(outside))))
            parts.append((np.full(len(into), row), into, np.full(len(into), -1.0)))
        return self._rows(parts, len(cuts))

    def _rows(self, parts: list[tuple[Integers, Integers, Floats]], count: int) -> SparseMatrix:
        row, column, value = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        return of_entries(row, column, value, count, self.variables)

    def _violated(self, point: Floats) -> list[Flags]:
        roots, outward = point[self.root_orbit], point[self.root_orbits + self.arc_orbit]
        graph, half_arcs = residual_graph(self.nodes, self.arcs.src, self.arcs.dst)
        capacity = amounts_on(graph, half_arcs, np.ceil(outward * _UNITS).astype(np.int64))
        supply = np.zeros(self.nodes, dtype=np.int64)
        supply[: len(roots)] = np.floor(roots * _UNITS * (1 - _SLACK))
        settled = np.zeros(self.nodes, dtype=np.bool_)
        cuts = np.zeros((min(int(self.sinks.sum()) + 1, 64), self.nodes), dtype=np.bool_)
        return list(cuts[: native.violated_cuts(graph, capacity, supply, self.sinks, settled, cuts)])

    def is_met(self, values: list[Fraction]) -> bool:
        """Whether `values` keep all rows, exactly."""
        matrix, bound = self.matrix(), self.exact_bound()
        begins = matrix.indptr.tolist()
        for row, span in enumerate(map(slice, begins[:-1], begins[1:])):
            pairs = zip(matrix.indices[span].tolist(), matrix.data[span].tolist(), strict=True)
            if sum((round(factor) * values[column] for column, factor in pairs), Fraction(0)) > bound[row]:
                return False
        return True

    def within(self, outward: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
        """Return `outward` with what is too much for a link, both ways together, taken off."""
        result = list(outward)
        for arc, back in enumerate(self.back.tolist()):
            excess = result[arc] + result[back] - self.arcs.width[arc]
            if excess > 0:
                taken = min(excess, result[arc])
                result[arc] -= taken
                result[back] -= excess - taken
        return tuple(result)


def _numbered(names: NDArray[np.integer]) -> Integers:
    return np.asarray(np.unique(names, return_inverse=True)[1], dtype=np.int64)


MAX_UNITS = 2**22
"""Where so many lose nothing, they are packed as they are: weights of trees may be large."""
_ROUNDED_UNITS = 2**17


@dataclass(frozen=True, slots=True, eq=False)
class WholeUnits:
    """A split in whole units. supply: int64 per compute node;  carried: int64 per link, of out-trees."""

    supply: Integers
    carried: Integers


def whole_units(relabelled: Relabelled, split: UndirectedSplit, units: int | None) -> WholeUnits:
    """Return `split` in the fewest units that lose nothing, or in about `units` units, all cuts counted.

    Where losing nothing would take more than `MAX_UNITS`, there are about 2^17. Roots get them in proportion to
    their rates; the scale is the least one found at which all cuts carry them. InvalidInput where there is none.
    """
    links = relabelled.network.links

    def is_small(scale: Fraction | int) -> bool:
        return scale * max(links.bandwidths) * len(links) < LARGEST_AMOUNT

    def whole_at(scale: Fraction | int, counts: Sequence[int]) -> WholeUnits:
        if not is_small(scale):  # a split that is almost right, but for a cut without any bandwidth
            rule = "the links of a split must carry its trees, in amounts of 64 bits"
            raise InvalidInput(rule, relabelled.network.spec, "leave these switches as they are")
        supply = np.zeros(relabelled.network.compute_count, dtype=np.int64)
        supply[: len(counts)] = counts
        return _rounded_down(relabelled, split, supply, scale)

    def fits(whole: WholeUnits) -> bool:
        network = network_of_links(relabelled.network, whole.carried, whole.supply)
        return len(find_violated_cuts(network, 1)) == 0

    exact = lcm(*(value.denominator for value in (*split.roots, *split.outward)))
    if units is None and exact * split.rate <= MAX_UNITS and is_small(exact):
        whole = whole_at(exact, [int(root * exact) for root in split.roots])
        if fits(whole):
            return whole
    counts = apportioned(split.roots, units or _ROUNDED_UNITS)
    return at_least_scale(sum(counts) / split.rate, lambda scale: whole_at(scale, counts), fits)


def _rounded_down(
    relabelled: Relabelled, split: UndirectedSplit, supply: Integers, scale: Fraction | int
) -> WholeUnits:
    """Return `split` times `scale` in whole units per link: there and back of a link together fit into it.

    Of parallel links the first carry what goes there, the last what comes back.
    """
    network, arcs = relabelled.network, split.arcs
    links, nodes = network.links, network.node_count
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
        ordered = sorted(members, key=lambda link: parallel[link], reverse=src > dst)
        left = demand[key]
        for link in ordered:
            carried[link] = min(left, int(room[link]))
            left -= int(carried[link])
    _keep_both_ways(by_pair, nodes, parallel, room, carried)
    trim_at_switches(network, links.src, links.dst, carried)
    return WholeUnits(supply, carried)


def _keep_both_ways(
    by_pair: dict[int, list[int]], nodes: int, parallel: list[int], room: Integers, carried: Integers
) -> None:
    """Take from links that carry more both ways together than fits."""
    for key, members in by_pair.items():
        src, dst = divmod(key, nodes)
        if src > dst:
            continue
        back = {parallel[link]: link for link in by_pair[dst * nodes + src]}
        for link in members:
            other = back[parallel[link]]
            excess = int(carried[link] + carried[other] - room[link])
            if excess > 0:
                taken = min(excess, int(carried[other]))
                carried[other] -= taken
                carried[link] -= excess - taken


def packed_trees(topology: Topology, relabelled: Relabelled, whole: WholeUnits, options: Options) -> ReversibleTrees:
    """Return trees of `topology` that carry all units; contracted groups are not joined within yet.

    Raises InvalidInput where a switch stands in the way, as `remove_switches` does.
    """
    network = relabelled.network
    split = remove_switches(network_of_links(network, whole.carried, whole.supply), names=network.node_ids)
    packed = pack_trees(split.network, options.objective, options.seed)
    rows = tree_transfers(network, whole.carried, split, packed)
    before = np.cumsum(whole.supply) - whole.supply
    lo, hi = before[rows.root] + rows.lo, before[rows.root] + rows.hi
    tree = np.searchsorted(np.cumsum(packed.weight), lo, side="right")
    routes = Routes(rows.routes.offsets, relabelled.origin[rows.routes.link_ids])
    links = topology.links
    route = rows.route.astype(np.int64)
    src, dst = routes.sources(links)[route], routes.destinations(links)[route]
    return ReversibleTrees(
        packed.root.astype(np.int64), packed.weight, tree, src.astype(np.int64), dst.astype(np.int64), route, lo, hi,
        routes,
    )  # fmt: skip


_FINE = 64


def spreading_trees(
    topology: Topology, collective: Collective, switches: Sequence[int], options: Options
) -> tuple[ReversibleTrees, Fraction]:
    """Return out-trees of allgather or broadcast that span ranks and these switches, and their time per byte.

    They are as fast as any that visit all those switches. Reversed, on links as wide both ways, they are in-trees.
    Raises InvalidInput as `packed_trees` does.
    """
    relabelled = promoted(topology, switches)
    supply = np.zeros(relabelled.network.compute_count, dtype=np.int64)
    supply[slice(topology.compute_count) if collective.root is None else collective.root] = 1
    search = CutSearch.of(relabelled.network, supply)
    *_, (time, cut) = improving_cuts(search)
    k = options.k or fewest_trees(search, time, cut).k
    scale = k * time
    if options.k is None and k > FEW_TREES and options.gap > 0:
        scale, k = next(close_rates(search, time, cut, options.gap), (scale, k))
    while options.k and _refuses(search, scale, k):
        scale += time / _FINE
    whole = WholeUnits(supply * k, trees_on_links(relabelled.network, scale))
    trees = packed_trees(topology, relabelled, whole, options)
    return without_leaf_switches(topology, trees), scale / (k * int(supply.sum()))


def _refuses(search: CutSearch, rate: Fraction, k: int) -> bool:
    """Whether some cut does not carry k trees per root at `rate` trees per bandwidth."""
    search.settled[:] = False
    return search.violated_cut(rate, k) is not None
