"""Finds all ways to construct networks with a given node count and degree by expanding base topologies.

The search works backwards from the goal and prunes candidates that are clearly not optimal: a line graph comes from a
network of N / d nodes, a degree expansion from N / k nodes of degree d / k, a power from its root, a product from its
factors. Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", long version, section
5.4.

If a stored schedule of the base is expanded, the costs are exact (theorems 7.1, 11 and 12 of the paper). For
breadth-first broadcast (BFB) on the expanded topology, costs are predicted by the paper's formulas. The real cost may
be lower: an optimal graph's line graph can be optimal again, and a copy's data may arrive before the last step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.candidate import TopologyCandidate, Traits, least_bandwidth_factor, least_steps, promising
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, parse_spec


def _expanded(base: TopologyCandidate, **changes: Any) -> TopologyCandidate:
    """Return `base` with the fields `changes` of an expansion. The cost remains exact only for a stored schedule."""
    is_exact = base.exact and base.method == "expand"
    return replace(base, **{"exact": is_exact, "expansions": base.expansions + 1, **changes})


def line_of(base: TopologyCandidate) -> TopologyCandidate:
    """Return the line graph: degree * N nodes, T_L + 1, T_B + 1 / N (theorem 7.1; an upper bound for BFB).

    The BFB problem of step t + 1 at a link from u to w contains `degree` copies of every shard that reaches u in step
    t, minus at most one copy, because the link does not need its own shard. The real T_B is therefore at most T_L / N
    lower. The degree must be at least 2, because a one-way ring is its own line graph.
    """
    traits, nodes = base.traits, base.nodes * base.degree
    slack = Fraction(base.steps, base.nodes) if base.method == "bfb" else Fraction(0)
    return _expanded(
        base,
        spec=_line_spec(base.spec),
        nodes=nodes,
        steps=base.steps + 1,
        bandwidth_factor=base.bandwidth_factor + Fraction(1, base.nodes),
        # Two links can follow each other in only one way, so a line graph has no parallel links.
        traits=Traits(not traits.self_loops, traits.self_loops, False, traits.reverse_symmetric),
        least_steps=base.least_steps + 1,
        least_factor=max(base.least_factor + Fraction(1, base.nodes) - slack, least_bandwidth_factor(nodes)),
    )


def degree_of(base: TopologyCandidate, copies: int) -> TopologyCandidate:
    """Return the degree expansion of a network without self-loops: copies * N nodes of degree copies * degree.

    The cost is T_L + 1 and T_B + (copies - 1) / (copies * N) (theorem 11). BFB takes one step less if each base node is
    on a cycle of at most T_L links, because then a node's copies reach each other within T_L steps. If every link has a
    reverse link, two steps are enough for this. The BFB problems are the base's problems with all shards and links
    copied, plus the shards of the copies.
    """
    nodes, is_bfb = base.nodes * copies, base.method == "bfb"
    factor = base.bandwidth_factor + Fraction(copies - 1, nodes)
    return _expanded(
        base,
        spec=f"degree({base.spec};{copies})",
        nodes=nodes,
        degree=base.degree * copies,
        steps=max(base.steps, 2) if is_bfb and base.traits.bidirectional else base.steps + 1,
        bandwidth_factor=factor,
        least_steps=max(base.least_steps, 2) if is_bfb else base.steps + 1,
        least_factor=max(base.least_factor, least_bandwidth_factor(nodes)) if is_bfb else factor,
    )


def power_of(base: TopologyCandidate, times: int) -> TopologyCandidate:
    """Return the Cartesian power: N^times nodes of degree times * degree, with times * T_L steps (theorem 12).

    The ratio of T_B to its lower bound (N - 1) / N remains the same.
    """
    nodes = base.nodes**times
    factor = base.bandwidth_factor / least_bandwidth_factor(base.nodes) * least_bandwidth_factor(nodes)
    return _expanded(
        base,
        spec=_power_spec(base.spec, times),
        nodes=nodes,
        degree=base.degree * times,
        steps=base.steps * times,
        bandwidth_factor=factor,
        least_steps=base.least_steps * times,
        least_factor=factor if base.method == "expand" else least_bandwidth_factor(nodes),
    )


def product_of(base: TopologyCandidate, partner: TopologyCandidate) -> TopologyCandidate:
    """Return the Cartesian product of two simple topologies on which BFB is bandwidth-optimal.

    BFB is bandwidth-optimal on the product too. Node counts are multiplied; degrees and steps are added (theorem 13).
    """
    nodes, steps = base.nodes * partner.nodes, base.steps + partner.steps
    both = [
        getattr(base.traits, name) and getattr(partner.traits, name) for name in ("bidirectional", "reverse_symmetric")
    ]
    return _expanded(
        base,
        spec=_product_spec(base.spec, partner.spec),
        nodes=nodes,
        degree=base.degree + partner.degree,
        steps=steps,
        bandwidth_factor=least_bandwidth_factor(nodes),
        exact=base.exact and partner.exact,
        traits=Traits(True, False, *both),
        least_steps=steps,
        least_factor=least_bandwidth_factor(nodes),
        expansions=max(base.expansions, partner.expansions) + 1,
        origin=tuple(dict.fromkeys(base.origin + partner.origin)),
    )


def bidirectional_of(base: TopologyCandidate) -> TopologyCandidate:
    """Return the union of a network and its transpose: twice the degree, at most the same cost (appendix A.6).

    For BFB, the cost is only an estimate, because paths over reversed links change its steps and load balance.
    """
    lowest = base.steps, base.bandwidth_factor
    if base.method == "bfb":
        lowest = least_steps(base.nodes, 2 * base.degree, bidirectional=True), least_bandwidth_factor(base.nodes)
    return _expanded(
        base,
        spec=f"bidirectional({base.spec})",
        degree=2 * base.degree,
        traits=Traits(False, base.traits.self_loops, True, True),
        least_steps=lowest[0],
        least_factor=lowest[1],
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
    if isinstance(tree, FamilyCall) and tree.name in ("ring", "torus"):
        return "torus:" + "x".join([tree.text] * times)
    if isinstance(tree, FunctionCall) and tree.name == "power":
        inner, earlier = tree.arguments
        return f"power({inner};{int(str(earlier)) * times})"
    return f"power({spec};{times})"


def _product_spec(*specs: str) -> str:
    """Return the spec of a product. Nested products are flattened, and a product of rings is written as a torus."""
    trees: list[Any] = []
    for spec in specs:
        tree = parse_spec(spec)
        trees += tree.arguments if isinstance(tree, FunctionCall) and tree.name == "product" else [tree]
    if all(isinstance(tree, FamilyCall) and tree.name in ("ring", "torus") for tree in trees):
        return "torus:" + "x".join(tree.text for tree in trees)
    return f"product({';'.join(map(str, trees))})"


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in increasing order. O(sqrt(number))."""
    small = [candidate for candidate in range(1, math.isqrt(number) + 1) if number % candidate == 0]
    large = [number // candidate for candidate in reversed(small) if candidate * candidate != number]
    return small + large


def roots(number: int) -> Iterator[tuple[int, int]]:
    """Yield all (root, n) with root^n = number and n, root >= 2, in increasing order of n."""
    for times in range(2, number.bit_length()):
        root = round(number ** (1 / times))
        for candidate in (root - 1, root, root + 1):
            if candidate >= 2 and candidate**times == number:
                yield candidate, times


_TIES = 3
"""Largest number of candidates with equal predicted cost, method and traits that are expanded further."""

_CLOSED_UNDER_LINE = ("genkautz:", "debruijn:")
"""Families that contain their members' line graphs, and therefore need no line graph expansion.

For example, if the link from x to -d x - a is numbered d x + a - 1, the line graph is a generalized Kautz graph again.
"""


class Constructions:
    """Computes all candidates by (nodes, degree), with predicted costs if the exact cost is unknown.

    Results for smaller sizes are cached, so searching all sizes in increasing order is dynamic programming.
    """

    def __init__(self, sources: BaseSources) -> None:
        self._sources = sources
        self._best: dict[tuple[int, int], TopologyCandidate | None] = {}
        self._pruned: dict[tuple[int, int], list[TopologyCandidate]] = {}
        one_way = replace(sources, bidirectional=False)
        self._one_way = Constructions(one_way) if sources.bidirectional else None

    def candidates(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return all candidates that can be built from parts that were not pruned, one for each spec and method."""
        return _one_each(self._all(nodes, degree))

    def _all(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        if nodes < 2 or degree < 1:
            return
        yield from self._sources.all(nodes, degree)
        if self._one_way is not None and degree % 2 == 0:
            for base in self._one_way.pruned(nodes, degree // 2):
                # To use a stored schedule, the transpose needs a schedule too; BFB can always make one.
                if base.method == "bfb" or base.traits.reverse_symmetric:
                    yield bidirectional_of(base)
        if self._one_way is None and degree >= 2 and nodes % degree == 0:
            for base in self.pruned(nodes // degree, degree):
                if not base.spec.startswith(_CLOSED_UNDER_LINE):
                    yield line_of(base)
        for copies in divisors(degree)[1:]:
            if nodes % copies == 0:
                for base in self.pruned(nodes // copies, degree // copies):
                    if not base.traits.self_loops:
                        yield degree_of(base, copies)
        for root, times in roots(nodes):
            if degree % times == 0:
                for base in self.pruned(root, degree // times):
                    yield power_of(base, times)
        yield from self._products(nodes, degree)

    def pruned(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return candidates that may be Pareto-optimal among all candidates, or among those without self-loops."""
        key = (nodes, degree)
        if key not in self._pruned:
            everyone = self.candidates(nodes, degree)
            # Degree expansion needs networks without self-loops, so keep some even if others are better.
            loopless = [candidate for candidate in everyone if not candidate.traits.self_loops]
            worthy = dict.fromkeys(promising(everyone) + promising(loopless))
            kept, counts = [], Counter[tuple[object, ...]]()
            for candidate in sorted(worthy, key=lambda candidate: candidate.tie_break):
                cost = (candidate.method, candidate.steps, candidate.bandwidth_factor, candidate.traits)
                counts[cost] += 1
                if counts[cost] <= _TIES:
                    kept.append(candidate)
            self._pruned[key] = kept
        return self._pruned[key]

    def _products(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield, for each way to split nodes and degree between two factors, the product of the best factors."""
        for first_nodes in divisors(nodes)[1:-1]:
            if first_nodes > nodes // first_nodes:
                break
            for first_degree in range(1, degree):
                first = self._best_factor(first_nodes, first_degree)
                second = self._best_factor(nodes // first_nodes, degree - first_degree)
                if first is not None and second is not None:
                    yield product_of(first, second)

    def _best_factor(self, nodes: int, degree: int) -> TopologyCandidate | None:
        """Return the simple topology of this size on which BFB is bandwidth-optimal in the fewest steps, or None."""
        key = (nodes, degree)
        if key not in self._best:
            fit = (
                each
                for each in self._optimal(nodes, degree)
                if each.traits.simple and each.method == "bfb" and each.is_bandwidth_optimal
            )
            self._best[key] = min(fit, key=lambda each: (each.steps, each.tie_break), default=None)
        return self._best[key]

    def _optimal(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        if nodes < 2 or degree >= nodes:
            return
        yield from self._sources.optimal(nodes, degree)
        for copies in divisors(degree)[1:]:
            if nodes % copies == 0 and (base := self._best_factor(nodes // copies, degree // copies)) is not None:
                yield degree_of(base, copies)
        for root, times in roots(nodes):
            if degree % times == 0 and (base := self._best_factor(root, degree // times)) is not None:
                yield power_of(base, times)
        yield from self._products(nodes, degree)


class SeparateConstructions:
    """Runs `Constructions` twice: with all requested bases, and with only the paper's bases.

    Some expansions cost less than predicted, so with more bases, pruning could remove candidates that would turn out to
    be better. Searching both sets ensures that additional bases never make the frontier worse.
    """

    def __init__(self, sources: BaseSources) -> None:
        self._parts = [Constructions(sources)]
        if sources.bases != "paper":
            self._parts.append(Constructions(replace(sources, bases="paper", extra_bases={})))

    def candidates(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return every candidate with this node count and degree, one for each spec and method."""
        return _one_each(candidate for part in self._parts for candidate in part.candidates(nodes, degree))


def _one_each(candidates: Iterable[TopologyCandidate]) -> list[TopologyCandidate]:
    return list({(candidate.spec, candidate.method): candidate for candidate in candidates}.values())
