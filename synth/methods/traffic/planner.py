"""Plans of given traffic: flows in whole chunks, a certified bound on the time, and new plans when the traffic changes.

The first plan solves the linear program or, on large networks, descends in link prices. A later one sends the new
traffic along the flows that there were, in their proportions, and descends in prices where that is not close enough to
the bound. Bounds follow from prices: what s sends to t pays at least the price distance for each unit, and in time T
links earn at most T * price * bandwidth, so T >= sum of amount * distance / sum of price * bandwidth, for any prices.
Equal prices on the links into a set of nodes make the bound of that cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.methods.alltoall.alltoall import approximate, choose_method
from chorale.synth.methods.alltoall.balance import SharedFlows, balanced, best_of
from chorale.synth.methods.alltoall.commodities import Commodities, commodities_of
from chorale.synth.methods.alltoall.rate import BoundsListener, RateMethod, distances_by, integer_prices
from chorale.synth.methods.alltoall.reduction import reduced_problem
from chorale.synth.methods.alltoall.routing import Flows, IntegralFlows, Router
from chorale.synth.methods.alltoall.schedule import flow_paths_of, require_schedule_size, shortened
from chorale.synth.methods.traffic.matrix import (
    Amounts,
    ChunkCounts,
    TrafficMatrix,
    chunk_counts,
    parts_of_chunks,
    require_ranks,
)
from chorale.synth.methods.traffic.rails import RAILS, ShortestPaths, leg_demands, rail_flows, relays_of
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology

Prices = NDArray[np.int64]


class PriceBound(NamedTuple):
    """time: no plan is faster, in amount / bandwidth;  prices: int64 per link of the problem, which prove it."""

    time: Fraction
    prices: Prices


def best_bound(problem: Commodities, sent: Amounts, candidates: Iterable[Prices]) -> PriceBound:
    """Return the largest of the bounds by `candidates`, prices of links. O(candidates * sources * links log links)."""
    bounds = [PriceBound(bound_of(problem, sent, prices), prices) for prices in candidates]
    return max(bounds, key=lambda bound: bound.time)


def bound_of(problem: Commodities, sent: Amounts, prices: Prices) -> Fraction:
    """Return the time that `prices` prove; 0 for prices that prove none."""
    distances = distances_by(problem, prices)[:, : len(sent)].astype(np.int64)  # floats that are whole, below 2^53
    paid = sum(int(row @ amounts) for row, amounts in zip(distances.astype(object), sent.astype(object), strict=True))
    earned = sum(int(price) * int(width) for price, width in zip(prices, widths_of(problem), strict=True) if price)
    return Fraction(paid * problem.scale, earned) if paid else Fraction(0)


def widths_of(problem: Commodities) -> NDArray[np.int64]:
    """Return the bandwidth of every link, in units of 1 / `scale`."""
    return problem.class_capacity[problem.link_class]


def cut_bounds(topology: Topology, problem: Commodities, sent: Amounts) -> PriceBound:
    """Return the best bound by cuts around a rank or around the ranks of a box, into it or out of it.

    O(boxes * links + ranks^2).
    """
    best = PriceBound(Fraction(0), np.zeros(problem.link_count, dtype=np.int64))
    chosen: tuple[NDArray[np.bool_], bool] | None = None
    widths = widths_of(problem).astype(np.float64)
    for inside in _regions(topology, problem):
        ranks = inside[: len(sent)]
        for into in (True, False):
            crossing = sent[~ranks][:, ranks] if into else sent[ranks][:, ~ranks]
            width = int(widths[_crossing(problem, inside, into)].sum())
            time = Fraction(int(crossing.sum()) * problem.scale, width) if width else Fraction(0)
            if time > best.time:
                best, chosen = PriceBound(time, best.prices), (inside, into)
    if chosen is None:
        return best
    return PriceBound(best.time, _crossing(problem, *chosen).astype(np.int64))


def _crossing(problem: Commodities, inside: NDArray[np.bool_], into: bool) -> NDArray[np.bool_]:
    first, last = inside[problem.src], inside[problem.dst]
    return ~first & last if into else first & ~last


def _regions(topology: Topology, problem: Commodities) -> Iterator[NDArray[np.bool_]]:
    """Yield bool[nodes]: each rank alone, then the ranks of each box with the switches that only they are linked to."""
    ranks, nodes = topology.compute_count, problem.node_count
    for rank in range(ranks):
        yield np.arange(nodes) == rank
    box = np.full(nodes, -1, dtype=np.int64)
    box[:ranks] = boxes_of(topology)
    count = int(box.max()) + 1
    if not 1 < count < ranks:
        return
    joined = np.zeros((nodes, count + 1), dtype=np.bool_)
    joined[problem.src, box[problem.dst]] = joined[problem.dst, box[problem.src]] = True
    for number in range(count):
        inside = box == number
        alone = joined[:, number] & (joined.sum(axis=1) == 1)
        inside[ranks:] = alone[ranks:]
        yield inside


DEFAULT_GAP = Fraction(1, 200)
_LARGEST_LOAD = 2**58
_FINE_UNITS = 720720
_PARTS = (2, 3, 4, 6, 12, 24)
_FINE_GAP = Fraction(1, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class TrafficPlan:
    """Flows of `matrix` on `topology`.

    problem: all sources and links, with the demand in chunks;  chunks: how many there are for each pair
    flows:   int64[ranks, links of the problem], in chunks: from each source to all of its targets
    time:    the busiest link needs it, in units of amount / bandwidth;  bound: no plan needs less
    fluid:   the time of flows that need not be whole chunks, as far as it is known: at most `time`
    method:  how it was solved: "lp", "prices" or "warm" (along the flows of an earlier plan); "sender rail" or
             "receiver rail" if those flows are faster in whole chunks
    """

    topology: Topology
    matrix: TrafficMatrix
    problem: Commodities
    chunks: ChunkCounts
    flows: IntegralFlows
    time: Fraction
    fluid: Fraction
    bound: PriceBound
    method: str

    @property
    def gap(self) -> Fraction:
        """By how much the flows are behind the bound: 0 when they are optimal."""
        return self.time / self.bound.time - 1


def plan_traffic(
    topology: Topology,
    matrix: TrafficMatrix,
    *,
    chunks: int | None = None,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> TrafficPlan:
    """Return flows for `matrix` over any routes, all at once, with a certified bound on their time.

    chunks: of the largest pair (`chunk_counts`). gap and method: as of `alltoall_rate`, for flows that need not be
    whole. Raises InvalidInput as `require_schedule_size` does, and for a matrix of another number of ranks.
    """
    require_ranks(matrix, topology.compute_count, topology.spec)
    require_schedule_size(topology, None)
    counts = chunk_counts(matrix, chunks)
    problem = problem_of(topology, counts)
    reduction = reduced_problem(topology, problem)
    chosen = choose_method(reduction, method)
    solution = approximate(reduction, chosen, gap, report)
    prices = integer_prices(solution.prices)[reduction.merged]
    bound = _bound(topology, problem, matrix, [prices])
    start = SharedFlows(reduction, solution.class_flow)
    starts = [SharedFlows(reduction, shortened(reduction, solution)), start] if chosen == "lp" else [start]
    rate = counts.chunk / bound.time
    chosen_flows = best_of(starts, 1, rate)[1]
    fluid = counts.chunk / balanced(start, _fine_units(problem), rate)[0]
    shares = np.concatenate([part for _, part in chosen_flows.blocks()])
    flows = Router(problem, 1).route(shares, slice(None))
    plan = _plan(topology, matrix, problem, counts, flows, bound, chosen, fluid)
    return _no_slower_than_rails(plan if chunks is not None else _in_finer_chunks(plan, shares, _FINE_GAP))


def replan(plan: TrafficPlan, matrix: TrafficMatrix, gap: Fraction = DEFAULT_GAP) -> TrafficPlan:
    """Return a plan of `matrix` along the flows of `plan`, or a new one by prices if these are not within `gap`.

    If that is not enough either, the linear program is solved. Raises InvalidInput for another number of ranks.
    """
    topology = plan.topology
    require_ranks(matrix, topology.compute_count, topology.spec)
    counts = chunk_counts(matrix)
    problem = replace(plan.problem, demand=_demand(topology, counts))
    bound = _bound(topology, problem, matrix, [plan.bound.prices])
    shares = plan.flows.astype(np.float64)
    flows = Router(problem, 1).route(shares, slice(None))
    best = _in_finer_chunks(_plan(topology, matrix, problem, counts, flows, bound, "warm"), shares, gap)
    for method in ("prices", "lp"):
        if best.gap <= gap:
            break
        tried = plan_traffic(topology, matrix, gap=gap / 2, method=method)
        best = replace(
            min(best, tried, key=lambda each: each.time), bound=max(best.bound, tried.bound, key=lambda each: each.time)
        )
    return _no_slower_than_rails(best)


def _no_slower_than_rails(plan: TrafficPlan) -> TrafficPlan:
    """Return `plan`, or the flows over the sender's or the receiver's rail if whole chunks make those faster."""
    paths = ShortestPaths(plan.problem)
    for rail in RAILS:
        relays = relays_of(plan.topology, rail)
        first, second = leg_demands(plan.problem.demand, relays)
        time = longest_time(plan.problem, paths.loads(first) + paths.loads(second)) * plan.chunks.chunk
        if time < plan.time:
            flows = rail_flows(paths, relays)
            plan = replace(plan, flows=flows, time=time, fluid=min(plan.fluid, time), method=f"{rail} rail")
    return plan


def _in_finer_chunks(plan: TrafficPlan, shares: Flows, gap: Fraction) -> TrafficPlan:
    """Return `plan`, or flows like `shares` in parts of its chunks, as few as bring it within `gap` or nearest."""
    best, floor = plan, replace(plan, time=plan.fluid)
    for parts in _PARTS:
        if best.gap <= max(gap, floor.gap):
            break
        counts = parts_of_chunks(plan.chunks, parts)
        if counts is None:
            break
        problem = replace(plan.problem, demand=_demand(plan.topology, counts))
        flows = Router(problem, 1).route(shares, slice(None))
        tried = _plan(plan.topology, plan.matrix, problem, counts, flows, plan.bound, plan.method, plan.fluid)
        best = tried if tried.time < best.time else best
    return best


def problem_of(topology: Topology, counts: ChunkCounts) -> Commodities:
    """Return the flow problem without symmetries, whose demand is in chunks."""
    return replace(commodities_of(topology, symmetric=False), demand=_demand(topology, counts))


def _demand(topology: Topology, counts: ChunkCounts) -> NDArray[np.int64]:
    demand = np.zeros((topology.compute_count, topology.node_count), dtype=np.int64)
    demand[:, : topology.compute_count] = counts.counts
    np.fill_diagonal(demand, 0)
    return demand


def _bound(topology: Topology, problem: Commodities, matrix: TrafficMatrix, candidates: Sequence[Prices]) -> PriceBound:
    """Return the best bound by cuts, by equal prices and by `candidates`."""
    sent = matrix.sent
    equal = np.ones(problem.link_count, dtype=np.int64)
    priced = best_bound(problem, sent, [*candidates, equal])
    return max(cut_bounds(topology, problem, sent), priced, key=lambda bound: bound.time)


def _plan(
    topology: Topology,
    matrix: TrafficMatrix,
    problem: Commodities,
    counts: ChunkCounts,
    flows: IntegralFlows,
    bound: PriceBound,
    method: str,
    fluid: Fraction | None = None,
) -> TrafficPlan:
    time = longest_time(problem, flows.sum(axis=0)) * counts.chunk
    least = time if fluid is None else min(fluid, time)
    return TrafficPlan(topology, matrix, problem, counts, flows, time, least, bound, method)


def longest_time(problem: Commodities, loads: NDArray[np.int64]) -> Fraction:
    """Return the largest load over bandwidth, of loads per link of the problem."""
    widths = widths_of(problem)
    largest: dict[int, int] = {}
    for width in np.unique(widths).tolist():
        largest[width] = int(loads[widths == width].max())
    return max(Fraction(load * problem.scale, width) for width, load in largest.items())


def _fine_units(problem: Commodities) -> int:
    """Return into how many parts to cut chunks so that rounding loses little and loads stay within 64 bits."""
    most = int(problem.demand.sum()) * problem.node_count
    return max(1, min(_FINE_UNITS, _LARGEST_LOAD // most))


def traffic_schedule(plan: TrafficPlan) -> Schedule:
    """Return the alltoallv of `plan`: shard source * N + target has as many chunks as the plan gives that pair.

    `steps` is the number of links of the longest path. The certificate holds the prices that prove the bound on the
    time; `chorale.synth.methods.traffic.certificate` checks it. Not verified. O(rows * longest path).
    """
    topology, ranks = plan.topology, plan.topology.compute_count
    paths = flow_paths_of(plan.problem, slice(0, ranks), plan.flows)
    routes = Routes(paths.offsets.astype(np.int64), plan.problem.link_ids[paths.links])
    counts = plan.chunks.counts
    steps, most = int(np.diff(paths.offsets).max()), int(counts.max())
    at_once = np.zeros(len(paths.source), dtype=np.uint8)
    bounds = ColumnBounds(steps, len(routes), ranks * ranks, most)
    shard = paths.source * ranks + paths.target
    transfers = bounds.pack((at_once, np.arange(len(shard)), shard, paths.lo, paths.lo + paths.amount, at_once))
    collective = uneven_collective(CollectiveName.ALLTOALLV, counts.ravel().tolist())
    parameters: dict[str, Parameter] = {"chunks": most, "solver": plan.method, "traffic": plan.matrix.name}
    return Schedule(
        topology, collective, "pipelined", steps, most, transfers, routes, "alltoall", parameters, certificate_of(plan)
    )


def certificate_of(plan: TrafficPlan) -> Mapping[str, Any]:
    """Return the claim that no plan of the matrix needs less time than the bound of `plan`."""
    prices = np.zeros(len(plan.topology.links), dtype=np.int64)
    prices[plan.problem.link_ids] = plan.bound.prices
    return {
        "kind": "traffic-prices",
        "time_lower": str(plan.bound.time),
        "prices": prices.tolist(),
        "amounts": plan.matrix.sent.tolist(),
    }
