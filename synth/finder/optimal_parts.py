"""The parts of Cartesian products: simple topologies on which BFB is bandwidth-optimal, with the fewest steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.divisors import divisors, roots
from chorale.synth.finder.rules import degree_of, power_of, product_of
from chorale.synth.finder.sources import BaseSources


class OptimalParts:
    """For each (nodes, degree) the best such topology, found by recursion over expansions that keep optimality."""

    def __init__(self, sources: BaseSources) -> None:
        self._sources = sources
        self._best: dict[tuple[int, int], TopologyCandidate | None] = {}

    def best(self, nodes: int, degree: int) -> TopologyCandidate | None:
        """Return the one with the fewest steps, the simplest of equals; None if there is none."""
        key = (nodes, degree)
        if key not in self._best:
            fit = [candidate for candidate in self._all(nodes, degree) if _is_fit(candidate)]
            self._best[key] = min(fit, key=lambda candidate: (candidate.steps, candidate.tie_break), default=None)
        return self._best[key]

    def products(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield the product of the best parts for every way to split nodes and degree in two."""
        for left in divisors(nodes)[1:-1]:
            right = nodes // left
            if left > right:
                continue
            for left_degree in range(1, degree):
                first = self.best(left, left_degree)
                second = self.best(right, degree - left_degree)
                if first is not None and second is not None:
                    yield product_of((first, second))

    def _all(self, nodes: int, degree: int) -> Iterable[TopologyCandidate]:
        if nodes < 2 or degree >= nodes:
            return
        yield from self._sources.optimal(nodes, degree)
        for copies in divisors(degree)[1:]:
            if nodes % copies == 0:
                base = self.best(nodes // copies, degree // copies)
                if base is not None:
                    yield degree_of(base, copies)
        for root, times in roots(nodes):
            if degree % times == 0:
                base = self.best(root, degree // times)
                if base is not None:
                    yield power_of(base, times)
        yield from self.products(nodes, degree)


def _is_fit(candidate: TopologyCandidate) -> bool:
    return candidate.traits.simple and candidate.method == "bfb" and candidate.is_bandwidth_optimal
