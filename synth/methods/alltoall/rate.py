"""Computes exact bounds on the all-to-all rate. Upper bounds follow from link prices.

Each unit of data from s to t pays the price of every link on its path, so it pays at least the price of the cheapest
path, called the distance. The data on a link pay at most price * capacity per unit of time. So for any prices, rate <=
(sum of price * capacity) / (sum of distances). The best prices are the dual values of the capacity constraints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.identity import common_denominator
from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.linear_program import Commodities
from chorale.synth.processors import blocks, in_threads

RateMethod = Literal["lp", "prices"]
BoundsListener: TypeAlias = Callable[[Fraction, Fraction], None]
"""Function to call with the best bounds so far: (lower, upper)."""
_SOURCES_AT_ONCE = 256
PRICE_UNITS = 720720 * 16
"""Price of the most expensive link. It is a multiple of all numbers up to 16, so that simple ratios stay exact."""


@dataclass(frozen=True, slots=True)
class AllToAllRate:
    """Exact bounds on the rate at which each rank can send to each other rank, in the topology's bandwidth unit.

    lower:  rate that known flows in whole units reach
    upper:  bound on the rate of any schedule, proved by link prices
    method: how flows and prices were found: "lp" or "prices"
    """

    lower: Fraction
    upper: Fraction
    method: RateMethod

    @property
    def rate(self) -> Fraction:
        """Rate that the known flows reach."""
        return self.lower

    @property
    def gap(self) -> Fraction:
        """Relative difference of the bounds, upper / lower - 1; 0 if the rate is known exactly."""
        return self.upper / self.lower - 1


def integer_prices(prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `prices` scaled to whole numbers up to about `PRICE_UNITS`. Negative prices become 0."""
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
    """Return `prices` scaled to whole numbers up to 2^50 / node_count^2, so small that sums along paths stay exact."""
    clipped = np.clip(prices, 0, None)
    units = 2**50 // node_count**2
    fine: NDArray[np.int64] = np.rint(clipped / max(clipped.max(initial=0.0), 1e-300) * units).astype(np.int64)
    return fine


def distance_bound(problem: Commodities, prices: NDArray[np.int64]) -> Fraction | None:
    """Return the exact upper bound on the rate that follows from `prices`, one integer per link class.

    Returns None if all distances are 0. Symmetries preserve prices and therefore distances, so one search per class of
    sources is enough. O(sources * links * log links).
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
    """Return float64[sources of the block, nodes]: prices of cheapest paths, exact for whole numbers below 2^53."""
    sources = problem.sources[block]
    distances = np.empty((len(sources), problem.node_count))
    of_link = prices.astype(np.float64)
    native.price_distances(problem.outgoing, problem.outgoing_links, problem.dst, of_link, sources, distances)
    return distances
