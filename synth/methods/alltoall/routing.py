"""Lower bounds on the all-to-all rate: integral flows that deliver every unit, made from approximate ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.commodities import Commodities

Flows = NDArray[np.float64]
IntegralFlows = NDArray[np.int64]

_TRACE = 1e-15
"""Flow that every link has at least, so that a node without any inflow still finds a way."""
_LEAST_SHARE = 1e-6
"""Units of which a link must get at least this share to be rounded up."""


class Router:
    """Turns approximate flows into whole ones, block by block of sources, and adds up exact loads.

    units: how many units every source sends to every rank
    loads: int64[C], units over all links of a class and all sources of all classes
    debt:  what was asked of each link so far minus what it got; rounding prefers links whose time grows the least
           beyond what was asked, which are those that are owed much or carry much at once
    """

    def __init__(self, problem: Commodities, units: int) -> None:
        self.problem = problem
        self.units = units
        self.loads = np.zeros(len(problem.class_size), dtype=np.int64)
        self._debt = np.zeros(problem.link_count, dtype=np.float64)
        self._capacity = problem.class_capacity[problem.link_class].astype(np.float64)

    def route(self, flows: Flows, block: slice) -> IntegralFlows:
        """Return int64[block, links]: acyclic flows that bring `units` to every rank, close to `flows`.

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
    """Return many units, so that rounding loses little: a multiple of `denominator`, and of 1 to 16 by default.

    Loads stay within 64 bits: fewer than node_count ** 3 * units, for up to 2^14 nodes.
    """
    most = 720720 if node_count <= 2**13 else 5040
    return most if most % denominator == 0 else denominator * max(1, most // denominator)
