"""Flows that are parts of several flows: a link that some of them load too much, others load too little.

Flows that follow prices alternate between paths which cost about the same, so that each of them has links that carry
too much. A linear program over what each one loads, with one variable per flow, chooses how much of the data takes
which. The loads of a mixture are the mixture of the loads, so that nothing but loads needs to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.linear_program import minimum
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.price_kernels import Floats
from chorale.synth.methods.alltoall.priced_flows import PricedFlows, PricedLoads
from chorale.synth.sparse_matrix import of_dense

_PARTS = 2**16
"""All data is so many parts."""
_ROWS_AT_ONCE = 512
"""Links of which the linear program is told at a time, those with the largest loads first."""
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class MixedFlows:
    """`parts[i]` of the data of every source, of their sum in all, take the paths of `flows[i]`.

    loads: what each of `flows` does by itself
    """

    flows: tuple[PricedFlows, ...]
    parts: tuple[int, ...]
    loads: tuple[PricedLoads, ...]

    def on(self, problem: Commodities, merged: NDArray[np.int32]) -> MixedFlows:
        """Return the same flows on `problem`, whose link class c is in class `merged[c]` of the present one."""
        if problem is self.flows[0].problem:
            return self
        flows = tuple(replace(flows, problem=problem, prices=flows.prices[merged]) for flows in self.flows)
        return MixedFlows(flows, self.parts, tuple(one.loads() for one in flows))

    def rate(self) -> Fraction:
        """Return the exact rate on the problem of the flows."""
        problem = self.flows[0].problem
        whole = np.zeros(len(problem.class_size), dtype=object)  # Python's numbers: a part of a load may have 70 bits
        for loads, part in zip(self.loads, self.parts, strict=True):
            whole += loads.whole * part
        columns = zip(whole.tolist(), problem.class_size.tolist(), problem.class_capacity.tolist(), strict=True)
        longest = max(Fraction(load, size * capacity) for load, size, capacity in columns)
        return Fraction(self.loads[0].units * sum(self.parts), problem.scale) / longest

    def of_sources(self) -> Floats:
        """Return float64[K, links]: the flows of each source."""
        total = sum(self.parts)
        mixed = self.flows[0].of_sources() * (self.parts[0] / total)
        for flows, part in zip(self.flows[1:], self.parts[1:], strict=True):
            mixed += flows.of_sources() * (part / total)
        return mixed


class Mixture:
    """Flows so far, all on one problem, of which `best` makes one."""

    def __init__(self) -> None:
        self._flows: list[PricedFlows] = []
        self._loads: list[PricedLoads] = []
        self._times: list[Floats] = []

    def add(self, flows: PricedFlows, loads: PricedLoads, times: Floats) -> None:
        """Add `flows`, which take `times` of each link, float64[C], at a rate of 1."""
        self._flows.append(flows)
        self._loads.append(loads)
        self._times.append(times)

    def best(self) -> Balance:
        """Return the mixture with the least of largest loads. A linear program of a variable per flow."""
        times = np.stack(self._times, axis=1)
        weights, duals = _least_maximum(times)
        parts = np.rint(weights * _PARTS).astype(np.int64)
        used = np.flatnonzero(parts > 0).tolist()
        flows = MixedFlows(
            tuple(self._flows[index] for index in used),
            tuple(parts[used].tolist()),
            tuple(self._loads[index] for index in used),
        )
        return Balance(flows, float(parts.sum()) / float((times[:, used] @ parts[used]).max()), duals)


@dataclass(frozen=True, slots=True, eq=False)
class Balance:
    """A mixture, its rate in floats, and what the busiest links would be worth to it: float64[C], by capacity."""

    flows: MixedFlows
    rate: float
    duals: Floats


def _least_maximum(times: Floats) -> tuple[Floats, Floats]:
    """Return weights >= 0 with sum 1 for which the largest of `times @ weights` is the least, and the duals of rows.

    The linear program is told of the rows that matter, round by round.
    """
    rows = np.argsort(-times.mean(axis=1), kind="stable")[:_ROWS_AT_ONCE]
    while True:
        weights, of_rows = _solved(times[rows])
        mixed = times @ weights
        if mixed.max() <= mixed[rows].max() * (1 + _TOLERANCE):
            duals = np.zeros(len(times))
            duals[rows] = of_rows
            return weights, duals
        rows = np.union1d(rows, np.argsort(-mixed, kind="stable")[:_ROWS_AT_ONCE])


def _solved(times: Floats) -> tuple[Floats, Floats]:
    count = times.shape[1]
    matrix = np.zeros((len(times) + 1, count + 1))
    matrix[:-1, :-1], matrix[:-1, -1], matrix[-1, :-1] = times / float(times.max()), -1.0, -1.0
    bound, objective = np.zeros(len(times) + 1), np.zeros(count + 1)
    bound[-1], objective[-1] = -1.0, 1.0
    chosen, marginals = minimum(objective, of_dense(matrix), bound, "choose lp")
    weights = np.clip(chosen[:-1], 0.0, None)
    return weights / weights.sum(), np.abs(marginals[:-1])
