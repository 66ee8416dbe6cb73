"""Large unsymmetric problems: a matrix-free primal-dual method that touches each flow variable once per iteration.

Saddle point: flows y >= 0 against node potentials q >= 0 (delivery) and link prices x >= 0 with sum of price *
capacity = 1 (the largest load), so that the rate itself is no variable. Each iteration is a step T of the
primal-dual hybrid gradient, reflected and pulled back to an anchor: z <- b (2 T z - z) + (1 - b) anchor with b =
(k + 1) / (k + 2). The anchor moves to z when the step T z - z has become small enough.

Source: Lu and Yang, "Restarted Halpern PDHG for linear programming" (2024); diagonal steps by Pock and Chambolle,
"Diagonal preconditioning for first order primal-dual algorithms" (2011); weights by Applegate et al., "Practical
large-scale linear programming using primal-dual hybrid gradient" (2021). On these problems the pull to an anchor
does better than restarted averages, which stall a percent away.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled
from chorale.synth.kernels.threads import blocks, in_threads
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.flow_kernels import hop_counts, shortest_flows
from chorale.synth.methods.alltoall.rate import BoundsListener, distance_bound, integer_prices
from chorale.synth.methods.alltoall.routing import Router, fine_units

Floats = NDArray[np.float64]

ITERATIONS_PER_CHECK = 40
_CELLS_AT_ONCE = 2**20
"""Variables that one thread takes at a time; the results of smaller problems do not depend on this."""
_FAR, _SELDOM = 3, 3
"""Bounds of large problems that are more than so many times too far apart are certified so many times less often."""
_COLUMN_NORM = 3.0
"""Entries of a column: two ends and a load."""
_ENOUGH, _SOME = 0.2, 0.8
"""Restart when the residual has fallen to the first part of what it was, or to the second and grows again."""
_LONGEST_PART = 0.36
"""Restart when the current run makes up this part of all iterations."""


@dataclass(slots=True)
class Point:
    """Where an iteration is. flows: float64[K, links]; potentials: float64[K, nodes]; prices: float64[C], per link."""

    flows: Floats
    potentials: Floats
    prices: Floats

    def copy(self) -> Point:
        return Point(self.flows.copy(), self.potentials.copy(), self.prices.copy())


@dataclass(slots=True)
class _Best:
    """The best exact bounds so far, and what reaches them."""

    problem: Commodities
    flows: Floats
    prices: Floats
    lower: Fraction = Fraction(0)
    upper: Fraction | None = None

    def offer(self, point: Point) -> None:
        router = Router(self.problem, fine_units(self.problem.node_count))
        router.route(point.flows, slice(0, len(self.problem.sources)))
        if router.rate() > self.lower:
            self.lower, self.flows = router.rate(), point.flows.copy()
        upper = distance_bound(self.problem, integer_prices(point.prices))
        if upper is not None and (self.upper is None or upper < self.upper):
            self.upper, self.prices = upper, point.prices.copy()

    def is_within(self, gap: Fraction) -> bool:
        return self.upper is not None and self.upper <= self.lower * (1 + gap)


def solve(
    problem: Commodities,
    gap: Fraction,
    max_iterations: int,
    report: BoundsListener | None,
    start: Point | None = None,
) -> tuple[Floats, Floats]:
    """Return (flows float64[K, links], prices float64[C] per link) whose certified bounds differ by at most `gap`.

    Begins at `start`, by default along the fewest hops. Bounds are certified every 40 iterations. Ends after
    `max_iterations` whatever the gap is then. O(sources * links) per iteration, side by side in threads; about 32
    bytes of memory per source and link.
    """
    method = PrimalDualIteration(problem, start)
    best = _Best(problem, method.point.flows, method.point.prices)
    for check in range(-(-max_iterations // ITERATIONS_PER_CHECK)):
        if check % _SELDOM == 0 or problem.cells <= _CELLS_AT_ONCE or best.is_within(gap * _FAR):
            best.offer(method.point)
        if report is not None and best.upper is not None:
            report(best.lower, best.upper)
        if best.is_within(gap):
            break
        method.advance(ITERATIONS_PER_CHECK)
    return best.flows, best.prices


class PrimalDualIteration:
    """The iteration: a point, its anchor, and the weight that balances primal against dual steps."""

    def __init__(self, problem: Commodities, start: Point | None) -> None:
        self.problem = problem
        self.capacity = problem.class_capacity / problem.scale
        self.degree = np.maximum(1, np.diff(problem.incoming) + np.diff(problem.outgoing)).astype(np.float64)
        self.ranks = float(problem.weights.sum())
        self.blocks = blocks(len(problem.sources), max(1, _CELLS_AT_ONCE // max(1, problem.link_count)))
        self.point = self._along_fewest_hops() if start is None else start.copy()
        self.anchor = self.point.copy()
        self.weight = self._dual_norm(self.point) / self._primal_norm(self.point)
        self.run = self.total = 0
        self.first_residual = self.last_residual = np.inf

    def _along_fewest_hops(self) -> Point:
        hops = hop_counts(self.problem)
        prices = np.full(len(self.capacity), 1.0 / float(np.sum(self.capacity * self.problem.class_size)))
        return Point(shortest_flows(self.problem, hops), hops * float(prices.max()), prices)

    def advance(self, iterations: int) -> None:
        """Iterate, then move the anchor if it is time."""
        residual = 0.0
        for _ in range(iterations):
            residual = self._step()
            if self.run == 1:
                self.first_residual = residual
        small = residual <= _ENOUGH * self.first_residual
        stuck = residual <= _SOME * self.first_residual and residual > self.last_residual
        if small or stuck or self.run >= _LONGEST_PART * self.total:
            self._restart()
        else:
            self.last_residual = residual

    def _step(self) -> float:
        """Do one iteration and return the length of the step."""
        problem, point, anchor = self.problem, self.point, self.anchor
        blend = (self.run + 1) / (self.run + 2)

        def part(block: slice) -> tuple[Floats, float, float]:
            loads = np.zeros(len(self.capacity))
            lengths = _iterate(
                problem.src, problem.incoming, problem.sources[block], problem.weights[block], problem.link_class,
                problem.demand_of(block), self.weight / self.degree, 1.0 / (_COLUMN_NORM * self.weight), blend,
                point.flows[block], point.potentials[block], point.prices, anchor.flows[block],
                anchor.potentials[block], loads,
            )  # fmt: skip
            return loads, *lengths

        loads = np.zeros(len(self.capacity))
        primal = dual = 0.0
        for of_block, primal_length, dual_length in in_threads(part, self.blocks):
            loads += of_block
            primal, dual = primal + primal_length, dual + dual_length
        moved = point.prices + self.weight / self.ranks * loads / problem.class_size
        prices = _project(moved, self.capacity, problem.class_size)
        dual += self.ranks / self.weight * float(np.sum(problem.class_size * (prices - point.prices) ** 2))
        point.prices = blend * (2 * prices - point.prices) + (1 - blend) * anchor.prices
        self.run += 1
        self.total += 1
        return float(np.sqrt(primal + dual))

    def _restart(self) -> None:
        gone = Point(
            self.point.flows - self.anchor.flows,
            self.point.potentials - self.anchor.potentials,
            self.point.prices - self.anchor.prices,
        )
        primal, dual = self._primal_norm(gone), self._dual_norm(gone)
        if primal > 0 and dual > 0:
            self.weight = float(np.sqrt(self.weight * dual / primal))
        self.anchor = self.point.copy()
        self.run = 0
        self.first_residual = self.last_residual = np.inf

    def _primal_norm(self, point: Point) -> float:
        weights = self.problem.weights[:, np.newaxis]
        return float(np.sqrt(_COLUMN_NORM * np.sum(weights * point.flows**2)))

    def _dual_norm(self, point: Point) -> float:
        weights = self.problem.weights[:, np.newaxis]
        potentials = np.sum(weights * self.degree * point.potentials**2)
        return float(np.sqrt(potentials + self.ranks * np.sum(self.problem.class_size * point.prices**2)))


def _project(prices: Floats, capacity: Floats, size: NDArray[np.int64]) -> Floats:
    """Return the nearest prices >= 0 with sum of size * capacity * price = 1, each link counted once.

    They are max(0, price - shift * capacity); the shift follows from the links that stay positive, found by sorting.
    """
    order = np.argsort(-prices / capacity, kind="stable")
    earned = np.cumsum((size * capacity * prices)[order]) - 1.0
    shifts = earned / np.cumsum((size * capacity * capacity)[order])
    positive = np.flatnonzero(prices[order] > shifts * capacity[order])
    nearest: Floats = np.maximum(0.0, prices - shifts[positive[-1]] * capacity)
    return nearest


@compiled
def _iterate(
    src: NDArray[np.int32],
    incoming: NDArray[np.int64],
    sources: NDArray[np.int32],
    weights: NDArray[np.int64],
    link_class: NDArray[np.int32],
    demand: Matrix[np.int64],
    potential_steps: Floats,
    flow_step: float,
    blend: float,
    flows: Matrix[np.float64],
    potentials: Matrix[np.float64],
    prices: Floats,
    anchor_flows: Matrix[np.float64],
    anchor_potentials: Matrix[np.float64],
    loads: Floats,
) -> tuple[float, float]:
    """Step down in the flows, then up in the potentials by the reflected flows, whose loads go to `loads`.

    Returns the squared lengths of both steps.
    """
    node_count = demand.shape[1]
    net = np.empty(node_count)
    flow_length = potential_length = 0.0
    for index in range(len(sources)):
        flow, potential = flows[index], potentials[index]
        anchor_flow, anchor_potential = anchor_flows[index], anchor_potentials[index]
        source, weight, wanted = sources[index], float(weights[index]), demand[index % len(demand)]
        net[:] = 0.0
        for head in range(node_count):
            if head == source:
                continue  # no flow returns to its source
            for link in range(incoming[head], incoming[head + 1]):
                tail, group, old = src[link], link_class[link], flow[link]
                new = max(0.0, old - flow_step * (prices[group] + potential[tail] - potential[head]))
                reflected = 2.0 * new - old
                net[head] += reflected
                net[tail] -= reflected
                loads[group] += weight * reflected
                flow[link] = blend * reflected + (1.0 - blend) * anchor_flow[link]
                flow_length += weight * (new - old) * (new - old) / flow_step
        for node in range(node_count):
            if node != source:
                old = potential[node]
                new = max(0.0, old + potential_steps[node] * (wanted[node] - net[node]))
                potential[node] = blend * (2.0 * new - old) + (1.0 - blend) * anchor_potential[node]
                potential_length += weight * (new - old) * (new - old) / potential_steps[node]
    return flow_length, potential_length
