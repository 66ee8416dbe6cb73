"""Flows in whole units: integral flows that deliver every unit, made from approximate ones, prove a lower bound.

A solver is exact up to a fraction of the widest link, which may be many times what a narrow link carries, and a whole
chunk may be more than a narrow link should get. So the flows on links that are too busy are reduced, round by round;
the upper bound on the rate shows what a link may take. Also chooses the number of chunks per shard of an all-to-all
schedule, and the flows that are rounded to them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.identity import common_denominator
from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.linear_program import Commodities, Reduction

Flows = NDArray[np.float64]
IntegralFlows = NDArray[np.int64]


class Router:
    """Turns approximate flows into whole ones, block by block of sources, and adds up exact loads.

    Rounding prefers links whose time grows the least beyond the approximate flows so far: those that got less than
    these, or have a large capacity.

    units: number of units that every source sends to every rank
    loads: int64[C], units over all links of a class and all sources of all classes
    """

    def __init__(self, problem: Commodities, units: int) -> None:
        self.problem = problem
        self.units = units
        self.loads = np.zeros(len(problem.class_size), dtype=np.int64)
        self._debt = np.zeros(problem.link_count, dtype=np.float64)
        self._capacity = problem.class_capacity[problem.link_class].astype(np.float64)

    def route(self, flows: Flows, block: slice) -> IntegralFlows:
        """Return int64[block, links]: acyclic flows that deliver `units` to every rank, close to `flows`.

        O(links * log links) per source.
        """
        problem = self.problem
        sources = problem.sources[block]
        whole = np.zeros((len(sources), problem.link_count), dtype=np.int64)
        native.route(
            problem.incoming, problem.outgoing, problem.outgoing_links, problem.src, problem.dst,
            problem.demand_of(block), sources, flows, self.units, self._capacity, self._debt, whole,
        )  # fmt: skip
        totals = whole.T @ problem.weights[block]
        np.add.at(self.loads, problem.link_class, totals)
        return whole

    def rate(self) -> Fraction:
        """Return the exact rate at which the flows routed so far fit on the links; all blocks must have been routed."""
        problem = self.problem
        columns = zip(self.loads, problem.class_size, problem.class_capacity, strict=True)
        longest = max(Fraction(int(load), int(size) * int(capacity)) for load, size, capacity in columns)
        return Fraction(self.units, problem.scale) / longest


def fine_units(node_count: int, denominator: int = 1) -> int:
    """Return a number of units at which rounding loses little: a multiple of `denominator`, by default of 1 to 16.

    Loads stay within 64 bits: below node_count ** 3 * units, for up to 2^14 nodes.
    """
    most = 720720 if node_count <= 2**13 else 5040
    return most if most % denominator == 0 else denominator * max(1, most // denominator)


ENOUGH = Fraction(101, 100)
"""Flows within 1 % of the upper bound are not changed."""
ROUNDS = 16
_MANY_CELLS = 2**18
_FEW_ROUNDS = 2
_LEAST = 1e-18


@dataclass(frozen=True, slots=True, eq=False)
class SharedFlows:
    """Flows by class, and a factor for those on each link of the full problem.

    Only the proportions of the flows into a node matter (`Router`).
    """

    reduction: Reduction
    class_flow: NDArray[np.float64]
    factor: NDArray[np.float64] | None = None

    def blocks(self) -> Iterator[tuple[slice, Flows]]:
        """Yield (block of sources, their flows float64[block, links])."""
        for block, flows in self.reduction.lifted(self.class_flow):
            yield block, flows if self.factor is None else flows * self.factor

    def routed(self, units: int) -> Router:
        """Return the router after all blocks, every source sending `units` to every rank."""
        router = Router(self.reduction.full, units)
        for block, flows in self.blocks():
            router.route(flows, block)
        return router


def balanced(start: SharedFlows, units: int, upper: Fraction) -> tuple[Fraction, SharedFlows]:
    """Return the best rate reached in whole `units`, and its flows; `upper` bounds the rate.

    Nothing changes if `start` is within 1 % of `upper`. O(rounds * sources * links * log links).
    """
    router = start.routed(units)
    best, chosen = router.rate(), start
    factor = np.ones(start.reduction.full.link_count)
    cells = len(start.reduction.full.sources) * start.reduction.full.link_count
    for _ in range(ROUNDS if cells <= _MANY_CELLS else _FEW_ROUNDS):
        if best * ENOUGH >= upper:
            break
        factor = np.maximum(factor / _excess(router, upper), _LEAST)
        tried = SharedFlows(start.reduction, start.class_flow, factor)
        router = tried.routed(units)
        if router.rate() > best:
            best, chosen = router.rate(), tried
    return best, chosen


def _excess(router: Router, upper: Fraction) -> NDArray[np.float64]:
    """Return how many times longer each link takes than the upper bound allows, at least 1, times the same before it.

    The second factor is the mean over the links into the tail: a node that gets data late should forward less of it.
    """
    problem = router.problem
    least = float(Fraction(router.units, problem.scale) / upper)
    load = router.loads / problem.class_size
    late = np.maximum(1.0, load / problem.class_capacity.astype(np.float64) / least)[problem.link_class]
    weight = load[problem.link_class]
    arrived = np.bincount(problem.dst, weights=weight, minlength=problem.node_count)
    lateness = np.bincount(problem.dst, weights=weight * late, minlength=problem.node_count)
    before = np.maximum(1.0, np.divide(lateness, arrived, out=np.ones(problem.node_count), where=arrived > 0))
    excess: NDArray[np.float64] = late * before[problem.src]
    return excess


MAX_DENOMINATOR = 4096
FEW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 60, 64)
MORE_COUNTS = (96, 128, 192, 256, 384, 512, 720, 1024, 2048, 4096)
_NEARLY_BEST = Fraction(201, 200)


def chosen_flows(starts: Sequence[SharedFlows], upper: Fraction) -> tuple[int, SharedFlows]:
    """Return the smallest number of chunks whose rate is nearly the best of those tried, and its flows.

    Numbers up to 64 are tried with the first of `starts`, and the number that makes all of its flows whole. If none of
    them is within 1 % of `upper`, which bounds the rate, all flows are balanced for these and for larger numbers.
    """
    first = starts[0]
    exact = common_denominator(first.class_flow, MAX_DENOMINATOR)
    counts = sorted({*FEW_COUNTS, exact})
    rates = {count: (first.routed(count).rate(), first) for count in counts}
    if max(rate for rate, _ in rates.values()) * ENOUGH < upper:
        more = sorted({*counts, *MORE_COUNTS, *_denominators_of_capacities(first)})
        rates = {count: best_of(starts, count, upper) for count in more}
    best = max(rate for rate, _ in rates.values())
    count = next(count for count, (rate, _) in rates.items() if rate * _NEARLY_BEST >= best)
    return count, rates[count][1]


def best_of(starts: Sequence[SharedFlows], count: int, upper: Fraction) -> tuple[Fraction, SharedFlows]:
    """Return the best rate of `starts`, balanced, in `count` chunks per shard, and its flows."""
    best = balanced(starts[0], count, upper)
    for start in starts[1:]:
        if best[0] * ENOUGH < upper:
            best = max(best, balanced(start, count, upper), key=lambda pair: pair[0])
    return best


def _denominators_of_capacities(flows: SharedFlows) -> list[int]:
    """Return the numbers of chunks that nodes can divide among their in-links in proportion to capacity."""
    problem = flows.reduction.full
    capacity = problem.class_capacity[problem.link_class]
    inwards = [int(capacity[problem.dst == node].sum()) for node in range(problem.node_count)]
    common = int(np.gcd.reduce(problem.class_capacity))
    return [total // common for total in sorted(set(inwards)) if 0 < total // common <= MAX_DENOMINATOR]
