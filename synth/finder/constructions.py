"""All ways to reach a number of nodes and a degree by expansions of bases, with pruning on the way.

Works backwards from the goal: a line graph comes from N / d nodes, a degree expansion from N / k nodes of degree
d / k, a power from the root, a product from factors. What is found for a smaller size is remembered, so that asking
for all sizes in rising order is a dynamic programme. Source: full paper, section 5.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.divisors import divisors, roots
from chorale.synth.finder.optimal_parts import OptimalParts
from chorale.synth.finder.pareto import promising
from chorale.synth.finder.rules import bidirectional_of, degree_of, line_of, power_of
from chorale.synth.finder.sources import BaseSources

_TIES = 3
"""Candidates of equal predicted cost and method that are expanded further."""

_CLOSED_UNDER_LINE = ("genkautz:", "debruijn:")
"""Families whose line graphs are members again: number the link from x to -d x - a as d x + a - 1, for example."""


class Constructions:
    """Candidates by (nodes, degree); costs are predicted where they are not known."""

    def __init__(self, sources: BaseSources) -> None:
        self._sources = sources
        self._parts = OptimalParts(sources)
        self._kept: dict[tuple[int, int], list[TopologyCandidate]] = {}
        self._one_way = Constructions(_one_way(sources)) if sources.bidirectional else None

    def candidates(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return every candidate of `nodes` and `degree` whose parts were worth keeping; one per spec and method."""
        found = {(candidate.spec, candidate.method): candidate for candidate in self._all(nodes, degree)}
        return list(found.values())

    def pruned(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return the candidates that may be Pareto-efficient, or would be without those that have self-loops."""
        key = (nodes, degree)
        if key not in self._kept:
            everyone = self.candidates(nodes, degree)
            # Degree expansion takes no self-loops: their owners must not push out all others.
            loopless = [candidate for candidate in everyone if not candidate.traits.self_loops]
            worthy = dict.fromkeys(promising(everyone) + promising(loopless))
            self._kept[key] = _few_of_equals(worthy)
        return self._kept[key]

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
    """Constructions from all bases that were asked for, and besides from the paper's alone.

    Rules bound what an expansion costs, and some turn out better. Bases that push others out on the way would let
    those never be tried: more bases must not give less.
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
    seen: dict[tuple[object, ...], int] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.tie_break):
        key = (candidate.method, candidate.steps, candidate.bandwidth_factor, candidate.traits)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= _TIES:
            kept.append(candidate)
    return kept
