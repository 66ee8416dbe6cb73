"""The Pareto frontiers of many numbers of nodes, in tasks that need nothing of one another.

Constructions of N nodes build on those of divisors of N. Sizes with the same largest prime factor share most of these,
so such sizes are one task, in which smaller sizes come first (a dynamic programme), and tasks repeat little.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

from chorale.synth.executor.base import Executor
from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.candidate import TopologyCandidate, frontier
from chorale.synth.finder.confirmation import with_exact_costs
from chorale.synth.finder.constructions import SeparateConstructions
from chorale.synth.finder.find import Stage
from chorale.synth.finder.query import FinderQuery
from chorale.synth.finder.score_cache import ScoreCache

Frontier = tuple[TopologyCandidate, ...]

_MOST_TASKS = 64


def find_all(
    queries: Sequence[FinderQuery], executor: Executor, stage: Stage | None = None
) -> dict[FinderQuery, Frontier]:
    """Return the Pareto frontier by rising steps of every query, as `find` would, the simplest of equals.

    All queries must agree in degree, bases and direction. Costs that follow from theorems or that the database
    claims are taken as they are, all others computed; no schedule is made.
    """
    enter: Stage = stage or (lambda _name: None)
    tasks = _tasks(sorted(set(queries), key=_nodes))
    frontiers: dict[FinderQuery, Frontier] = {}
    for task, results in zip(tasks, executor.map(_frontiers, tasks, None, enter("frontiers")), strict=True):
        frontiers |= zip(task, results, strict=True)
    return {query: frontiers[query] for query in sorted(frontiers, key=_nodes)}


def _tasks(queries: Sequence[FinderQuery]) -> list[tuple[FinderQuery, ...]]:
    """Return groups of queries, sizes of one largest prime factor together, those that take longest first."""
    groups: dict[int, list[FinderQuery]] = {}
    for query in queries:
        groups.setdefault(_largest_prime_factor(query.nodes), []).append(query)
    tasks = [(0, number, list[FinderQuery]()) for number in range(min(len(groups), _MOST_TASKS))]
    for group in sorted(groups.values(), key=_cost, reverse=True):
        cost, number, task = tasks[0]
        heapreplace(tasks, (cost + _cost(group), number, task + group))
    return [tuple(sorted(task, key=_nodes)) for _, _, task in sorted(tasks, key=lambda task: (-task[0], task[1]))]


def _nodes(query: FinderQuery) -> int:
    return query.nodes


def _cost(queries: Sequence[FinderQuery]) -> int:
    """Return about what a task costs: the more for each size, the larger it is."""
    return sum(_FIXED_COST + query.nodes for query in queries)


_FIXED_COST = 500
"""Nodes of a network that takes as long to score as a size takes to construct, about."""


def _largest_prime_factor(number: int) -> int:
    """Return the largest prime that divides `number`, at least 2. O(sqrt(number))."""
    factor = 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            number //= factor
    return number


def _frontiers(_shared: None, queries: Sequence[FinderQuery]) -> list[Frontier]:
    """Return the frontier of each query, by rising numbers of nodes."""
    scores = ScoreCache()
    constructions = SeparateConstructions(BaseSources(scores, queries[0].bases, queries[0].bidirectional))
    return [_frontier(constructions.candidates(query.nodes, query.degree), scores) for query in queries]


def _frontier(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> Frontier:
    return tuple(group[0] for group in frontier(with_exact_costs(candidates, scores)))
