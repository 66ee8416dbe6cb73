"""Flows that follow link prices: every node takes what it needs over the links by which it is cheapest to reach.

A node shares its need among its links by exp(-extra / temperature), extra being by how much a path over the link costs
more than the cheapest. So flows change smoothly with prices, and nothing needs to be stored but the prices. What they
load links with is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.kernels.threads import blocks, in_threads
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.routing import fine_units

Floats = NDArray[np.float64]
WholeLoads = NDArray[np.int64]
_BUCKETS = 4096
"""Buckets of a search for cheapest paths."""
_SOURCES_AT_ONCE = 32


class PricedNetwork(NamedTuple):
    """Links by their ends: `incoming` and `src` by head; `outgoing`, `outgoing_links` and `heads` by tail.

    demand: int64[1 or sources, nodes]
    """

    incoming: NDArray[np.int64]
    src: NDArray[np.int32]
    outgoing: NDArray[np.int64]
    outgoing_links: NDArray[np.int32]
    heads: NDArray[np.int32]
    demand: Matrix[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PricedLoads:
    """What flows that follow prices do.

    whole:        int64[C], exact: over all links of a class, in units of `units` for each that is sent
    paid, smooth: the sums of distances and smoothed distances over all that is sent
    """

    whole: WholeLoads
    units: int
    paid: float
    smooth: float


@dataclass(frozen=True, slots=True, eq=False)
class PricedFlows:
    """The flows that follow prices: float64[C] per link class of `problem`, and a temperature in the same unit."""

    problem: Commodities
    prices: Floats
    temperature: float

    def loads(self) -> PricedLoads:
        """Return what these flows load links with. O(sources * links), side by side in threads."""
        problem = self.problem
        network, prices, width = self._network()
        units = fine_units(problem.node_count)

        def part(block: slice) -> tuple[WholeLoads, float, float]:
            loads = np.zeros(problem.link_count, dtype=np.int64)
            rows = network._replace(demand=problem.demand_of(block))
            sources, weights = problem.sources[block], problem.weights[block]
            return loads, *native.add_priced_loads(
                rows, sources, weights, prices, width, self.temperature, units, loads
            )

        parts = in_threads(part, blocks(len(problem.sources), _SOURCES_AT_ONCE))
        of_class = np.zeros(len(problem.class_size), dtype=np.int64)
        np.add.at(of_class, problem.link_class, sum(loads for loads, _, _ in parts))
        return PricedLoads(of_class, units, sum(paid for _, paid, _ in parts), sum(smooth for _, _, smooth in parts))

    def of_sources(self) -> Floats:
        """Return float64[K, links]: the flows of each source."""
        problem = self.problem
        network, prices, width = self._network()
        units = fine_units(problem.node_count)
        flows = np.zeros((len(problem.sources), problem.link_count))
        once = np.ones(1, dtype=np.int64)
        for index, row in enumerate(flows):
            block, whole = slice(index, index + 1), np.zeros(problem.link_count, dtype=np.int64)
            rows = network._replace(demand=problem.demand_of(block))
            native.add_priced_loads(rows, problem.sources[block], once, prices, width, self.temperature, units, whole)
            row[:] = whole / units
        return flows

    def _network(self) -> tuple[PricedNetwork, Floats, float]:
        problem = self.problem
        heads = problem.dst[problem.outgoing_links]
        network = PricedNetwork(
            problem.incoming, problem.src, problem.outgoing, problem.outgoing_links, heads, problem.demand
        )
        prices = self.prices[problem.link_class]
        width = max(float(prices.min()) / 2, float(prices.max()) / (_BUCKETS - 4))
        return network, prices, width
