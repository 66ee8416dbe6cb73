"""The best split of links that are as wide both ways, for trees that carry sums up and results down.

A tree takes its rate of both directions of every link that it uses, so that out-trees alone may be packed if what they
take of a link there and back together stays within its bandwidth. The linear program has a row per cut that is known
to be too narrow (as `chorale.synth.bounds.pair_program`) and a variable per orbit of known symmetries: averaging over
them keeps every solution a solution. It proposes; what it says is rounded to fractions and counted again on all links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.cut_oracle import Flags, violated_cuts
from chorale.synth.bounds.exact_vertex import exact_vertex
from chorale.synth.bounds.residual_graph import Integers, amounts_on, residual_graph
from chorale.synth.bounds.tree_pairs import MergedArcs, merged_arcs
from chorale.synth.linear_program import GrowingProgram
from chorale.synth.sparse_matrix import Floats, SparseMatrix, of_entries, stacked
from chorale.synth.topology.automorphism import orbits
from chorale.synth.topology.relabelling import Relabelled

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
        carried = np.concatenate([np.zeros(self.root_orbits), self._half_widths() / widest])
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
            program.add_rows(rows, np.zeros(rows.rows))
        return np.asarray(carried * widest)

    def _started(self, widest: float) -> GrowingProgram:
        """Return the program with the rows so far, in units of `widest`."""
        objective = np.zeros(self.variables)
        np.subtract.at(objective, self.root_orbit, 1.0)
        bound = np.array([float(value) for value in self.exact_bound()]) / widest
        return GrowingProgram(objective, self.matrix(), bound, "leave switches that add out")

    def _half_widths(self) -> Floats:
        half = np.zeros(self.variables - self.root_orbits)
        half[self.arc_orbit] = [float(width) / 2 for width in self.arcs.width]
        return half

    def exact_bound(self) -> list[Fraction]:
        """Return the right sides of all rows."""
        ends = np.unique(self._width_orbits(), return_index=True)[1]
        rows = self.matrix().rows
        return [*(self.arcs.width[arc] for arc in ends.tolist()), *[Fraction(0)] * (rows - len(ends))]

    def _width_orbits(self) -> Integers:
        """Return a number per arc, equal for arcs whose widths are shared in the same way."""
        there, back = self.arc_orbit, self.arc_orbit[self.back]
        return _numbered(np.minimum(there, back) * len(there) + np.maximum(there, back))

    def matrix(self) -> SparseMatrix:
        """Return the rows: widths shared both ways, what switches lack, what crosses cuts beyond their bandwidth."""
        return stacked([self._shared_widths(), self._balance(), self._crossing(self.cuts)])

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
        return list(cuts[: violated_cuts(graph, capacity, supply, self.sinks, settled, cuts)])

    def is_met(self, values: list[Fraction]) -> bool:
        """Whether `values` keep all rows, exactly."""
        matrix, bound = self.matrix(), self.exact_bound()
        begins = matrix.bounds_of_rows().tolist()
        for row, span in enumerate(map(slice, begins[:-1], begins[1:])):
            pairs = zip(matrix.column[span].tolist(), matrix.value[span].tolist(), strict=True)
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
