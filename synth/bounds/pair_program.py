"""The linear program of the best pairs of in-trees and out-trees for allreduce, with rows for the cuts that matter.

ForestColl, appendix E, writes "c units of flow reach every rank" as flows, 2 N variables per link. Here it is one row
per cut that is known to be too narrow, so that the program stays small and its dual is a short certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.cut_oracle import Flags, violated_cuts
from chorale.synth.bounds.residual_graph import amounts_on, residual_graph
from chorale.synth.linear_program import minimum
from chorale.synth.sparse_matrix import Floats, SparseMatrix, of_entries, stacked

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

    def __post_init__(self) -> None:
        alone = list(np.eye(self.nodes, dtype=np.bool_)[: self.ranks])
        self.gather_cuts, self.reduce_cuts = list(alone), list(alone)

    def solve(self) -> tuple[PairSolution, Multipliers]:
        """Return the optimum for the rows so far, up to the solver's tolerances."""
        arcs, switches = len(self.src), self.nodes - self.ranks
        matrix = self.matrix()
        bound = np.concatenate([self.width, np.zeros(matrix.rows - arcs)])
        objective = np.concatenate([np.full(self.ranks, -1.0), np.zeros(2 * arcs)])
        found, marginals = minimum(objective, matrix, bound, "leave the program out")
        # Solvers return numbers a little below zero, which the oracle must not see.
        point = PairSolution(*np.split(np.maximum(0.0, found), [self.ranks, self.ranks + arcs]))
        ends = np.cumsum([arcs, switches, switches, len(self.gather_cuts)])
        _, out_trees, in_trees, gather, reduce = np.split(np.maximum(0.0, -marginals), ends)
        return point, Multipliers(gather, reduce, out_trees, in_trees)

    def matrix(self) -> SparseMatrix:
        """Return the rows so far: what arcs carry, what switches lack, and what crosses cuts beyond their bandwidth."""
        return stacked([self._capacity(), self._balance(), self._crossing()])

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
        return list(cuts[: violated_cuts(graph, capacity, supply, sinks, settled, cuts)])

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

    def _crossing(self) -> SparseMatrix:
        cuts = np.array(self.gather_cuts + self.reduce_cuts)
        outside, first = np.nonzero(~cuts[:, : self.ranks])
        into = np.array(self.gather_cuts)[:, self.dst] & ~np.array(self.gather_cuts)[:, self.src]
        out_of = np.array(self.reduce_cuts)[:, self.src] & ~np.array(self.reduce_cuts)[:, self.dst]
        rows_in, columns_in = np.nonzero(into)
        rows_out, columns_out = np.nonzero(out_of)
        rows = np.concatenate([outside, rows_in, len(into) + rows_out])
        columns = np.concatenate([first, self.ranks + columns_in, self.ranks + len(self.src) + columns_out])
        values = np.concatenate([np.ones(len(outside)), np.full(len(rows_in) + len(rows_out), -1.0)])
        return self._matrix(rows, columns, values, len(cuts))

    def _matrix(self, rows: NDArray[np.int64], columns: NDArray[np.int64], values: Floats, count: int) -> SparseMatrix:
        return of_entries(rows, columns, values, count, self.ranks + 2 * len(self.src))
