"""The reduced all-to-all problem as a linear program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.linear_program import minimum
from chorale.synth.methods.alltoall.reduction import Reduction
from chorale.synth.sparse_matrix import Floats, SparseMatrix, of_entries, stacked

_SLACK = 1e-9


class ApproximateSolution(NamedTuple):
    """class_flow: float64[column classes]; prices: float64[link classes of `small`], per link. Neither is trusted."""

    class_flow: NDArray[np.float64]
    prices: NDArray[np.float64]


def solve(reduction: Reduction) -> ApproximateSolution:
    """Return optimal class flows and link prices, up to the solver's tolerances.

    Minimises the largest load / capacity of a link while every source sends one unit to every rank.
    """
    small = reduction.small
    loads, net = _load_matrix(reduction), _net_matrix(reduction)
    # Per unit of the largest capacity, so that the column of the rate is of the order of the others.
    capacity = small.class_capacity / float(small.class_capacity.max())
    matrix = stacked([_beside(loads, -capacity), net.negated()])
    bound = np.concatenate([np.zeros(loads.rows), -_demands(reduction)])
    objective = np.zeros(reduction.column_count + 1)
    objective[-1] = 1.0
    flow, marginals = _solved(objective, matrix, bound)
    return ApproximateSolution(flow[:-1], np.abs(marginals[: loads.rows]) / small.class_size)


def shorten(reduction: Reduction, solution: ApproximateSolution) -> ApproximateSolution:
    """Return `solution` with flows that load no link more than its busiest, and all links together the least."""
    small = reduction.small
    loads, net = _load_matrix(reduction), _net_matrix(reduction)
    capacity = small.class_capacity / float(small.class_capacity.max())
    longest = float(np.max(loads @ solution.class_flow / capacity))
    matrix = stacked([loads, net.negated()])
    bound = np.concatenate([capacity * longest * (1 + _SLACK), -_demands(reduction)])
    return ApproximateSolution(_solved(loads.sums_of_columns(small.class_size), matrix, bound)[0], solution.prices)


def _solved(objective: Floats, matrix: SparseMatrix, bound: Floats) -> tuple[Floats, Floats]:
    return minimum(objective, matrix, bound, "choose the first-order method")


def _load_matrix(reduction: Reduction) -> SparseMatrix:
    """Row c: load of each link of class c from one unit on every variable of a class."""
    small = reduction.small
    share = small.weights[:, np.newaxis] / small.class_size[small.link_class][np.newaxis, :]
    rows = np.broadcast_to(small.link_class, reduction.columns.shape)
    used = _usable(reduction)
    entries = rows[used], reduction.columns[used], share[used]
    return of_entries(*entries, len(small.class_size), reduction.column_count)


def _beside(matrix: SparseMatrix, column: Floats) -> SparseMatrix:
    """Return `matrix` with one more column."""
    rows, last = np.arange(matrix.rows), np.full(matrix.rows, matrix.columns)
    places = np.concatenate([matrix.row, rows]), np.concatenate([matrix.column, last])
    return of_entries(*places, np.concatenate([matrix.value, column]), matrix.rows, matrix.columns + 1)


def _net_matrix(reduction: Reduction) -> SparseMatrix:
    """Row r: what arrives at a node of row class r minus what leaves it; the first such node stands for all."""
    small = reduction.small
    chosen = _representatives(reduction)
    parts = []
    for ends, sign in ((small.dst, 1.0), (small.src, -1.0)):
        rows = chosen[:, ends]
        used = (rows >= 0) & _usable(reduction)
        parts.append((rows[used], reduction.columns[used], np.full(int(used.sum()), sign)))
    rows, columns, data = (np.concatenate(column) for column in zip(*parts, strict=True))
    return of_entries(rows, columns, data, reduction.row_count, reduction.column_count)


def _demands(reduction: Reduction) -> NDArray[np.float64]:
    demands = np.zeros(reduction.row_count)
    chosen = _representatives(reduction)
    for source in range(len(chosen)):
        nodes = np.flatnonzero(chosen[source] >= 0)
        demands[chosen[source, nodes]] = reduction.small.demand[source % len(reduction.small.demand), nodes]
    return demands


def _representatives(reduction: Reduction) -> NDArray[np.int64]:
    """Return int64[K', nodes]: the row class where a row is the first of its class, else -1; never a source's own."""
    flat = np.full(reduction.rows.size, -1, dtype=np.int64)
    labels, first = np.unique(reduction.rows.reshape(-1), return_index=True)
    flat[first] = labels
    chosen = flat.reshape(reduction.rows.shape)
    chosen[np.arange(len(chosen)), reduction.small.sources] = -1
    return chosen


def _usable(reduction: Reduction) -> NDArray[np.bool_]:
    """Return bool[K', links]: False where a link would lead flow back to its source."""
    usable: NDArray[np.bool_] = reduction.small.dst[np.newaxis, :] != reduction.small.sources[:, np.newaxis]
    return usable
