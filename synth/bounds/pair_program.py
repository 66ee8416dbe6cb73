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
from chorale.synth.linear_program import GrowingProgram
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
            self._program.add_rows(rows, np.zeros(rows.rows))
            return self._program
        matrix = self.matrix()
        self._is_gather = [True] * len(self.gather_cuts) + [False] * len(self.reduce_cuts)
        bound = np.concatenate([self.width, np.zeros(matrix.rows - len(self.src))])
        objective = np.concatenate([np.full(self.ranks, -1.0), np.zeros(2 * len(self.src))])
        self._program = GrowingProgram(objective, matrix, bound, "leave the program out")
        return self._program

    def matrix(self) -> SparseMatrix:
        """Return the rows so far: what arcs carry, what switches lack, and what crosses cuts beyond their bandwidth."""
        return stacked([self._capacity(), self._balance(), self._crossing(self.gather_cuts, self.reduce_cuts)])

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
