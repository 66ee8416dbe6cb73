"""Large unsymmetric problems: a matrix-free primal-dual method that touches each flow variable once per iteration.

Saddle point: flows y >= 0 against node potentials q >= 0 (delivery) and link prices x >= 0 with sum of price *
capacity = 1 (the largest load), so the rate itself is no variable. Steps of the primal-dual hybrid gradient with
extrapolation, averages, restarts from the average and an adapted primal weight.

Source: Applegate et al., "Practical large-scale linear programming using primal-dual hybrid gradient" (PDLP, 2021);
step sizes by Pock and Chambolle, "Diagonal preconditioning for first order primal-dual algorithms" (2011).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from synth.alltoall.commodities import Commodities
from synth.alltoall.prices import distance_bound, integer_prices
from synth.alltoall.rate import Report
from synth.alltoall.routing import Router, units_for
from synth.compiled import compiled

Floats = NDArray[np.float64]

ITERATIONS_PER_CHECK = 40
LONGEST_RUN = 400
"""Iterations after which the average is taken even without progress."""
_COLUMN_NORM = 3.0
"""Entries of a column: two ends and a load."""


@dataclass(slots=True)
class _State:
    """Flows float64[K, links], potentials float64[K, nodes], prices float64[C] per link; sums since a restart."""

    flows: Floats
    potentials: Floats
    prices: Floats
    flow_sum: Floats
    potential_sum: Floats
    price_sum: Floats
    count: int = 0

    @staticmethod
    def start(flows: Floats, potentials: Floats, prices: Floats) -> _State:
        return _State(flows, potentials, prices, np.zeros_like(flows), np.zeros_like(potentials), np.zeros_like(prices))

    def average(self) -> tuple[Floats, Floats, Floats]:
        share = 1.0 / max(1, self.count)
        return self.flow_sum * share, self.potential_sum * share, self.price_sum * share


@dataclass(slots=True)
class _Best:
    """The best exact bounds of the small problem, and what reaches them."""

    flows: Floats
    prices: Floats
    lower: Fraction
    upper: Fraction

    @property
    def gap(self) -> Fraction:
        return self.upper / self.lower - 1

    def offer(self, problem: Commodities, flows: Floats, prices: Floats) -> Fraction:
        """Certify a pair, keep what is better, return the gap of the pair itself."""
        lower = lower_bound(problem, flows)
        upper = distance_bound(problem, integer_prices(prices))
        if lower > self.lower:
            self.lower, self.flows = lower, flows.copy()
        if upper < self.upper:
            self.upper, self.prices = upper, prices.copy()
        return upper / lower - 1


def solve(problem: Commodities, gap: Fraction, max_iterations: int, report: Report | None) -> tuple[Floats, Floats]:
    """Return (flows float64[K, links], prices float64[C] per link) whose certified bounds differ by at most `gap`.

    Ends at `max_iterations` whatever the gap is then. O(sources * links) per iteration and 3 * 8 bytes of memory
    per source and link.
    """
    flows, prices = _shortest_flows(problem), _equal_prices(problem)
    best = _Best(flows, prices, lower_bound(problem, flows), distance_bound(problem, integer_prices(prices)))
    potentials = _potentials(problem, prices)
    weight = _norm(problem, potentials) / _norm(problem, flows)
    state = _State.start(flows.copy(), potentials, prices.copy())
    anchor = (flows.copy(), potentials.copy())
    last_gap = float(best.gap)
    for _ in range(0, max_iterations, ITERATIONS_PER_CHECK):
        if report is not None:
            report(best.lower, best.upper)
        if best.gap <= gap:
            break
        _advance(problem, state, weight)
        average = state.average()
        current = float(best.offer(problem, average[0], average[2]))
        if current <= 0.5 * last_gap or state.count >= LONGEST_RUN:
            last_gap = current
            moved = (_norm(problem, average[0] - anchor[0]), _norm(problem, average[1] - anchor[1]))
            weight = _adapted(weight, *moved)
            anchor = (average[0].copy(), average[1].copy())
            state = _State.start(*average)
    return best.flows, best.prices


def lower_bound(problem: Commodities, flows: Floats) -> Fraction:
    """Return the exact rate of whole flows close to `flows`."""
    router = Router(problem, units_for(problem.node_count))
    router.route(flows, slice(0, len(problem.sources)))
    return router.rate()


def _adapted(weight: float, primal_move: float, dual_move: float) -> float:
    """Balance the distances that both sides have to go, smoothed (PDLP, section 3.3)."""
    if primal_move < 1e-12 or dual_move < 1e-12:
        return weight
    return float(np.exp(0.5 * np.log(dual_move / primal_move) + 0.5 * np.log(weight)))


def _norm(problem: Commodities, values: Floats) -> float:
    return float(np.sqrt(np.sum(problem.weights[:, np.newaxis] * values * values)))


def _equal_prices(problem: Commodities) -> Floats:
    capacity = problem.class_capacity / problem.scale
    total = float(np.sum(capacity * problem.class_size))
    return np.full(len(capacity), 1.0 / total)


def _shortest_flows(problem: Commodities) -> Floats:
    """Return flows along fewest hops, split evenly."""
    flows = np.zeros((len(problem.sources), problem.link_count))
    _even_split(problem.incoming, problem.outgoing, problem.outgoing_links, problem.src, problem.dst,
                problem.demand, problem.sources, flows)  # fmt: skip
    return flows


def _potentials(problem: Commodities, prices: Floats) -> Floats:
    hops = np.empty((len(problem.sources), problem.node_count))
    _hops(problem.outgoing, problem.outgoing_links, problem.dst, problem.sources, hops)
    return hops * float(prices.max())


def _advance(problem: Commodities, state: _State, weight: float) -> None:
    capacity = problem.class_capacity / problem.scale
    degree = np.diff(problem.incoming) + np.diff(problem.outgoing)
    primal_step = 1.0 / (_COLUMN_NORM * weight)
    price_step = weight / float(problem.weights.sum())
    for _ in range(ITERATIONS_PER_CHECK):
        loads = np.zeros(len(capacity))
        _iterate(
            problem.src, problem.dst, problem.incoming, problem.sources, problem.weights, problem.link_class,
            problem.demand, weight / np.maximum(1, degree), primal_step, state.flows, state.potentials, state.prices,
            loads, state.flow_sum, state.potential_sum,
        )  # fmt: skip
        moved = state.prices + price_step * loads / problem.class_size
        state.prices = _project(moved, capacity, problem.class_size)
        state.price_sum += state.prices
        state.count += 1


def _project(prices: Floats, capacity: Floats, size: NDArray[np.int64]) -> Floats:
    """Return the nearest prices >= 0 with sum of size * capacity * price = 1, each link counted once.

    They are max(0, price - shift * capacity); the shift follows from the links that stay positive, found by sorting.
    """
    order = np.argsort(-prices / capacity, kind="stable")
    earned = np.cumsum((size * capacity * prices)[order]) - 1.0
    shifts = earned / np.cumsum((size * capacity * capacity)[order])
    positive = np.flatnonzero(prices[order] > shifts * capacity[order])
    shift = shifts[positive[-1]] if len(positive) else shifts[0]
    nearest: Floats = np.maximum(0.0, prices - shift * capacity)
    return nearest


@compiled
def _iterate(
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    incoming: NDArray[np.int64],
    sources: NDArray[np.int32],
    weights: NDArray[np.int64],
    link_class: NDArray[np.int32],
    demand: NDArray[np.int64],
    potential_steps: Floats,
    primal_step: float,
    flows: Floats,
    potentials: Floats,
    prices: Floats,
    loads: Floats,
    flow_sum: Floats,
    potential_sum: Floats,
) -> None:
    """Step down in the flows, then up in the potentials by the extrapolated flows, whose loads go to `loads`."""
    node_count = len(demand)
    net = np.empty(node_count)
    for index in range(len(sources)):
        flow, total, potential = flows[index], flow_sum[index], potentials[index]
        source, weight = sources[index], weights[index]
        net[:] = 0.0
        for head in range(node_count):
            if head == source:
                continue
            arriving = 0.0
            for link in range(incoming[head], incoming[head + 1]):
                tail, group = src[link], link_class[link]
                old = flow[link]
                new = max(0.0, old - primal_step * (prices[group] + potential[tail] - potential[head]))
                flow[link] = new
                total[link] += new
                ahead = 2.0 * new - old
                arriving += ahead
                net[tail] -= ahead
                loads[group] += weight * ahead
            net[head] += arriving
        for node in range(node_count):
            if node != source:
                potential[node] = max(0.0, potential[node] + potential_steps[node] * (demand[node] - net[node]))
            potential_sum[index, node] += potential[node]


@compiled
def _hops(
    outgoing: NDArray[np.int64],
    outgoing_links: NDArray[np.int32],
    dst: NDArray[np.int32],
    sources: NDArray[np.int32],
    hops: Floats,
) -> None:
    """Fill `hops[k]` with the number of links from source k to each node."""
    queue = np.empty(hops.shape[1], dtype=np.int32)
    for index in range(len(sources)):
        hops[index] = -1.0
        hops[index, sources[index]] = 0.0
        queue[0] = sources[index]
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            for place in range(outgoing[node], outgoing[node + 1]):
                neighbour = dst[outgoing_links[place]]
                if hops[index, neighbour] < 0:
                    hops[index, neighbour] = hops[index, node] + 1
                    queue[tail] = neighbour
                    tail += 1


@compiled
def _even_split(
    incoming: NDArray[np.int64],
    outgoing: NDArray[np.int64],
    outgoing_links: NDArray[np.int32],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    demand: NDArray[np.int64],
    sources: NDArray[np.int32],
    flows: Floats,
) -> None:
    """Fill `flows[k]`: every node takes what it needs in equal parts from all links one hop nearer to source k."""
    node_count = len(demand)
    hops = np.empty((1, node_count))
    need = np.empty(node_count)
    for index in range(len(sources)):
        _hops(outgoing, outgoing_links, dst, sources[index : index + 1], hops)
        order = np.argsort(hops[0])
        need[:] = demand
        for place in range(node_count - 1, 0, -1):
            node = order[place]
            nearer = 0
            for link in range(incoming[node], incoming[node + 1]):
                nearer += hops[0, src[link]] < hops[0, node]
            for link in range(incoming[node], incoming[node + 1]):
                if hops[0, src[link]] < hops[0, node]:
                    flows[index, link] = need[node] / nearer
                    need[src[link]] += need[node] / nearer
