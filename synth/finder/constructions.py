"""Finds all ways to construct networks with a given node count and degree by expanding base topologies.

The cost of a base topology comes from a formula, from the database or from a computation on the built topology. The
finder computes the costs of its final results again. The search works backwards from the goal, N nodes of degree d: a
line graph comes from a network of N / d nodes, a degree expansion from a network of N / k nodes of degree d / k, and
a Cartesian power or product from its factors. Candidates that are clearly not optimal are pruned. Source: Zhao et al.,
"Efficient Direct-Connect Topologies for Collective Communications", long version, section 5.4, tables 8 and 9.

If a stored schedule of the base is expanded, the costs are exact (theorems 7.1, 11 and 12 of the paper). For
breadth-first broadcast (BFB) on the expanded topology, costs are predicted by the paper's formulas. The real cost may
be lower. For example, the line graph of an optimal graph can be optimal too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import numpy as np

from chorale.synth.finder.candidate import (
    AllgatherCost,
    ScoreCache,
    TopologyCandidate,
    Traits,
    base_candidate,
    cost_of,
    least_bandwidth_factor,
    least_steps,
    promising,
)
from chorale.synth.topology.families.bases import base_topology, load_bases, names_of
from chorale.synth.topology.registry import FamilyCall, FunctionCall, parse_spec
from chorale.synth.topology.topology import Topology

DISTANCE_REGULAR_STEPS: Mapping[int, int] = {
    6: 2, 9: 2, 10: 3, 14: 3, 15: 3, 16: 4, 21: 3, 26: 3, 32: 4, 35: 3, 45: 4, 70: 7, 80: 4, 189: 6, 728: 6,
}  # fmt: skip
"""Maps m to the number of steps of the BFB allgather on distreg:4,m (Zhao et al., table 8)."""

_TWO_WAY = Traits(simple=True, self_loops=False, bidirectional=True, reverse_symmetric=True)
_TWO_WAY_PARALLEL = Traits(simple=False, self_loops=False, bidirectional=True, reverse_symmetric=True)
_ONE_WAY = Traits(simple=True, self_loops=False, bidirectional=False, reverse_symmetric=True)
_ONE_WAY_PARALLEL = Traits(simple=False, self_loops=False, bidirectional=False, reverse_symmetric=True)
PAPER_BASES = ("diamond", "dbjmod-2-3", "dbjmod-2-4", "dbjmod-3-2", "dbjmod-4-2")
"""Names of those base graphs in the database that the paper by Zhao et al. also uses."""
_REVERSE_SYMMETRIC = ("d3", "dbjmod-2-3")
BaseSet = Literal["all", "paper"]
BASE_SETS: tuple[BaseSet, ...] = ("all", "paper")


def optimal_families(nodes: int, degree: int, paper_only: bool = False) -> Iterator[TopologyCandidate]:
    """Yield networks of this size on which BFB is bandwidth-optimal.

    paper_only: whether to yield only members of families that the paper by Zhao et al. uses
    """

    def member(spec: str, steps: int, traits: Traits) -> TopologyCandidate:
        return base_candidate(spec, nodes, degree, AllgatherCost(steps, least_bandwidth_factor(nodes)), traits)

    if nodes == degree + 1:
        yield member(f"complete:{nodes}", 1, _TWO_WAY)
    if nodes == 2 * degree and degree >= 2:
        yield member(f"bipartite:{degree}", 2, _TWO_WAY)
    if nodes == degree + 2 and degree >= 2:
        yield member(f"dicirculant:{degree}", 2, _ONE_WAY)
    if nodes >= 3 and degree == 2:
        yield member(f"ring:{nodes}", nodes // 2, _TWO_WAY)
    elif nodes >= 3 and degree % 2 == 0:
        yield member(f"biring:{degree},{nodes}", nodes // 2, _TWO_WAY_PARALLEL)
    if nodes >= 3:
        yield member(f"uniring:{degree},{nodes}", nodes - 1, _ONE_WAY if degree == 1 else _ONE_WAY_PARALLEL)
    elif degree > 1:
        yield member(f"uniring:{degree},2", 1, _TWO_WAY_PARALLEL)
    for dimensions in range(2, min(degree, nodes.bit_length() - 1) + 1):
        letters, rest = divmod(degree, dimensions)
        if rest == 0 and (letters + 1) ** dimensions == nodes:
            spec = f"hypercube:{dimensions}" if letters == 1 else f"hamming:{dimensions},{letters + 1}"
            yield member(spec, dimensions, _TWO_WAY)
    if degree == 4 and nodes > 6:  # the circulant with two offsets and the smallest diameter (theorem 22)
        root = math.isqrt(2 * nodes - 1)
        offset = (root + (root * root != 2 * nodes - 1)) // 2  # ceil((sqrt(2 n - 1) - 1) / 2)
        yield member(f"circulant:{nodes},{offset},{offset + 1}", offset, _TWO_WAY)
    if degree == 4 and nodes in DISTANCE_REGULAR_STEPS:
        yield member(f"distreg:4,{nodes}", DISTANCE_REGULAR_STEPS[nodes], _TWO_WAY)
    side = math.isqrt(nodes // 2)
    if not paper_only and degree == 4 and side >= 2 and 2 * side * side == nodes:
        yield member(f"twisted-torus:{side}x{2 * side},{side}", side, _TWO_WAY)
    if not paper_only and (nodes, degree) == (8, 3):
        yield member("twisted-hypercube:3", 2, _TWO_WAY)


def scored_families(nodes: int, degree: int, scores: ScoreCache, bidirectional: bool) -> Iterator[TopologyCandidate]:
    """Yield networks of this size from families without a formula for BFB's cost; the cost is computed on the network.

    A bidirectional network of this size exists only if nodes * degree is even; there is always a circulant then. The
    other families have one-way links: generalized Kautz graphs exist for nodes > degree >= 2, de Bruijn graphs for
    powers of the degree.
    """
    chosen = [(spec, _TWO_WAY) for spec in _circulants(nodes, degree)]
    if not bidirectional and degree >= 2 and nodes > degree + 1:
        loopless = nodes % (degree + 1) == 0
        chosen.append((f"genkautz:{degree},{nodes}", Traits(loopless, not loopless, False, False)))
    length = round(math.log(nodes, degree)) if degree >= 2 else 0
    if not bidirectional and length >= 2 and degree**length == nodes:
        chosen.append((f"debruijn:{degree},{length}", Traits(False, True, False, True)))
    for spec, traits in chosen:
        yield base_candidate(spec, nodes, degree, scores.of(spec), traits)


def _circulants(nodes: int, degree: int) -> Iterator[str]:
    """Yield specs of circulants of degree 3, 5 or more. Offsets are consecutive numbers or powers of a number.

    Circulants of odd degree also have the offset nodes / 2.
    """
    pairs = degree // 2
    if degree < 3 or degree == 4 or nodes <= degree + 1 or (degree % 2 and nodes % 2):
        return
    middle = [nodes // 2] if degree % 2 else []
    largest = (nodes - 1) // 2
    stride = max(2, round(nodes ** (1 / max(pairs, 2))))
    first = max(1, min(largest - pairs + 1, stride // 2))
    powers = [min(stride**power, largest - pairs + 1 + power) for power in range(pairs)]
    for offsets in (list(range(1, 1 + pairs)), list(range(first, first + pairs)), powers):
        chosen = [*offsets, *middle]
        if len(set(offsets)) == pairs and min(offsets) >= 1 and math.gcd(nodes, *chosen) == 1:
            yield f"circulant:{nodes},{','.join(map(str, chosen))}"


def database_entries(nodes: int, degree: int, scores: ScoreCache, paper_only: bool) -> Iterator[TopologyCandidate]:
    """Yield candidates for each base graph of this size in the database: one with BFB, one with the stored schedule.

    If the database stores no schedule for the graph, only the candidate with BFB is yielded.
    """
    for name in names_of(nodes, degree):
        if paper_only and name not in PAPER_BASES:
            continue
        entry = load_bases()[name]
        spec, traits = _spec_and_traits(name)
        claimed = AllgatherCost(entry.claim.steps, entry.claim.bandwidth_factor)
        if entry.has_stored_schedule:
            yield base_candidate(spec, nodes, degree, claimed, traits, "expand")
            yield base_candidate(spec, nodes, degree, scores.of(spec), traits)
        else:
            yield base_candidate(spec, nodes, degree, claimed, traits)


@cache
def _spec_and_traits(name: str) -> tuple[str, Traits]:
    if name == "diamond":
        spec = name
    elif name.startswith("dbjmod-"):
        spec = "dbjmod:" + name.removeprefix("dbjmod-").replace("-", ",")
    else:
        spec = f"base:{name}"
    return spec, traits_of(base_topology(load_bases()[name], spec), name in _REVERSE_SYMMETRIC)


def traits_of(topology: Topology, reverse_symmetric: bool = False) -> Traits:
    """Return the traits of a built topology. Bidirectional topologies are reverse-symmetric. O(links * log(links))."""
    links = topology.links
    pairs = np.column_stack([links.src, links.dst])
    forward = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    backward = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))][:, ::-1]
    self_loops = bool(np.any(links.src == links.dst))
    bidirectional = bool(np.array_equal(forward, backward))
    simple = not self_loops and not np.any(links.parallel_index())
    return Traits(simple, self_loops, bidirectional, reverse_symmetric or bidirectional)


@dataclass(frozen=True, slots=True)
class BaseSources:
    """The base topologies that a search may use.

    scores:        cache of the costs that are computed for bases without a formula
    bases:         "all", or "paper" for only the bases in tables 8 and 9 of Zhao et al.
    bidirectional: whether every link must have a reverse link
    extra_bases:   maps (nodes, degree) to additional bases, for example from a search in this run
    """

    scores: ScoreCache
    bases: BaseSet = "all"
    bidirectional: bool = False
    extra_bases: Mapping[tuple[int, int], tuple[TopologyCandidate, ...]] = field(default_factory=dict)

    def all(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        yield from self.optimal(nodes, degree)
        yield from scored_families(nodes, degree, self.scores, self.bidirectional)

    def optimal(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield base topologies of known cost that may be bandwidth-optimal."""
        paper_only = self.bases == "paper"
        bases = [
            *optimal_families(nodes, degree, paper_only),
            *database_entries(nodes, degree, self.scores, paper_only),
            *self.extra_bases.get((nodes, degree), ()),
        ]
        yield from (base for base in bases if base.traits.bidirectional or not self.bidirectional)


def _expanded(base: TopologyCandidate, **changes: Any) -> TopologyCandidate:
    """Return the candidate for an expansion of `base`: a copy of `base` in which `changes` replace fields.

    Its cost is only known exactly if `base` uses a stored schedule.
    """
    is_exact = base.exact and base.method == "expand"
    return replace(base, **{"exact": is_exact, "expansions": base.expansions + 1, **changes})


def line_of(base: TopologyCandidate) -> TopologyCandidate:
    """Return the line graph: degree * N nodes, T_L + 1 steps, time T_B + 1 / N (Zhao et al., theorem 7.1).

    For BFB, T_B + 1 / N is an upper bound. Consider a link from u to w. For each shard that u receives in step t of
    BFB, the node for this link receives `degree` shards in step t + 1, except that it never receives its own shard. The
    real bandwidth time is therefore lower than predicted by at most T_L / N. The degree must be at least 2, because a
    one-way ring is its own line graph.
    """
    traits, nodes, tree = base.traits, base.nodes * base.degree, parse_spec(base.spec)
    spec = f"line({base.spec})"
    if isinstance(tree, FunctionCall) and tree.name == "line":
        inner, *times = tree.arguments
        spec = f"line({inner};{int(str(times[0])) + 1 if times else 2})"
    slack = Fraction(base.steps, base.nodes) if base.method == "bfb" else Fraction(0)
    return _expanded(
        base,
        spec=spec,
        nodes=nodes,
        steps=base.steps + 1,
        bandwidth_factor=base.bandwidth_factor + Fraction(1, base.nodes),
        # Two links can follow each other in only one way, so a line graph has no parallel links.
        traits=Traits(not traits.self_loops, traits.self_loops, False, traits.reverse_symmetric),
        least_steps=base.least_steps + 1,
        least_factor=max(base.least_factor + Fraction(1, base.nodes) - slack, least_bandwidth_factor(nodes)),
    )


def degree_of(base: TopologyCandidate, copies: int) -> TopologyCandidate:
    """Return the degree expansion of a network without self-loops: `copies` * N nodes of degree `copies` * degree.

    The cost is T_L + 1 and T_B + (copies - 1) / (copies * N) (theorem 11). BFB takes one step less if each base node is
    on a cycle of at most T_L links, because then a node's copies reach each other within T_L steps. If every link has a
    reverse link, two steps are enough for this. BFB sends each shard and uses each link of the base once per copy; in
    addition, every node receives the shards of the other copies of the same base node.
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
    """Return the Cartesian power: N^`times` nodes of degree `times` * degree, with `times` * T_L steps (theorem 12).

    The ratio of T_B to its lower bound (N - 1) / N remains the same.
    """
    tree, spec = parse_spec(base.spec), f"power({base.spec};{times})"
    if isinstance(tree, FamilyCall) and tree.name in ("ring", "torus"):
        spec = "torus:" + "x".join([tree.text] * times)
    elif isinstance(tree, FunctionCall) and tree.name == "power":
        inner, earlier = tree.arguments
        spec = f"power({inner};{int(str(earlier)) * times})"
    nodes = base.nodes**times
    factor = base.bandwidth_factor / least_bandwidth_factor(base.nodes) * least_bandwidth_factor(nodes)
    return _expanded(
        base,
        spec=spec,
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
    trees: list[Any] = []  # nested products are flattened, and a product of rings is written as a torus
    for tree in (parse_spec(base.spec), parse_spec(partner.spec)):
        trees += tree.arguments if isinstance(tree, FunctionCall) and tree.name == "product" else [tree]
    are_tori = all(isinstance(tree, FamilyCall) and tree.name in ("ring", "torus") for tree in trees)
    spec = "torus:" + "x".join(tree.text for tree in trees) if are_tori else f"product({';'.join(map(str, trees))})"
    nodes, steps = base.nodes * partner.nodes, base.steps + partner.steps
    both = [
        getattr(base.traits, name) and getattr(partner.traits, name) for name in ("bidirectional", "reverse_symmetric")
    ]
    return _expanded(
        base,
        spec=spec,
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

    For BFB, the cost is only an estimate, because paths over reversed links change the steps and the load balance.
    """
    lowest: tuple[int, Fraction] = cost_of(base)
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
"""Maximum number of candidates with equal predicted cost, method and traits that are expanded further."""

_CLOSED_UNDER_LINE = ("genkautz:", "debruijn:")
"""Families that contain the line graphs of their own members, so that members need no line graph expansion.

For example, if the link from x to -d x - a is numbered d x + a - 1, the line graph is a generalized Kautz graph again.
"""


class Constructions:
    """Computes all candidates of a given node count and degree, with predicted costs if the exact costs are unknown.

    Results are cached and reused for larger sizes, so searching all sizes in increasing order is dynamic programming.
    """

    def __init__(self, sources: BaseSources) -> None:
        self._sources = sources
        self._best: dict[tuple[int, int], TopologyCandidate | None] = {}
        self._pruned: dict[tuple[int, int], list[TopologyCandidate]] = {}
        one_way = replace(sources, bidirectional=False)
        self._one_way = Constructions(one_way) if sources.bidirectional else None

    def candidates(self, nodes: int, degree: int) -> list[TopologyCandidate]:
        """Return bases of this size and expansions of smaller candidates, one candidate for each spec and method."""
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
        """For each way to split the node count and degree between two factors, yield the best factors' product."""
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
