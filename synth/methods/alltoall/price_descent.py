"""Large networks without symmetries: prices whose flows load all links alike, found without storing any flow.

The sum of distances by prices that earn 1 in total is the load that every schedule has somewhere; its smoothed form
grows with each price as fast as the load of that link. So the best prices are those where loads are equal to what links
earn. They are climbed to by quasi-Newton steps in the logarithms of the prices. This takes some ten passes where many
paths cost about the same, as in random networks; where there are few paths, it stalls, and other methods do better.

Source: Nocedal, "Updating quasi-Newton matrices with limited storage" (1980).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.threads import blocks, in_threads
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.price_kernels import (
    BUCKETS,
    Floats,
    PricedNetwork,
    add_priced_loads,
    add_whole_loads,
)
from chorale.synth.methods.alltoall.rate import BoundsListener

_SOURCES_AT_ONCE = 64
_FIRST_TEMPERATURE = 0.08
"""In units of the mean price."""
_SHARE_OF_DETOURS = 0.5
"""The part of the gap that may be lost to paths that are not the cheapest."""
_MEMORY = 12
_SHORTEST_STEP, _SHRINK, _FIRST_SCALE = 0.1, 0.4, 0.5
_LEAST_LOGARITHM = -9.0
MAX_PASSES = 60
_PATIENCE = 8
"""Passes without progress after which the method gives up."""
_PROGRESS = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class PricedFlows:
    """The flows that follow prices: float64[C] per link class of `problem`, and a temperature in the same unit."""

    problem: Commodities
    prices: Floats
    temperature: float

    def summed(self) -> tuple[Floats, float, float]:
        """Return loads float64[links], and the sums of distances and smoothed distances. O(sources * links)."""
        network, prices, width = self._network()

        def part(block: slice) -> tuple[Floats, float, float]:
            loads = np.zeros(self.problem.link_count)
            rows = network._replace(demand=self.problem.demand_of(block))
            sources, weights = self.problem.sources[block], self.problem.weights[block]
            return loads, *add_priced_loads(rows, sources, weights, prices, width, self.temperature, loads)

        parts = in_threads(part, blocks(len(self.problem.sources), _SOURCES_AT_ONCE))
        loads = np.zeros(self.problem.link_count)
        for one, _, _ in parts:
            loads += one
        return loads, sum(paid for _, paid, _ in parts), sum(smooth for _, _, smooth in parts)

    def rate(self, units: int) -> Fraction:
        """Return the exact rate of these flows in whole units, `units` for each that is sent."""
        problem = self.problem
        network, prices, width = self._network()

        def part(block: slice) -> NDArray[np.int64]:
            loads = np.zeros(problem.link_count, dtype=np.int64)
            rows = network._replace(demand=problem.demand_of(block))
            sources, weights = problem.sources[block], problem.weights[block]
            add_whole_loads(rows, sources, weights, prices, width, self.temperature, units, loads)
            return loads

        of_class = np.zeros(len(problem.class_size), dtype=np.int64)
        for loads in in_threads(part, blocks(len(problem.sources), _SOURCES_AT_ONCE)):
            np.add.at(of_class, problem.link_class, loads)
        columns = zip(of_class, problem.class_size, problem.class_capacity, strict=True)
        longest = max(Fraction(int(load), int(size) * int(capacity)) for load, size, capacity in columns)
        return Fraction(units, problem.scale) / longest

    def of_sources(self) -> Floats:
        """Return float64[K, links]: the flows of each source."""
        network, prices, width = self._network()
        flows = np.zeros((len(self.problem.sources), self.problem.link_count))
        once = np.ones(1, dtype=np.int64)
        for index, row in enumerate(flows):
            block = slice(index, index + 1)
            rows = network._replace(demand=self.problem.demand_of(block))
            add_priced_loads(rows, self.problem.sources[block], once, prices, width, self.temperature, row)
        return flows

    def _network(self) -> tuple[PricedNetwork, Floats, float]:
        problem = self.problem
        heads = problem.dst[problem.outgoing_links]
        network = PricedNetwork(
            problem.incoming, problem.src, problem.outgoing, problem.outgoing_links, heads, problem.demand
        )
        prices = self.prices[problem.link_class]
        width = max(float(prices.min()) / 2, float(prices.max()) / (BUCKETS - 4))
        return network, prices, width


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Logarithms of prices, their flows, and what these say.

    value, slope: of the logarithm of what links earn over the smoothed sum of distances, which is to be least
    shares:       float64[C], the part that each class earns
    uneven:       float64[C], load over the mean load, per capacity
    detour:       by which part the paths are longer than the shortest
    """

    logarithms: Floats
    flows: PricedFlows
    value: float
    slope: Floats
    shares: Floats
    uneven: Floats
    detour: float
    lower: float
    upper: float


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

    The bounds are in floating point: `PricedFlows.rate` and `distance_bound` make exact ones.
    """

    flows: PricedFlows
    prices: Floats
    lower: float
    upper: float

    @property
    def gap(self) -> float:
        return self.upper / self.lower - 1

    def joined(self, point: _Point) -> PricedSolution:
        """Return the better of both in each respect."""
        better = self
        if point.lower > self.lower:
            better = replace(better, flows=point.flows, lower=point.lower)
        if point.upper < self.upper:
            better = replace(better, prices=point.flows.prices, upper=point.upper)
        return better


def priced_solution(
    problem: Commodities, gap: Fraction, report: BoundsListener | None = None, passes: int = MAX_PASSES
) -> PricedSolution:
    """Return flows and prices whose bounds differ by at most `gap`, or what is reached when progress ends.

    At most about `passes` passes of O(sources * (links + nodes)), side by side in threads; memory O(links * threads).
    """
    climb = _Climb(problem, report)
    point = climb.at(np.zeros(len(problem.class_size)))
    while climb.best.gap > gap and climb.passes < passes and not climb.is_stuck():
        if point.detour > 1.1 * _SHARE_OF_DETOURS * float(gap):
            climb.cool(float(gap), point)
            point = climb.at(point.logarithms)
        else:
            point = climb.next(point)
    return climb.best


class _Climb:
    """The search: its temperature, the best bounds so far and what is known of the curvature."""

    best: PricedSolution

    def __init__(self, problem: Commodities, report: BoundsListener | None) -> None:
        self.problem = problem
        self.report = report
        self.capacity = problem.class_capacity / problem.scale * problem.class_size
        self.temperature = _FIRST_TEMPERATURE
        self.curvature = _Curvature()
        self.gaps: list[float] = []

    @property
    def passes(self) -> int:
        return len(self.gaps)

    def is_stuck(self) -> bool:
        """Whether the last passes have hardly brought the bounds closer."""
        return self.passes > _PATIENCE and self.gaps[-1] > _PROGRESS * self.gaps[-1 - _PATIENCE]

    def cool(self, gap: float, point: _Point) -> None:
        """Lower the temperature so that paths become short enough."""
        self.temperature *= max(0.3, _SHARE_OF_DETOURS * gap / point.detour)

    def next(self, point: _Point) -> _Point:
        """Return the point after a step; a shorter one where the value would not fall."""
        direction = self.curvature.step_from(point)
        length = 1.0
        while True:
            after = self.at(np.maximum(point.logarithms + length * direction, _LEAST_LOGARITHM))
            if after.value <= point.value + 1e-4 * length * (point.slope @ direction) or length < _SHORTEST_STEP:
                break
            length *= _SHRINK
        self.curvature.note(point, after)
        return after

    def at(self, logarithms: Floats) -> _Point:
        """Return the point at these logarithms of prices."""
        earned = float(self.capacity.sum())
        prices = np.exp(logarithms)
        prices *= earned / float(prices @ self.capacity)  # 1 in the mean
        flows = PricedFlows(self.problem, prices, self.temperature)
        of_link, paid, smooth = flows.summed()
        loads = np.bincount(self.problem.link_class, weights=of_link, minlength=len(prices))
        shares, total = prices * self.capacity / earned, float(prices @ loads)
        slope = (shares * total - prices * loads) / smooth
        uneven = loads / self.capacity * (earned / total)
        lower, upper = 1 / float((loads / self.capacity).max()), earned / paid
        point = _Point(logarithms, flows, -float(np.log(smooth)), slope, shares, uneven, total / paid - 1, lower, upper)
        self._note(point)
        return point

    def _note(self, point: _Point) -> None:
        first = PricedSolution(point.flows, point.flows.prices, point.lower, point.upper)
        self.best = self.best.joined(point) if self.gaps else first
        self.gaps.append(self.best.gap)
        if self.report is not None:
            self.report(Fraction(self.best.lower), Fraction(self.best.upper))
