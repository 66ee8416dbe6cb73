"""Rounds all-to-all flows to whole units. All units are delivered, so the resulting rate is a proven lower bound.

A solver's error is small compared with the load of a wide link, but may be many times the load of a narrow one. Also, a
single chunk may be too much for a narrow link. So flows on overloaded links are reduced in several rounds. A link is
overloaded if it carries more than the upper bound on the rate allows. For an all-to-all schedule, this module also
chooses the number of chunks per shard, and which of several solutions to round to whole chunks.
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
MAX_DENOMINATOR = 4096
FEW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 60, 64)
MORE_COUNTS = (96, 128, 192, 256, 384, 512, 720, 1024, 2048, 4096)
_NEARLY_BEST = Fraction(201, 200)
ENOUGH = Fraction(101, 100)
"""If the rate of flows is within 1 % of the upper bound, the flows are not improved further."""
ROUNDS = 16
_MANY_CELLS = 2**18
_FEW_ROUNDS = 2
_LEAST = 1e-18


class Router:
    """Rounds approximate flows to whole units, one block of sources at a time, and adds up the exact link loads.

    Rounding prefers links with a large capacity, and links to which fewer units have been assigned so far than their
    approximate flows require.

    units: number of units that every source sends to every rank
    loads: int64[C]: total units on all links of each class, from all sources
    """

    def __init__(self, problem: Commodities, units: int) -> None:
        self.problem = problem
        self.units = units
        self.loads = np.zeros(len(problem.class_size), dtype=np.int64)
        self._debt = np.zeros(problem.link_count, dtype=np.float64)
        self._capacity = problem.class_capacity[problem.link_class].astype(np.float64)

    def route(self, flows: Flows, block: slice) -> IntegralFlows:
        """Return int64[block, links]: `flows` rounded to whole units, without cycles.

        Each source sends `units` to every rank. O(links * log links) per source.
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
        """Return the exact rate of the routed flows. All blocks of sources must have been routed already."""
        problem = self.problem
        columns = zip(self.loads, problem.class_size, problem.class_capacity, strict=True)
        longest = max(Fraction(int(load), int(size) * int(capacity)) for load, size, capacity in columns)
        return Fraction(self.units, problem.scale) / longest


def fine_units(node_count: int, denominator: int = 1) -> int:
    """Return the number of units that each source should send to each rank so that rounding errors are small.

    The result is a multiple of `denominator` and, if possible, of many small numbers. Loads are below node_count^3 *
    units, so they fit into 64 bits for up to 2^14 nodes.
    """
    most = 720720 if node_count <= 2**13 else 5040
    return most if most % denominator == 0 else denominator * max(1, most // denominator)


@dataclass(frozen=True, slots=True, eq=False)
class SharedFlows:
    """Flows with one value per class of variables, optionally scaled by a factor for each link of the original network.

    Scaling is allowed because `Router` only uses the proportions between the flows into the same node.

    class_flow: float64[classes of flow variables of `reduction`], the flow of each variable in the class
    factor:     float64[links of `reduction.full`], by which the flows on each link are multiplied; None for 1
    """

    reduction: Reduction
    class_flow: NDArray[np.float64]
    factor: NDArray[np.float64] | None = None

    def blocks(self) -> Iterator[tuple[slice, Flows]]:
        """Yield (block of sources, float64[block, links]: flows of these sources)."""
        for block, flows in self.reduction.lifted(self.class_flow):
            yield block, flows if self.factor is None else flows * self.factor

    def routed(self, units: int) -> Router:
        """Round the flows of all sources so that each source sends `units` to each rank; return the router."""
        router = Router(self.reduction.full, units)
        for block, flows in self.blocks():
            router.route(flows, block)
        return router


def balanced(start: SharedFlows, units: int, upper: Fraction) -> tuple[Fraction, SharedFlows]:
    """Improve the flows `start` round by round; return (best rate found, flows with this rate).

    Each rank sends `units` to each other rank. `upper` is an upper bound on the rate; flows within 1 % of this bound
    are not changed. O(rounds * sources * links * log links).
    """
    router = start.routed(units)
    best, chosen = router.rate(), start
    factor = np.ones(start.reduction.full.link_count)
    cells = len(start.reduction.full.sources) * start.reduction.full.link_count
    for _ in range(ROUNDS if cells <= _MANY_CELLS else _FEW_ROUNDS):
        if best * ENOUGH >= upper:
            break
        # Divide a link's flow by the ratio of its time to the time that the upper bound allows, and by the mean of this
        # ratio over the links into its source node, because a node that receives data late should forward less.
        problem = router.problem
        least = float(Fraction(router.units, problem.scale) / upper)
        load = router.loads / problem.class_size
        late = np.maximum(1.0, load / problem.class_capacity.astype(np.float64) / least)[problem.link_class]
        weight = load[problem.link_class]
        arrived = np.bincount(problem.dst, weights=weight, minlength=problem.node_count)
        lateness = np.bincount(problem.dst, weights=weight * late, minlength=problem.node_count)
        before = np.maximum(1.0, np.divide(lateness, arrived, out=np.ones(problem.node_count), where=arrived > 0))
        factor = np.maximum(factor / (late * before[problem.src]), _LEAST)
        tried = SharedFlows(start.reduction, start.class_flow, factor)
        router = tried.routed(units)
        if router.rate() > best:
            best, chosen = router.rate(), tried
    return best, chosen


def chosen_flows(starts: Sequence[SharedFlows], upper: Fraction) -> tuple[int, SharedFlows]:
    """Return (number of chunks per shard, flows to round to whole chunks).

    Tries several numbers of chunks, and chooses the smallest one with nearly the best rate. First, numbers up to 64 and
    the number that makes all flows whole numbers are tried with the first flows in `starts`. If no resulting rate is
    within 1 % of the bound `upper`, all flows in `starts` are balanced for these numbers and for larger ones.
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
    """Balance the flows in `starts` for `count` chunks per shard; return (best rate, flows with this rate)."""
    best = balanced(starts[0], count, upper)
    for start in starts[1:]:
        if best[0] * ENOUGH < upper:
            best = max(best, balanced(start, count, upper), key=lambda pair: pair[0])
    return best


def _denominators_of_capacities(flows: SharedFlows) -> list[int]:
    """Return numbers of chunks that can be divided among some node's incoming links in exact proportion to capacity."""
    problem = flows.reduction.full
    capacity = problem.class_capacity[problem.link_class]
    inwards = [int(capacity[problem.dst == node].sum()) for node in range(problem.node_count)]
    common = int(np.gcd.reduce(problem.class_capacity))
    return [total // common for total in sorted(set(inwards)) if 0 < total // common <= MAX_DENOMINATOR]
