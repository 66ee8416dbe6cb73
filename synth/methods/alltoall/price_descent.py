"""Large networks: prices whose flows load all links alike, found without storing any flow.

The sum of distances by prices that earn 1 in total is the load that every schedule has somewhere; its smoothed form
grows with each price as fast as the load of that link. So the best prices are those where loads are equal to what links
earn. They are climbed to by quasi-Newton steps in the logarithms of the prices. This takes some ten passes where many
paths cost about the same, as in random networks. Flows that follow prices alternate between such paths, so that each of
them has links that carry too much: where there are few paths, a linear program over what each pass loads, with one
variable per pass, chooses how much of the data takes which flows. The loads of a mixture are the mixture of the loads,
so that nothing but loads needs to be stored. Where no step gets ahead, each pass is at prices between the best ones and
those at which the mixture is worth most.

Source: Nocedal, "Updating quasi-Newton matrices with limited storage" (1980); Wentges, "Weighted Dantzig-Wolfe
decomposition for linear mixed-integer programming" (1997).

Flows that follow link prices: every node takes what it needs over the links by which it is cheapest to reach.

A node shares its need among its links by exp(-extra / temperature), extra being by how much a path over the link costs
more than the cheapest. So flows change smoothly with prices, and nothing needs to be stored but the prices. What they
load links with is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.kernels.threads import blocks, in_threads
from chorale.synth.kernels.types import Matrix
from chorale.synth.linear_program import minimum, of_dense
from chorale.synth.methods.alltoall.balance import fine_units
from chorale.synth.methods.alltoall.linear_program import Commodities
from chorale.synth.methods.alltoall.rate import BoundsListener

Floats = NDArray[np.float64]
WholeLoads = NDArray[np.int64]
_BUCKETS = 4096
"""Buckets of a search for cheapest paths."""
_SOURCES_AT_ONCE = 32


class PricedNetwork(NamedTuple):
    """Links by their ends: `incoming` and `src` by head; `outgoing`, `outgoing_links` and `heads` by tail.

    demand: int64[1 or sources, nodes]
    """

    incoming: NDArray[np.int64]
    src: NDArray[np.int32]
    outgoing: NDArray[np.int64]
    outgoing_links: NDArray[np.int32]
    heads: NDArray[np.int32]
    demand: Matrix[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PricedLoads:
    """What flows that follow prices do.

    whole:        int64[C], exact: over all links of a class, in units of `units` for each that is sent
    paid, smooth: the sums of distances and smoothed distances over all that is sent
    """

    whole: WholeLoads
    units: int
    paid: float
    smooth: float


@dataclass(frozen=True, slots=True, eq=False)
class PricedFlows:
    """The flows that follow prices: float64[C] per link class of `problem`, and a temperature in the same unit."""

    problem: Commodities
    prices: Floats
    temperature: float

    def loads(self) -> PricedLoads:
        """Return what these flows load links with. O(sources * links), side by side in threads."""
        problem = self.problem
        network, prices, width = self._network()
        units = fine_units(problem.node_count)

        def part(block: slice) -> tuple[WholeLoads, float, float]:
            loads = np.zeros(problem.link_count, dtype=np.int64)
            rows = network._replace(demand=problem.demand_of(block))
            sources, weights = problem.sources[block], problem.weights[block]
            return loads, *native.add_priced_loads(
                rows, sources, weights, prices, width, self.temperature, units, loads
            )

        parts = in_threads(part, blocks(len(problem.sources), _SOURCES_AT_ONCE))
        of_class = np.zeros(len(problem.class_size), dtype=np.int64)
        np.add.at(of_class, problem.link_class, sum(loads for loads, _, _ in parts))
        return PricedLoads(of_class, units, sum(paid for _, paid, _ in parts), sum(smooth for _, _, smooth in parts))

    def of_sources(self) -> Floats:
        """Return float64[K, links]: the flows of each source."""
        problem = self.problem
        network, prices, width = self._network()
        units = fine_units(problem.node_count)
        flows = np.zeros((len(problem.sources), problem.link_count))
        once = np.ones(1, dtype=np.int64)
        for index, row in enumerate(flows):
            block, whole = slice(index, index + 1), np.zeros(problem.link_count, dtype=np.int64)
            rows = network._replace(demand=problem.demand_of(block))
            native.add_priced_loads(rows, problem.sources[block], once, prices, width, self.temperature, units, whole)
            row[:] = whole / units
        return flows

    def _network(self) -> tuple[PricedNetwork, Floats, float]:
        problem = self.problem
        heads = problem.dst[problem.outgoing_links]
        network = PricedNetwork(
            problem.incoming, problem.src, problem.outgoing, problem.outgoing_links, heads, problem.demand
        )
        prices = self.prices[problem.link_class]
        width = max(float(prices.min()) / 2, float(prices.max()) / (_BUCKETS - 4))
        return network, prices, width


_PARTS = 2**16
"""All data is so many parts."""
_ROWS_AT_ONCE = 512
"""Links that are added to the linear program at a time, those with the largest loads first."""
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

    Rows are added to the linear program round by round, when they matter.
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


_FIRST_TEMPERATURE = 0.08
"""In units of the mean price."""
_SHARE_OF_DETOURS = 0.7
"""The part of the gap that may be lost to paths that are not the cheapest."""
_MEMORY = 24
_SHORTEST_STEP, _SHRINK, _FIRST_SCALE = 0.1, 0.4, 0.5
_LEAST_LOGARITHM = -9.0
MAX_PASSES = 200
_PATIENCE = 24
"""Passes without enough progress after which the method gives up."""
_PROGRESS = 0.9
_PASSES_PER_MIXTURE = 4
_TOWARDS_DUALS = 0.1
"""How far prices of the best bound are moved towards those of a mixture, to find flows that it lacks."""
_MARGIN = 0.999
"""The part of the gap to reach in floating point, so that exact bounds are within all of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Logarithms of prices, and what these say.

    value, slope: of the logarithm of what links earn over the smoothed sum of distances, which is to be least
    shares:       float64[C], the part that each class earns
    detour:       by which part the paths are longer than the shortest
    """

    logarithms: Floats
    value: float
    slope: Floats
    shares: Floats
    detour: float


@dataclass(slots=True)
class _Curvature:
    """The last steps and changes of slope, of which a step of Newton's method is made."""

    steps: list[Floats] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)

    def note(self, before: _Point, after: _Point) -> None:
        step, change = after.logarithms - before.logarithms, after.slope - before.slope
        if step @ change > 1e-12 * float(np.sqrt((step @ step) * (change @ change))):
            self.steps, self.changes = [*self.steps, step][-_MEMORY:], [*self.changes, change][-_MEMORY:]

    def step_from(self, point: _Point) -> Floats:
        """Return the step; the first guess of the curvature in a price is what its links earn."""
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


@dataclass(frozen=True, slots=True, eq=False)
class PricedSolution:
    """flows: those with the largest rate; prices: float64[C], those that prove the least upper bound.

    The bounds are in floating point: `MixedFlows.rate` and `distance_bound` make exact ones.
    """

    flows: MixedFlows
    prices: Floats
    lower: float
    upper: float

    @property
    def gap(self) -> float:
        return self.upper / self.lower - 1

    def joined(self, other: PricedSolution) -> PricedSolution:
        """Return the better of both in each respect."""
        better = self
        if other.lower > self.lower:
            better = replace(better, flows=other.flows, lower=other.lower)
        if other.upper < self.upper:
            better = replace(better, prices=other.prices, upper=other.upper)
        return better


def priced_solution(
    problem: Commodities, gap: Fraction, report: BoundsListener | None = None, passes: int = MAX_PASSES
) -> PricedSolution:
    """Return flows and prices whose bounds differ by at most `gap`, or what is reached when progress ends.

    At most about `passes` passes of O(sources * (links + nodes)), side by side in threads; memory O(links * threads)
    and O(link classes) for each pass.
    """
    climb = _Climb(problem, _MARGIN * float(gap), report)
    point = climb.at(np.zeros(len(problem.class_size)))
    while climb.goes_on(passes) and not climb.is_blocked:
        point = climb.next(climb.cooled(point))
    while climb.goes_on(passes):
        climb.cooled(climb.between(climb.mix()))
    return climb.best


class _Climb:
    """The search: its temperature, the best bounds so far, what is known of the curvature, and flows to mix.

    is_blocked: whether no step was short enough to get ahead. That happens where prices fall to the temperature: what
    links carry then jumps where nodes change their order.
    """

    best: PricedSolution

    def __init__(self, problem: Commodities, gap: float, report: BoundsListener | None) -> None:
        self.problem = problem
        self.gap = gap
        self.report = report
        self.capacity = problem.class_capacity / problem.scale * problem.class_size
        self.temperature = _FIRST_TEMPERATURE
        self.curvature = _Curvature()
        self.mixture = Mixture()
        self.gaps: list[float] = []
        self.is_blocked = False

    def goes_on(self, passes: int) -> bool:
        """Whether the gap is not reached, more passes are allowed, and the last ones give hope for them."""
        count = len(self.gaps)
        if self.best.gap <= self.gap or count >= passes:
            return False
        return count <= _PATIENCE or self._gets_on(passes - count)

    def _gets_on(self, left: int) -> bool:
        """Whether the last passes have brought the bounds much closer, or enough for the gap in as many as are left."""
        now, before = self.gaps[-1], self.gaps[-1 - _PATIENCE]
        return now <= _PROGRESS * before or now * (now / before) ** (left / _PATIENCE) <= self.gap

    def cooled(self, point: _Point) -> _Point:
        """Return the point at a lower temperature if its paths are too long; else as it is."""
        if point.detour <= 1.1 * _SHARE_OF_DETOURS * self.gap or self.best.gap <= self.gap:
            return point
        self.temperature *= max(0.3, _SHARE_OF_DETOURS * self.gap / point.detour)
        return self.at(point.logarithms)

    def next(self, point: _Point) -> _Point:
        """Return the point after a step; a shorter one where the value would not fall."""
        direction = self.curvature.step_from(point)
        length = 1.0
        while True:
            after = self.at(np.maximum(point.logarithms + length * direction, _LEAST_LOGARITHM))
            if after.value <= point.value + 1e-4 * length * (point.slope @ direction):
                break
            if length < _SHORTEST_STEP:
                self.is_blocked = True
                break
            length *= _SHRINK
        self.curvature.note(point, after)
        return after

    def between(self, duals: Floats) -> _Point:
        """Return the point at the prices of the best upper bound, a little towards those at which flows are mixed."""
        prices = duals / self.capacity
        prices *= float(self.capacity.sum()) / float(prices @ self.capacity)
        mean = (1.0 - _TOWARDS_DUALS) * self.best.prices + _TOWARDS_DUALS * prices
        return self.at(np.maximum(np.log(mean), _LEAST_LOGARITHM))

    def at(self, logarithms: Floats) -> _Point:
        """Return the point at these logarithms of prices."""
        earned = float(self.capacity.sum())
        prices = np.exp(logarithms)
        prices *= earned / float(prices @ self.capacity)  # 1 in the mean
        flows = PricedFlows(self.problem, prices, self.temperature)
        priced = flows.loads()
        loads = priced.whole / priced.units
        shares, total = prices * self.capacity / earned, float(prices @ loads)
        slope = (shares * total - prices * loads) / priced.smooth
        point = _Point(logarithms, -float(np.log(priced.smooth)), slope, shares, total / priced.paid - 1)
        self.mixture.add(flows, priced, loads / self.capacity)
        lower = 1 / float((loads / self.capacity).max())
        self._note(PricedSolution(MixedFlows((flows,), (1,), (priced,)), prices, lower, earned / priced.paid))
        return point

    def mix(self) -> Floats:
        """Mix the flows so far, and return the prices of links at which the mixture is as good as any other."""
        balance = self.mixture.best()
        if balance.rate > self.best.lower:
            self.best = replace(self.best, flows=balance.flows, lower=balance.rate)
            self.gaps[-1] = self.best.gap
        return balance.duals

    def _note(self, solution: PricedSolution) -> None:
        self.best = self.best.joined(solution) if self.gaps else solution
        self.gaps.append(self.best.gap)
        if len(self.gaps) % _PASSES_PER_MIXTURE == 0 and self.best.gap > self.gap and not self.is_blocked:
            self.mix()
        if self.report is not None:
            self.report(Fraction(self.best.lower), Fraction(self.best.upper))
