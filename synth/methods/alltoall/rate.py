"""Bounds on an all-to-all rate; upper bounds follow from prices of links.

Every unit from s to t pays at least the price distance from s to t, and all links together earn at most price times
capacity, so rate <= sum of price * capacity / sum of distances, for any prices. The best prices are the duals of the
capacities.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.identity import common_denominator
from chorale.synth.kernels import native
from chorale.synth.kernels.threads import blocks, in_threads
from chorale.synth.methods.alltoall.linear_program import Commodities

RateMethod = Literal["lp", "prices"]


@dataclass(frozen=True, slots=True)
class AllToAllRate:
    """Exact bounds on the rate at which each rank sends to every other, in the bandwidth unit of the topology.

    lower: reached by flows in whole numbers
    upper: proved by prices of links
    """

    lower: Fraction
    upper: Fraction
    method: RateMethod

    @property
    def rate(self) -> Fraction:
        """The rate that flows reach."""
        return self.lower

    @property
    def gap(self) -> Fraction:
        """upper / lower - 1: 0 when the rate is known exactly."""
        return self.upper / self.lower - 1


BoundsListener: TypeAlias = Callable[[Fraction, Fraction], None]
"""Called with the best (lower, upper) so far."""


_SOURCES_AT_ONCE = 256
PRICE_UNITS = 720720 * 16
"""The price of the most expensive link; a multiple of 1 to 16, so that simple ratios stay exact."""


def integer_prices(prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `prices` in whole units: the largest is about `PRICE_UNITS`, negative ones are 0; ratios stay simple."""
    clipped = np.clip(prices, 0, None)
    largest = clipped.max(initial=0.0)
    if not largest > 0:
        return np.ones(len(prices), dtype=np.int64)
    relative = clipped / largest
    denominator = common_denominator(relative, PRICE_UNITS)
    units = PRICE_UNITS if PRICE_UNITS % denominator == 0 else denominator * (PRICE_UNITS // denominator)
    rounded: NDArray[np.int64] = np.rint(relative * units).astype(np.int64)
    return rounded


def fine_prices(prices: NDArray[np.float64], node_count: int) -> NDArray[np.int64]:
    """Return `prices` in the finest units in which path sums of `node_count` links stay exact in 53 bits."""
    clipped = np.clip(prices, 0, None)
    units = 2**50 // node_count**2
    fine: NDArray[np.int64] = np.rint(clipped / max(clipped.max(initial=0.0), 1e-300) * units).astype(np.int64)
    return fine


def distance_bound(problem: Commodities, prices: NDArray[np.int64]) -> Fraction | None:
    """Return the exact upper bound on the rate by `prices`, one integer up to `PRICE_UNITS` per link of each class.

    None if every pair has a path that costs nothing. Prices that are equal along symmetries make distances equal along
    them, so one search per source class is enough. O(sources * links * log links).
    """

    def part(block: slice) -> int:
        distances = distances_by(problem, prices[problem.link_class], block).astype(np.int64)
        sums = (distances * problem.demand_of(block)).sum(axis=1)
        return sum(int(weight) * int(total) for weight, total in zip(problem.weights[block], sums, strict=True))

    paid = sum(in_threads(part, blocks(len(problem.sources), _SOURCES_AT_ONCE)))
    if paid == 0:
        return None
    columns = zip(prices, problem.class_size, problem.class_capacity, strict=True)
    earned = sum(int(price) * int(size) * int(capacity) for price, size, capacity in columns)
    return Fraction(earned, paid * problem.scale)


def distances_by(
    problem: Commodities, prices: NDArray[np.integer] | NDArray[np.floating], block: slice = slice(None)
) -> NDArray[np.float64]:
    """Return float64[sources of the block, nodes]: distances by `prices` of links; exact for whole numbers < 2^53."""
    sources = problem.sources[block]
    distances = np.empty((len(sources), problem.node_count))
    of_link = prices.astype(np.float64)
    native.price_distances(problem.outgoing, problem.outgoing_links, problem.dst, of_link, sources, distances)
    return distances
