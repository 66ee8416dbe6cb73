"""Solves all-to-alls on large networks: searches for link prices that make flows load all links evenly.

Flows follow from link prices: every node receives its data over the incoming links that are on cheap paths. It divides
the data among these links in proportion to exp(-extra / temperature), where extra is the additional cost of a path over
the link. So flows change smoothly with prices. Only prices are stored. The loads that they cause are computed exactly.

Imagine that data pay each link its price, so that a link earns its price times its load. If prices are scaled such that
all links together earn 1 at full capacity, every schedule has a link whose load / capacity is at least the sum of
distances. Distances are smoothed, and the derivative of their sum with respect to a link's price is the link's load.
So at the best prices, loads are proportional to capacities. These prices are found by quasi-Newton steps in the
logarithms of the prices. A pass computes the loads for one set of prices. About ten passes are enough if many paths
cost about the same, as in random networks. If there are few paths, the flows switch from one path to another as prices
change, so the flows of each pass overload some links. Then a linear program with one variable per pass decides which
fraction of the data uses the flows of each pass (the mixture). If no step makes progress, each further pass uses prices
between the best prices and the dual prices of the mixture.

Sources: Nocedal, "Updating quasi-Newton matrices with limited storage" (1980); Wentges, "Weighted Dantzig-Wolfe
decomposition for linear mixed-integer programming" (1997).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import minimum
from chorale.synth.methods.alltoall.balance import fine_units
from chorale.synth.methods.alltoall.linear_program import Commodities
from chorale.synth.methods.alltoall.rate import BoundsListener
from chorale.synth.processors import blocks, in_threads

Floats = NDArray[np.float64]
_SOURCES_AT_ONCE = 32
_PARTS = 2**16
"""Number of equal parts into which all data are divided. A mixture assigns these parts to its flows."""
_ROWS_AT_ONCE = 512
"""Number of links that are added to the linear program at a time, those with the largest loads first."""
_TOLERANCE = 1e-7


class PricedLoads(NamedTuple):
    """Link loads and costs of the flows that result from link prices.

    whole:        int64[C], exact number of parts of data that the links in each class carry in total
    units:        number of parts into which a demand of 1 is divided
    paid, smooth: sum of the distances of all data, and sum of their smoothed distances
    """

    whole: NDArray[np.int64]
    units: int
    paid: float
    smooth: float


@dataclass(frozen=True, slots=True, eq=False)
class PricedFlows:
    """The flows that result from link prices.

    prices:      float64[C], price of each link class of `problem`
    temperature: determines how evenly links are used (higher is more even), in the unit of the prices
    """

    problem: Commodities
    prices: Floats
    temperature: float

    def loads(self) -> PricedLoads:
        """Return the link loads that these flows cause. O(sources * links), computed in parallel threads."""
        problem, units = self.problem, fine_units(self.problem.node_count)

        def part(block: slice) -> tuple[NDArray[np.int64], float, float]:
            return self._add_loads(block, problem.weights[block], units)

        parts = in_threads(part, blocks(len(problem.sources), _SOURCES_AT_ONCE))
        of_class = np.zeros(len(problem.class_size), dtype=np.int64)
        np.add.at(of_class, problem.link_class, sum(loads for loads, _, _ in parts))
        return PricedLoads(of_class, units, sum(paid for _, paid, _ in parts), sum(smooth for _, _, smooth in parts))

    def of_sources(self) -> Floats:
        """Return float64[K, links]: the flow of each source on each link."""
        units, once = fine_units(self.problem.node_count), np.ones(1, dtype=np.int64)
        flows = np.empty((len(self.problem.sources), self.problem.link_count))
        for index, row in enumerate(flows):
            row[:] = self._add_loads(slice(index, index + 1), once, units)[0] / units
        return flows

    def _add_loads(
        self, block: slice, weights: NDArray[np.int64], units: int
    ) -> tuple[NDArray[np.int64], float, float]:
        """Return (int64[links]: loads from the sources in `block`, their part of `paid`, their part of `smooth`)."""
        problem = self.problem
        network = (
            problem.incoming, problem.src, problem.outgoing, problem.outgoing_links, problem.dst,
            problem.demand_of(block),
        )  # fmt: skip
        prices = self.prices[problem.link_class]
        loads = np.zeros(problem.link_count, dtype=np.int64)
        sums = native.add_priced_loads(network, problem.sources[block], weights, prices, self.temperature, units, loads)
        return loads, *sums


@dataclass(frozen=True, slots=True, eq=False)
class MixedFlows:
    """A mixture of flows: the fraction `parts[i]` / `sum(parts)` of all data takes the paths of `flows[i]`.

    loads: for each of `flows`, the loads that it would cause if it carried all data
    """

    flows: tuple[PricedFlows, ...]
    parts: tuple[int, ...]
    loads: tuple[PricedLoads, ...]

    def on(self, problem: Commodities, merged: NDArray[np.int32]) -> MixedFlows:
        """Convert the mixture to `problem`, whose link class c belongs to class `merged[c]` of the current problem."""
        if problem is self.flows[0].problem:
            return self
        flows = tuple(replace(flows, problem=problem, prices=flows.prices[merged]) for flows in self.flows)
        return MixedFlows(flows, self.parts, tuple(one.loads() for one in flows))

    def rate(self) -> Fraction:
        problem = self.flows[0].problem
        whole = np.zeros(len(problem.class_size), dtype=object)  # Python integers: a part of a load may have 70 bits
        for loads, part in zip(self.loads, self.parts, strict=True):
            whole += loads.whole * part
        columns = zip(whole.tolist(), problem.class_size.tolist(), problem.class_capacity.tolist(), strict=True)
        longest = max(Fraction(load, size * capacity) for load, size, capacity in columns)
        return Fraction(self.loads[0].units * sum(self.parts), problem.scale) / longest

    def of_sources(self) -> Floats:
        """Return float64[K, links]: the flow of each source on each link."""
        total = sum(self.parts)
        shares = zip(self.flows, self.parts, strict=True)
        return np.asarray(sum(flows.of_sources() * (part / total) for flows, part in shares))


def _least_maximum(times: Floats) -> tuple[Floats, Floats]:
    """Return weights >= 0 with sum 1 that minimise the largest entry of `times @ weights`, and dual values of the rows.

    Rows are added to the linear program in several rounds, once they become relevant.
    """
    rows = np.argsort(-times.mean(axis=1), kind="stable")[:_ROWS_AT_ONCE]
    while True:
        chosen, count = times[rows], times.shape[1]
        matrix = np.zeros((len(rows) + 1, count + 1))
        matrix[:-1, :-1], matrix[:-1, -1], matrix[-1, :-1] = chosen / float(chosen.max()), -1.0, -1.0
        bound, objective = np.zeros(len(rows) + 1), np.zeros(count + 1)
        bound[-1], objective[-1] = -1.0, 1.0
        solution, marginals = minimum(objective, sparse.csr_array(matrix), bound, "choose lp")
        weights = np.clip(solution[:-1], 0.0, None)
        weights /= weights.sum()
        mixed = times @ weights
        if mixed.max() <= mixed[rows].max() * (1 + _TOLERANCE):
            duals = np.zeros(len(times))
            duals[rows] = np.abs(marginals[:-1])
            return weights, duals
        rows = np.union1d(rows, np.argsort(-mixed, kind="stable")[:_ROWS_AT_ONCE])


_FIRST_TEMPERATURE = 0.08
"""Temperature at the start, in units of the mean price."""
_SHARE_OF_DETOURS = 0.7
"""Fraction of the accepted gap that may be due to paths that are not the cheapest ones."""
_MEMORY = 24
_SHORTEST_STEP, _SHRINK, _FIRST_SCALE = 0.1, 0.4, 0.5
_LEAST_LOGARITHM = -9.0
MAX_PASSES = 200
_PATIENCE = 24
"""The search ends after this number of passes without enough progress."""
_PROGRESS = 0.9
_PASSES_PER_MIXTURE = 4
_TOWARDS_DUALS = 0.1
"""Weight of a mixture's dual prices when they are averaged with the prices of the best bound to find better flows."""
_MARGIN = 0.999
"""The search aims at this fraction of the accepted gap, because rounding makes the exact bounds slightly worse."""


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """A set of link prices that the search tries (as logarithms), and values computed from these prices.

    value, slope: value and gradient of the function to minimise, log(earnings of links / smoothed sum of distances)
    shares:       float64[C], fraction of the total earnings at full capacity that each link class earns
    detour:       additional cost of the paths in use, relative to the cheapest paths
    """

    logarithms: Floats
    value: float
    slope: Floats
    shares: Floats
    detour: float


@dataclass(frozen=True, slots=True, eq=False)
class PricedSolution:
    """The best result of a price descent: the flows with the largest rate, and the prices that prove the best bound.

    prices:       float64[C], price of each link class
    lower, upper: floating-point bounds on the rate. `MixedFlows.rate` and `distance_bound` compute the exact bounds.
    """

    flows: MixedFlows
    prices: Floats
    lower: float
    upper: float

    @property
    def gap(self) -> float:
        return self.upper / self.lower - 1


def priced_solution(
    problem: Commodities, gap: Fraction, report: BoundsListener | None = None, passes: int = MAX_PASSES
) -> PricedSolution:
    """Return flows and prices whose bounds have a relative gap of at most `gap`, or the best found when progress stops.

    Takes at most about `passes` passes of O(sources * (links + nodes)), in parallel threads. Needs memory of O(links *
    threads), and O(link classes) per pass.
    """
    climb = _Climb(problem, _MARGIN * float(gap), report)
    point = climb.at(np.zeros(len(problem.class_size)))
    while climb.goes_on(passes) and not climb.is_blocked:
        point = climb.next(climb.cooled(point))
    while climb.goes_on(passes):
        climb.cooled(climb.between(climb.mix()))
    return climb.best


class _Climb:
    """A search for the best prices. Keeps the temperature, the last steps, and the flows and loads of all passes.

    best:       the best flows and the best prices that were found so far
    is_blocked: whether even the shortest step makes no progress. This happens when prices are as low as the
                temperature: then link loads jump whenever the order of nodes by distance changes.
    """

    best: PricedSolution

    def __init__(self, problem: Commodities, gap: float, report: BoundsListener | None) -> None:
        self.problem = problem
        self.gap = gap
        self.report = report
        self.capacity = problem.class_capacity / problem.scale * problem.class_size
        self.temperature = _FIRST_TEMPERATURE
        self.steps: list[Floats] = []  # the most recent steps, and how they changed the gradient
        self.changes: list[Floats] = []
        self.passes: list[tuple[PricedFlows, PricedLoads]] = []
        self.times: list[Floats] = []
        self.gaps: list[float] = []
        self.is_blocked = False

    def goes_on(self, passes: int) -> bool:
        """Return whether to continue: the accepted gap is not reached, passes are left, and there is progress.

        Progress means that the gap has shrunk a lot, or shrinks fast enough to be accepted after the remaining passes.
        """
        count = len(self.gaps)
        if self.best.gap <= self.gap or count >= passes:
            return False
        if count <= _PATIENCE:
            return True
        now, before = self.gaps[-1], self.gaps[-1 - _PATIENCE]
        return now <= _PROGRESS * before or now * (now / before) ** ((passes - count) / _PATIENCE) <= self.gap

    def cooled(self, point: _Point) -> _Point:
        """Return `point` at a lower temperature if its flows take paths that are too long, otherwise unchanged."""
        if point.detour <= 1.1 * _SHARE_OF_DETOURS * self.gap or self.best.gap <= self.gap:
            return point
        self.temperature *= max(0.3, _SHARE_OF_DETOURS * self.gap / point.detour)
        return self.at(point.logarithms)

    def next(self, point: _Point) -> _Point:
        """Take a step from `point` and return the new point. The step is shortened until the value decreases enough."""
        direction = self._direction(point)
        length = 1.0
        while True:
            after = self.at(np.maximum(point.logarithms + length * direction, _LEAST_LOGARITHM))
            if after.value <= point.value + 1e-4 * length * (point.slope @ direction):
                break
            if length < _SHORTEST_STEP:
                self.is_blocked = True
                break
            length *= _SHRINK
        step, change = after.logarithms - point.logarithms, after.slope - point.slope
        if step @ change > 1e-12 * float(np.sqrt((step @ step) * (change @ change))):
            self.steps, self.changes = [*self.steps, step][-_MEMORY:], [*self.changes, change][-_MEMORY:]
        return after

    def _direction(self, point: _Point) -> Floats:
        """Return the next quasi-Newton step. The first estimate of the curvature is each link's earnings."""
        rest, parts = point.slope.copy(), []
        for step, change in zip(reversed(self.steps), reversed(self.changes), strict=True):
            parts.append((step @ rest) / (change @ step))
            rest -= parts[-1] * change
        scale: Floats | float = _FIRST_SCALE
        if self.steps:
            scale = (self.steps[-1] @ self.changes[-1]) / (self.changes[-1] @ (self.changes[-1] / point.shares))
        rest = scale * rest / point.shares
        for step, change, part in zip(self.steps, self.changes, reversed(parts), strict=True):
            rest += step * (part - (change @ rest) / (change @ step))
        longest = float(np.abs(rest).max())
        result: Floats = -rest / max(1.0, longest)
        return result

    def between(self, duals: Floats) -> _Point:
        """Return the point at the prices of the best upper bound, moved a little towards `duals`."""
        prices = duals / self.capacity
        prices *= float(self.capacity.sum()) / float(prices @ self.capacity)
        mean = (1.0 - _TOWARDS_DUALS) * self.best.prices + _TOWARDS_DUALS * prices
        return self.at(np.maximum(np.log(mean), _LEAST_LOGARITHM))

    def at(self, logarithms: Floats) -> _Point:
        """Evaluate the prices with these `logarithms`; return them as a point, and update the best solution."""
        earned = float(self.capacity.sum())
        prices = np.exp(logarithms)
        prices *= earned / float(prices @ self.capacity)  # mean 1
        flows = PricedFlows(self.problem, prices, self.temperature)
        priced = flows.loads()
        loads = priced.whole / priced.units
        shares, total = prices * self.capacity / earned, float(prices @ loads)
        slope = (shares * total - prices * loads) / priced.smooth
        self.passes.append((flows, priced))
        self.times.append(loads / self.capacity)
        lower, upper = 1 / float(self.times[-1].max()), earned / priced.paid
        if not self.gaps:
            self.best = PricedSolution(MixedFlows((flows,), (1,), (priced,)), prices, lower, upper)
        if lower > self.best.lower:
            self.best = replace(self.best, flows=MixedFlows((flows,), (1,), (priced,)), lower=lower)
        if upper < self.best.upper:
            self.best = replace(self.best, prices=prices, upper=upper)
        self.gaps.append(self.best.gap)
        if len(self.gaps) % _PASSES_PER_MIXTURE == 0 and self.best.gap > self.gap and not self.is_blocked:
            self.mix()
        if self.report is not None:
            self.report(Fraction(self.best.lower), Fraction(self.best.upper))
        return _Point(logarithms, -float(np.log(priced.smooth)), slope, shares, total / priced.paid - 1)

    def mix(self) -> Floats:
        """Find the best mixture of the flows found so far; return its dual prices, multiplied by capacities."""
        times = np.stack(self.times, axis=1)
        weights, duals = _least_maximum(times)
        parts = np.rint(weights * _PARTS).astype(np.int64)
        used = np.flatnonzero(parts > 0).tolist()
        chosen, loads = zip(*(self.passes[index] for index in used), strict=True)
        rate = float(parts.sum()) / float((times[:, used] @ parts[used]).max())
        if rate > self.best.lower:
            flows = MixedFlows(chosen, tuple(parts[used].tolist()), loads)
            self.best = replace(self.best, flows=flows, lower=rate)
            self.gaps[-1] = self.best.gap
        return duals
