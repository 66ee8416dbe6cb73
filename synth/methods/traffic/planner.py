"""Plans of given traffic: flows in whole chunks, a certified bound on the time, and new plans when the traffic changes.

The first plan solves the linear program or, on large networks, descends in link prices. A later one sends the new
traffic along the flows that there were, in their proportions, and descends in prices where that is not close enough to
the bound. Bounds follow from prices: what s sends to t pays at least the price distance for each unit, and in time T
links earn at most T * price * bandwidth, so T >= sum of amount * distance / sum of price * bandwidth, for any prices.
Equal prices on the links into a set of nodes make the bound of that cut.

Also how long given traffic takes without a plan for it: as libraries send it, in rounds, or as if sizes were equal.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP as ALLTOALL_GAP
from chorale.synth.methods.alltoall.alltoall import alltoall_rate, approximate, choose_method
from chorale.synth.methods.alltoall.balance import Flows, IntegralFlows, Router, SharedFlows, balanced, best_of
from chorale.synth.methods.alltoall.linear_program import Commodities, commodities_of, reduced_problem
from chorale.synth.methods.alltoall.rate import BoundsListener, RateMethod, distances_by, integer_prices
from chorale.synth.methods.alltoall.schedule import FlowPaths, flow_paths_of, require_schedule_size, shortened
from chorale.synth.methods.traffic.fabric import (
    RAILS,
    RailFabric,
    ShortestPaths,
    leg_demands,
    rail_fabric,
    rail_flows,
    relays_of,
    usual_relays,
)
from chorale.synth.methods.traffic.matrix import (
    Amounts,
    ChunkCounts,
    TrafficMatrix,
    chunk_counts,
    exact_counts,
    parts_of_chunks,
    require_ranks,
)
from chorale.synth.methods.traffic.plan import PriceBound, Prices, TrafficPlan
from chorale.synth.methods.traffic.two_level import RailPlan, cut_bound, plan_rails, rails_along
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology


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
_MOST_CELLS = 2**17
"""Pairs of a rank and a link beyond which flows would take minutes: then the closed form has to do."""
TPlan = TypeVar("TPlan", bound=TrafficPlan)


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan(TrafficPlan):
    """problem: all sources and links, with the demand in chunks.

    flows: int64[ranks, links of the problem], in chunks: from each source to all of its targets
    """

    problem: Commodities
    flows: IntegralFlows

    def paths(self) -> FlowPaths:
        paths = flow_paths_of(self.problem, slice(0, len(self.flows)), self.flows)
        return replace(paths, links=self.problem.link_ids[paths.links])


def plan_traffic(
    topology: Topology,
    matrix: TrafficMatrix,
    *,
    chunks: int | None = None,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> TrafficPlan:
    """Return a plan of `matrix` over any routes, all at once, with a certified bound on its time.

    Boxes with rails have a closed form; where that is not within `gap`, and on other networks, flows are planned.
    chunks: of the largest pair (`chunk_counts`). gap and method: as of `alltoall_rate`, for flows that need not be
    whole. Raises InvalidInput as `require_schedule_size` does, and for a matrix of another number of ranks.
    """
    require_ranks(matrix, topology.compute_count, topology.spec)
    fabric = rail_fabric(topology) if method is None else None
    rails = None if fabric is None else _over_rails(fabric, matrix, chunks)
    if rails is not None and (rails.gap <= gap or len(matrix.amounts) * len(topology.links) > _MOST_CELLS):
        return rails
    flows = _plan_flows(topology, matrix, chunks, gap, method, report)
    return flows if rails is None else _better(rails, flows)


def _over_rails(fabric: RailFabric, matrix: TrafficMatrix, chunks: int | None) -> RailPlan:
    if chunks is not None:
        return plan_rails(fabric, matrix, chunk_counts(matrix, chunks))
    counts = exact_counts(matrix)
    plan = plan_rails(fabric, matrix, counts)
    finer = parts_of_chunks(counts, _PARTS[-1]) if plan.gap > _FINE_GAP else None
    return plan if finer is None else _better(plan_rails(fabric, matrix, finer), plan)


def _better(one: TPlan, other: TPlan) -> TPlan:
    """Return the faster plan, with the better bound of the two."""
    bound = max(one.bound, other.bound, key=lambda each: each.time)
    return replace(other if other.time < one.time else one, bound=bound)


def _plan_flows(
    topology: Topology,
    matrix: TrafficMatrix,
    chunks: int | None,
    gap: Fraction,
    method: RateMethod | None,
    report: BoundsListener | None,
) -> TrafficPlan:
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
    finest, fine_flows = balanced(start, _fine_units(problem), rate)
    shares, fine_shares = (np.concatenate([part for _, part in each.blocks()]) for each in (chosen_flows, fine_flows))
    flows = Router(problem, 1).route(shares, slice(None))
    plan = _plan(topology, matrix, problem, counts, flows, bound, chosen, counts.chunk / finest)
    return _no_slower_than_usual(plan if chunks is not None else _in_finer_chunks(plan, fine_shares, _FINE_GAP))


def replan(plan: TrafficPlan, matrix: TrafficMatrix, gap: Fraction = DEFAULT_GAP) -> TrafficPlan:
    """Return a plan of `matrix` along the flows of `plan`, or a new one by prices if these are not within `gap`.

    If that is not enough either, the linear program is solved. Boxes with rails are planned in closed form again.
    Raises InvalidInput for another number of ranks.
    """
    topology = plan.topology
    require_ranks(matrix, topology.compute_count, topology.spec)
    fabric = rail_fabric(topology)
    rails = None if fabric is None else _over_rails(fabric, matrix, None)
    if rails is not None and rails.gap <= gap:
        return rails
    if not isinstance(plan, FlowPlan):
        return plan_traffic(topology, matrix, gap=gap)
    best: TrafficPlan = _flows_along(plan, matrix, gap)
    for method in ("prices", "lp"):
        if best.gap <= gap:
            break
        best = _better(best, _plan_flows(topology, matrix, None, gap / 2, method, None))
    best = _no_slower_than_usual(best) if isinstance(best, FlowPlan) else best
    return best if rails is None else _better(rails, best)


def _flows_along(plan: FlowPlan, matrix: TrafficMatrix, gap: Fraction) -> FlowPlan:
    counts = chunk_counts(matrix)
    problem = replace(plan.problem, demand=_demand(plan.topology, counts))
    bound = _bound(plan.topology, problem, matrix, [plan.bound.prices[problem.link_ids]])
    shares = plan.flows.astype(np.float64)
    flows = Router(problem, 1).route(shares, slice(None))
    warm = _plan(plan.topology, matrix, problem, counts, flows, bound, "warm")
    return _in_finer_chunks(warm, shares, gap)


def along(plan: TrafficPlan, matrix: TrafficMatrix) -> TrafficPlan:
    """Return a plan that sends `matrix` in the proportions of `plan`, with the bound of `matrix`."""
    if isinstance(plan, RailPlan):
        return rails_along(plan, matrix)
    assert isinstance(plan, FlowPlan)
    return _flows_along(plan, matrix, DEFAULT_GAP)


def plan_amounts(topology: Topology, matrix: TrafficMatrix) -> TrafficPlan:
    """Return a plan in the units of `matrix`: in closed form on boxes with rails, else as `plan_traffic` does."""
    require_ranks(matrix, topology.compute_count, topology.spec)
    fabric = rail_fabric(topology)
    if fabric is None:
        return plan_traffic(topology, matrix)
    return plan_rails(fabric, matrix, ChunkCounts(matrix.amounts, Fraction(1)))


def bound_on(topology: Topology, matrix: TrafficMatrix) -> Fraction:
    """Return a bound on the time of `matrix` that takes no planning: by cuts around ranks and boxes."""
    fabric = rail_fabric(topology)
    if fabric is not None:
        return cut_bound(fabric, matrix).time
    return _bound(topology, problem_of(topology, chunk_counts(matrix)), matrix, []).time


def _no_slower_than_usual(plan: FlowPlan) -> FlowPlan:
    """Return `plan`, or what libraries do if whole chunks make that faster."""
    paths = ShortestPaths(plan.problem)
    for name, relays in usual_relays(plan.topology).items():
        first, second = leg_demands(plan.problem.demand, relays)
        time = longest_time(plan.problem, paths.loads(first) + paths.loads(second)) * plan.chunks.chunk
        if time < plan.time:
            flows = rail_flows(paths, relays)
            plan = replace(plan, flows=flows, time=time, fluid=min(plan.fluid, time), method=name)
    return plan


def _in_finer_chunks(plan: FlowPlan, shares: Flows, gap: Fraction) -> FlowPlan:
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
    best = max(cut_bounds(topology, problem, sent), priced, key=lambda bound: bound.time)
    prices = np.zeros(len(topology.links), dtype=np.int64)
    prices[problem.link_ids] = best.prices
    return best._replace(prices=prices)


def _plan(
    topology: Topology,
    matrix: TrafficMatrix,
    problem: Commodities,
    counts: ChunkCounts,
    flows: IntegralFlows,
    bound: PriceBound,
    method: str,
    fluid: Fraction | None = None,
) -> FlowPlan:
    time = longest_time(problem, flows.sum(axis=0)) * counts.chunk
    least = time if fluid is None else min(fluid, time)
    return FlowPlan(topology, matrix, counts, time, least, bound, method, problem, flows)


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


BASELINES: Mapping[str, str] = {
    "direct": "every pair over one shortest path, all at once",
    "direct_ecmp": "every pair over all shortest paths evenly, all at once",
    "sender_rail": "over the NIC of the sender, then inside the receiver's box, all at once",
    "receiver_rail": "over the NIC of the receiver's index, as NCCL with PXN, all at once",
    "two_level": "one phase inside boxes, one between ranks of equal index, in the better order",
    "pairwise": "one shortest path, N - 1 rounds of one partner each, one after the other",
    "uniform_paths": "over the paths of the all-to-all of equal sizes",
    "uniform_padded": "an all-to-all of equal sizes, all pairs padded to the largest",
}
"""What the times are of. What libraries do on boxes with rails is the same as `direct` in a single box."""
LIBRARY = ("direct", "sender_rail", "receiver_rail", "two_level")
"""What libraries do; the fastest is the baseline."""


def baseline_times(plan: TrafficPlan) -> dict[str, Fraction]:
    """Return the times of `BASELINES` for the traffic of `plan`, in units of amount / bandwidth.

    All send the chunks of the plan. Exact but for the rounding of even shares. Bandwidth alone: no latencies, and the
    busiest link is never idle, so that real times are not shorter.
    """
    topology, problem, chunk = plan.topology, problem_of(plan.topology, plan.chunks), plan.chunks.chunk
    paths = ShortestPaths(problem)
    uniform = _through_uniform_flows(topology, problem)
    times = {
        "direct": longest_time(problem, paths.loads(problem.demand)),
        "direct_ecmp": _largest(problem, _even_loads(problem, paths.hops)),
        **_rails(topology, paths),
        "pairwise": _rounds(problem, paths.parents),
        "uniform_paths": longest_time(problem, uniform),
        "uniform_padded": int(problem.demand.max()) / alltoall_rate(topology).lower,
    }
    return {name: time * chunk for name, time in times.items()}


def _rails(topology: Topology, paths: ShortestPaths) -> dict[str, Fraction]:
    """Return the times over the sender's rail, over the receiver's rail, and in two phases."""
    times, levels = {}, []
    for rail in RAILS:
        legs = leg_demands(paths.problem.demand, relays_of(topology, rail))
        loads = [paths.loads(leg) for leg in legs]
        times[f"{rail}_rail"] = longest_time(paths.problem, loads[0] + loads[1])
        levels.append(sum((longest_time(paths.problem, load) for load in loads), Fraction(0)))
    return {**times, "two_level": min(levels)}


def _largest(problem: Commodities, loads: NDArray[np.float64]) -> Fraction:
    return Fraction(float((loads * problem.scale / widths_of(problem)).max()))


def _even_loads(problem: Commodities, hops: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the load of every link if nodes take what they need in equal parts over all links one hop nearer."""
    nearer = hops[:, problem.src] + 1 == hops[:, problem.dst]
    ways = np.add.reduceat(nearer, problem.incoming[:-1], axis=1)
    need, loads = problem.demand.astype(np.float64), np.zeros(problem.link_count)
    for distance in range(int(hops.max()), 0, -1):
        source, link = np.nonzero(nearer & (hops[:, problem.dst] == distance))
        share = need[source, problem.dst[link]] / ways[source, problem.dst[link]]
        np.add.at(loads, link, share)
        np.add.at(need, (source, problem.src[link]), share)
    return loads


def _rounds(problem: Commodities, parents: NDArray[np.int64]) -> Fraction:
    """Return the time of rounds r = 1 to N - 1, in which s sends to s + r; each ends with its busiest link."""
    ranks = len(problem.demand)
    source, total = np.arange(ranks), Fraction(0)
    for distance in range(1, ranks):
        target = (source + distance) % ranks
        amount, node = problem.demand[source, target], target.copy()
        loads = np.zeros(problem.link_count, dtype=np.int64)
        while (left := np.flatnonzero(node != source)).size:
            link = parents[source[left], node[left]]
            np.add.at(loads, link, amount[left])
            node[left] = problem.src[link]
        total += longest_time(problem, loads)
    return total


def _through_uniform_flows(topology: Topology, problem: Commodities) -> NDArray[np.int64]:
    """Return the load of every link where pairs keep to the flows of the uniform all-to-all, in their proportions."""
    reduction = reduced_problem(topology, commodities_of(topology, symmetric=False))
    solution = approximate(reduction, choose_method(reduction, None), ALLTOALL_GAP, None)
    flows = np.concatenate([part for _, part in SharedFlows(reduction, solution.class_flow).blocks()])
    loads: NDArray[np.int64] = Router(problem, 1).route(flows, slice(None)).sum(axis=0)
    return loads
