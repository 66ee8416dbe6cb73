"""All ways to reach a number of nodes and a degree by expansions of bases, with pruning on the way.

Works backwards from the goal: a line graph comes from N / d nodes, a degree expansion from N / k nodes of degree d / k,
a power from the root, a product from factors (simple topologies on which BFB is bandwidth-optimal). Results for smaller
sizes are remembered, so that all sizes in rising order are a dynamic programme. Source: full paper, section 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.candidate import TopologyCandidate, promising
from chorale.synth.finder.expansion_rules import bidirectional_of, degree_of, line_of, power_of, product_of


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in rising order. O(sqrt(number))."""
    small = [candidate for candidate in range(1, math.isqrt(number) + 1) if number % candidate == 0]
    large = [number // candidate for candidate in reversed(small) if candidate * candidate != number]
    return small + large


def roots(number: int) -> Iterator[tuple[int, int]]:
    """Yield (root, n) with root^n = number and n, root >= 2, by rising n."""
    for times in range(2, number.bit_length()):
        root = round(number ** (1 / times))
        for candidate in (root - 1, root, root + 1):
            if candidate >= 2 and candidate**times == number:
                yield candidate, times


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
        for first_nodes in divisors(nodes)[1:-1]:
            second_nodes = nodes // first_nodes
            if first_nodes > second_nodes:
                continue
            for left_degree in range(1, degree):
                first = self.best(first_nodes, left_degree)
                second = self.best(second_nodes, degree - left_degree)
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


_TIES = 3
"""Candidates of equal predicted cost and method that are expanded further."""

_CLOSED_UNDER_LINE = ("genkautz:", "debruijn:")
"""Families whose line graphs are members again: number the link from x to -d x - a as d x + a - 1, for example."""


class Constructions:
    """Candidates by (nodes, degree); costs are predicted where they are not known."""

    def __init__(self, sources: BaseSources) -> None:
        self._sources = sources
        self._parts = OptimalParts(sources)
        self._pruned: dict[tuple[int, int], list[TopologyCandidate]] = {}
        self._one_way = Constructions(_one_way(sources)) if sources.bidirectional else None

    def candidates(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return every candidate of `nodes` and `degree` whose parts were worth keeping; one per spec and method."""
        found = {(candidate.spec, candidate.method): candidate for candidate in self._all(nodes, degree)}
        return list(found.values())

    def pruned(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return the candidates that may be Pareto-efficient, or would be without those that have self-loops."""
        key = (nodes, degree)
        if key not in self._pruned:
            everyone = self.candidates(nodes, degree)
            # Degree expansion takes no self-loops: their owners must not push out all others.
            loopless = [candidate for candidate in everyone if not candidate.traits.self_loops]
            worthy = dict.fromkeys(promising(everyone) + promising(loopless))
            self._pruned[key] = _few_of_equals(worthy)
        return self._pruned[key]

    def _all(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        if nodes < 2 or degree < 1:
            return
        yield from self._sources.all(nodes, degree)
        if self._one_way is None:
            yield from self._lines(nodes, degree)
        elif degree % 2 == 0:
            yield from self._doubled(self._one_way, nodes, degree // 2)
        yield from self._degree_expansions(nodes, degree)
        yield from self._powers(nodes, degree)
        yield from self._parts.products(nodes, degree)

    def _lines(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        if degree >= 2 and nodes % degree == 0:
            for base in self.pruned(nodes // degree, degree):
                if not base.spec.startswith(_CLOSED_UNDER_LINE):
                    yield line_of(base)

    def _degree_expansions(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        for copies in divisors(degree)[1:]:
            if nodes % copies == 0:
                for base in self.pruned(nodes // copies, degree // copies):
                    if not base.traits.self_loops:
                        yield degree_of(base, copies)

    def _powers(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        for root, times in roots(nodes):
            if degree % times == 0:
                for base in self.pruned(root, degree // times):
                    yield power_of(base, times)

    @staticmethod
    def _doubled(one_way: Constructions, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        for base in one_way.pruned(nodes, degree):
            # A stored schedule needs a mirror image; BFB makes its own.
            if base.method == "bfb" or base.traits.reverse_symmetric:
                yield bidirectional_of(base)


class SeparateConstructions:
    """Constructions from all requested bases, and separately from those of the paper alone.

    Rules bound the cost of an expansion from above; some are cheaper. With more bases, pruning could drop candidates
    that would have turned out better, so that both are searched: more bases must not give a worse frontier.
    """

    def __init__(self, sources: BaseSources) -> None:
        self._parts = [Constructions(sources)]
        if sources.bases != "paper":
            self._parts.append(Constructions(replace(sources, bases="paper", extra_bases={})))

    def candidates(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return every candidate of `nodes` and `degree`, one per spec and method."""
        everyone = (candidate for part in self._parts for candidate in part.candidates(nodes, degree))
        return list({(candidate.spec, candidate.method): candidate for candidate in everyone}.values())


def _one_way(sources: BaseSources) -> BaseSources:
    return BaseSources(sources.scores, sources.bases, bidirectional=False, extra_bases=sources.extra_bases)


def _few_of_equals(candidates: dict[TopologyCandidate, None]) -> list[TopologyCandidate]:
    kept: list[TopologyCandidate] = []
    counts: dict[tuple[object, ...], int] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.tie_break):
        key = (candidate.method, candidate.steps, candidate.bandwidth_factor, candidate.traits)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _TIES:
            kept.append(candidate)
    return kept
