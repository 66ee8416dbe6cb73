"""Lower bounds on the time of given traffic, from prices of links, in whole numbers.

What s sends to t pays at least the price distance for each unit, and in time T links earn at most T *
price * bandwidth, so T >= sum of amount * distance / sum of price * bandwidth, for any prices. Equal prices on the
links into a set of nodes make the bound of that cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.rate import distances_by
from chorale.synth.methods.traffic.matrix import Amounts
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
    distances = distances_by(problem, prices)[:, : len(sent)]
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
