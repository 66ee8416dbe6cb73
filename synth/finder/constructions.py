"""All ways to reach a number of nodes and a degree by expansions of bases, with pruning on the way.

Works backwards from the goal: a line graph comes from N / d nodes, a degree expansion from N / k nodes of degree d / k,
a power from the root, a product from factors (simple topologies on which BFB is bandwidth-optimal). Results for smaller
sizes are remembered, so that all sizes in rising order are a dynamic programme. Source: full paper, section 5.4.

For the base's own schedule, expanded, the costs are exact (theorems 7.1, 11, 12 of the full paper). For
breadth-first broadcast on the expanded topology they are what the paper's formulas say, which may be above the real
cost: the line graph of an optimal graph can be optimal again, and a copy of a node may be heard before the last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.candidate import TopologyCandidate, Traits, least_bandwidth_factor, least_steps, promising
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, Number, SpecTree, parse_spec


def line_of(base: TopologyCandidate) -> TopologyCandidate:
    """Line graph: degree * N nodes, T_L + 1, T_B + 1 / N (theorem 7.1; for BFB an upper bound).

    In the BFB problem of step t + 1 at a link from u to w stand degree copies of every shard that reaches u in step t,
    less at most one, since the link needs no copy of itself. So T_B falls by at most T_L / N from there. Needs a degree
    of 2 or more: a one-way ring is its own line graph.
    """
    traits = base.traits
    factor = base.bandwidth_factor + Fraction(1, base.nodes)
    slack = Fraction(base.steps, base.nodes) if base.method == "bfb" else Fraction(0)
    least = base.least_factor + Fraction(1, base.nodes) - slack
    return TopologyCandidate(
        spec=_line_spec(base.spec),
        method=base.method,
        nodes=base.nodes * base.degree,
        degree=base.degree,
        steps=base.steps + 1,
        bandwidth_factor=factor,
        exact=base.exact and base.method == "expand",
        # Two links follow one another in one way only, so that there are no parallel links.
        traits=Traits(not traits.self_loops, traits.self_loops, False, traits.reverse_symmetric),
        least_steps=base.least_steps + 1,
        least_factor=max(least, least_bandwidth_factor(base.nodes * base.degree)),
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def degree_of(base: TopologyCandidate, copies: int) -> TopologyCandidate:
    """Degree expansion of a network without self-loops: copies * N nodes of copies * degree.

    T_L + 1 and T_B + (copies - 1) / (copies * N) (theorem 11). BFB takes one step less if a node can hear from itself
    within T_L steps, as the copies of a node do from each other: two suffice where every link has its reverse. Its
    problems are those of the base, every shard and link copies times, and those shards of copies on top.
    """
    nodes = base.nodes * copies
    factor = base.bandwidth_factor + Fraction(copies - 1, nodes)
    lowest = max(base.least_factor, least_bandwidth_factor(nodes)) if base.method == "bfb" else factor
    steps, least = base.steps + 1, base.steps + 1
    if base.method == "bfb":
        least = max(base.least_steps, 2)
        steps = max(base.steps, 2) if base.traits.bidirectional else steps
    return TopologyCandidate(
        spec=f"degree({base.spec};{copies})",
        method=base.method,
        nodes=nodes,
        degree=base.degree * copies,
        steps=steps,
        bandwidth_factor=factor,
        exact=base.exact and base.method == "expand",
        traits=base.traits,
        least_steps=least,
        least_factor=lowest,
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def power_of(base: TopologyCandidate, times: int) -> TopologyCandidate:
    """Cartesian power: N^n nodes of n * degree, n * T_L, T_B as far above its bound as before (theorem 12)."""
    nodes = base.nodes**times
    factor = base.bandwidth_factor / least_bandwidth_factor(base.nodes) * least_bandwidth_factor(nodes)
    return TopologyCandidate(
        spec=_power_spec(base.spec, times),
        method=base.method,
        nodes=nodes,
        degree=base.degree * times,
        steps=base.steps * times,
        bandwidth_factor=factor,
        exact=base.exact and base.method == "expand",
        traits=base.traits,
        least_steps=base.least_steps * times,
        least_factor=factor if base.method == "expand" else least_bandwidth_factor(nodes),
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def product_of(parts: Sequence[TopologyCandidate]) -> TopologyCandidate:
    """Cartesian product of simple topologies on which BFB is bandwidth-optimal, and so it is on the product.

    Numbers of nodes multiply, degrees and steps add up (theorem 13).
    """
    nodes = 1
    for part in parts:
        nodes *= part.nodes
    steps = sum(part.steps for part in parts)
    return TopologyCandidate(
        spec=_product_spec([part.spec for part in parts]),
        method="bfb",
        nodes=nodes,
        degree=sum(part.degree for part in parts),
        steps=steps,
        bandwidth_factor=least_bandwidth_factor(nodes),
        exact=all(part.exact for part in parts),
        traits=Traits(
            simple=True,
            self_loops=False,
            bidirectional=all(part.traits.bidirectional for part in parts),
            reverse_symmetric=all(part.traits.reverse_symmetric for part in parts),
        ),
        least_steps=steps,
        least_factor=least_bandwidth_factor(nodes),
        expansions=max(part.expansions for part in parts) + 1,
        origin=tuple(dict.fromkeys(name for part in parts for name in part.origin)),
    )


def bidirectional_of(base: TopologyCandidate) -> TopologyCandidate:
    """The network together with its transpose: twice the degree, the cost at most the same (appendix A.6).

    For BFB that is a guess: shorter paths through reversed links change its steps and its balance.
    """
    is_stored = base.method == "expand"
    return TopologyCandidate(
        spec=f"bidirectional({base.spec})",
        method=base.method,
        nodes=base.nodes,
        degree=2 * base.degree,
        steps=base.steps,
        bandwidth_factor=base.bandwidth_factor,
        exact=base.exact and is_stored,
        traits=Traits(False, base.traits.self_loops, True, True),
        least_steps=base.steps if is_stored else least_steps(base.nodes, 2 * base.degree, bidirectional=True),
        least_factor=base.bandwidth_factor if is_stored else least_bandwidth_factor(base.nodes),
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def _line_spec(spec: str) -> str:
    tree = parse_spec(spec)
    if isinstance(tree, FunctionCall) and tree.name == "line":
        inner, *times = tree.arguments
        count = int(str(times[0])) if times else 1
        return f"line({inner};{count + 1})"
    return f"line({spec})"


def _power_spec(spec: str, times: int) -> str:
    tree = parse_spec(spec)
    if isinstance(tree, FamilyCall) and tree.name == "ring":
        return "torus:" + "x".join([tree.text] * times)
    if isinstance(tree, FamilyCall) and tree.name == "torus":
        return "torus:" + "x".join([tree.text] * times)
    if isinstance(tree, FunctionCall) and tree.name == "power":
        inner, earlier = tree.arguments
        return f"power({inner};{int(str(earlier)) * times})"
    return f"power({spec};{times})"


def _product_spec(specs: Sequence[str]) -> str:
    """Write a product of products as one, and a product of rings as a torus."""
    flat = [part for spec in specs for part in _factors(parse_spec(spec))]
    if all(isinstance(part, FamilyCall) and part.name in ("ring", "torus") for part in flat):
        return "torus:" + "x".join(part.text for part in flat if isinstance(part, FamilyCall))
    return f"product({';'.join(map(str, flat))})"


def _factors(tree: SpecTree) -> list[SpecTree]:
    if isinstance(tree, FunctionCall) and tree.name == "product":
        return [argument for argument in tree.arguments if not isinstance(argument, Number)]  # type: ignore[misc]
    return [tree]


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
