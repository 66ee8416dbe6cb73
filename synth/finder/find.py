"""Topology search: the Pareto-optimal networks by steps and bandwidth time for a number of nodes and degree, or many.

Constructions of N nodes build on those of divisors of N. Sizes with the same largest prime factor share most of these,
so with many sizes such sizes are one task, in which smaller ones come first (a dynamic programme), and tasks repeat
little.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapreplace

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.base_candidates import BASE_SETS, BaseSet, BaseSources
from chorale.synth.finder.bfb_score import ScoreCache
from chorale.synth.finder.candidate import TopologyCandidate, frontier, least_bandwidth_factor, least_steps, promising
from chorale.synth.finder.confirmation import (
    MAX_NODES_BY_RATE,
    Confirmation,
    Goal,
    break_ties,
    check_claims,
    confirm,
    most_promising,
    rated_frontier,
    rates_of,
    with_exact_costs,
    with_known_costs,
)
from chorale.synth.finder.constructions import SeparateConstructions
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.names import unknown_name
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology

MAX_NODES = 2**14
MAX_LINKS = 2**20


@dataclass(frozen=True, slots=True)
class FinderQuery:
    """Topologies of `nodes` nodes, each with `degree` links out and in.

    bidirectional: whether every link must have its reverse
    bases: "all", or "paper" for the bases of the paper only
    Raises InvalidInput for a question without an answer, or one that is too large.
    """

    nodes: int
    degree: int
    bidirectional: bool = False
    bases: BaseSet = "all"

    def __post_init__(self) -> None:
        if self.bases not in BASE_SETS:
            raise unknown_name("set of bases", self.bases, BASE_SETS)
        _require(2 <= self.nodes <= MAX_NODES, f"the number of nodes must lie between 2 and {MAX_NODES}", self.nodes)
        _require(self.degree >= 1, "the degree must be at least 1", self.degree)
        if self.degree >= self.nodes:
            rule = "the degree must be below the number of nodes"
            way_out = f"{self.nodes - 1} links reach all others from a node; ask for at most that degree"
            raise InvalidInput(rule, f"degree {self.degree} for {self.nodes} nodes", way_out)
        links = self.nodes * self.degree
        _require(links <= MAX_LINKS, f"nodes times degree must be at most {MAX_LINKS} links", links)
        if self.bidirectional:
            self._require_two_way()

    def _require_two_way(self) -> None:
        if self.nodes * self.degree % 2:
            rule = "a bidirectional network must have an even number of nodes times degree"
            raise InvalidInput(rule, f"{self.nodes} nodes of degree {self.degree}", "change one of them by 1")
        if self.degree == 1 and self.nodes > 2:
            rule = "a connected bidirectional network of degree 1 must have 2 nodes"
            raise InvalidInput(rule, f"{self.nodes} nodes", "ask for degree 2 or more")

    @property
    def least_steps(self) -> int:
        """The Moore bound."""
        return least_steps(self.nodes, self.degree, self.bidirectional)

    @property
    def least_bandwidth_factor(self) -> Fraction:
        """(N - 1) / N."""
        return least_bandwidth_factor(self.nodes)


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise InvalidInput(rule, value, "choose another number")


_SCORED_AT_ONCE = 16

Stage = Callable[[str], Progress | None]
"""Called with the name of each stage as it begins; returns what hears about its tasks."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A Pareto-efficient candidate with its real cost.

    diameter: of the topology; a stored schedule may take more steps
    confirmation: how its cost was confirmed, beyond being computed exactly; see `chorale.synth.finder.confirmation`
    alternatives: specs of other candidates that were considered and cost the same
    rate: of an all-to-all, where it was asked for
    """

    candidate: TopologyCandidate
    diameter: int
    confirmation: Confirmation
    alternatives: tuple[str, ...] = ()
    rate: AllToAllRate | None = None

    @property
    def confirmed(self) -> bool:
        """Whether a schedule was made and verified."""
        return self.confirmation in ("schedule", "symmetric schedule")


@dataclass(frozen=True, slots=True)
class FinderResult:
    """The frontier by rising steps, and how many candidates it was chosen from.

    others: candidates of exact costs that are not on the frontier
    """

    query: FinderQuery
    frontier: tuple[FrontierPoint, ...]
    considered: int
    scored: int
    others: tuple[TopologyCandidate, ...] = ()


def find(
    query: FinderQuery,
    executor: Executor,
    stage: Stage | None = None,
    extra_bases: Mapping[tuple[int, int], tuple[TopologyCandidate, ...]] | None = None,
    confirmed_nodes: int = MAX_NODES,
    goal: Goal = "allreduce",
    allowed: Callable[[TopologyCandidate], bool] | None = None,
) -> FinderResult:
    """Return the Pareto frontier that bases and expansions give for `query`, of the candidates that are `allowed`.

    The goal allreduce counts steps and bandwidth time, alltoall the rate of an all-to-all (the best few, falling), and
    both all three; rates are known up to `MAX_NODES_BY_RATE` nodes.

    Costs are exact: candidates near the predicted frontier are scored by BFB on the built topology, those of a stored
    schedule by the exact rules; up to `confirmed_nodes` nodes every row is confirmed too, by a verified schedule where
    that is not too large. `extra_bases` are further bases, such as those of `chorale.synth.finder.cayley_search`. Equal
    for any executor. Raises InvalidInput for a query without an answer, CheckFailed if a schedule does not cost what
    was claimed. Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 5.4.
    """
    if goal != "allreduce" and query.nodes > MAX_NODES_BY_RATE:
        rule = f"networks are ranked by all-to-all rate up to {MAX_NODES_BY_RATE} nodes"
        raise InvalidInput(rule, query.nodes, "ask for fewer nodes, or rank by allreduce")
    enter: Stage = stage or (lambda _name: None)
    scores = ScoreCache()
    sources = BaseSources(scores, query.bases, query.bidirectional, extra_bases or {})
    enter("constructions")
    candidates = SeparateConstructions(sources).candidates(query.nodes, query.degree)
    if allowed is not None:
        candidates = list(filter(allowed, candidates))
        if not candidates:
            return FinderResult(query, (), 0, len(scores))
    rates: dict[str, AllToAllRate] = {}
    if goal == "allreduce":
        groups = _exact_frontier(candidates, scores, executor, enter("scores"))
        check_claims(groups, scores, executor)
        chosen = break_ties(groups, executor, enter("all-to-all rates"))
    else:
        scores.compute([one.spec for one in candidates if not one.exact], executor, enter("scores"))
        real = with_known_costs(candidates, scores)
        rates = rates_of([one.spec for one in real], executor, enter("all-to-all rates"))
        groups = rated_frontier(real, rates, goal)
        check_claims(groups, scores, executor)
        chosen = [group[0] for group in groups]
    skipped: list[Confirmation] = ["none"] * len(chosen)
    confirmations = _confirm_all(chosen, executor, enter) if query.nodes <= confirmed_nodes else skipped
    rows = (
        FrontierPoint(
            candidate,
            _diameter(candidate, scores),
            confirmation,
            tuple(one.spec for one in group if one.spec != candidate.spec),
            rates.get(candidate.spec),
        )
        for candidate, confirmation, group in zip(chosen, confirmations, groups, strict=True)
    )
    known = [one for one in with_known_costs(candidates, scores) if one.exact or scores.has(one.spec)]
    taken = {one.spec for group in groups for one in group}
    others = tuple(one for one in known if one.spec not in taken)
    return FinderResult(query, tuple(rows), len(candidates), len(scores), others)


def _exact_frontier(
    candidates: Sequence[TopologyCandidate], scores: ScoreCache, executor: Executor, progress: Progress | None
) -> list[tuple[TopologyCandidate, ...]]:
    """Return the frontier of exact costs.

    Some are scored at a time, those of fewest steps first: exact costs show of many others that they are beaten.
    """
    while needed := most_promising(known := with_known_costs(candidates, scores), _SCORED_AT_ONCE):
        scores.compute(needed, executor, progress)
    return frontier(promising(known))


def _confirm_all(chosen: Sequence[TopologyCandidate], executor: Executor, enter: Stage) -> list[Confirmation]:
    report = enter("schedules")
    confirmations: list[Confirmation] = []
    for candidate in chosen:
        confirmations.append(confirm(candidate, executor))
        if report is not None:
            report(len(confirmations), len(chosen))
    return confirmations


def _diameter(candidate: TopologyCandidate, scores: ScoreCache) -> int:
    """Return the diameter, which is the number of steps of BFB."""
    if candidate.method == "bfb":
        return candidate.steps
    if scores.has(candidate.spec):
        return scores.of(candidate.spec).steps
    return diameter(parse_topology(candidate.spec))


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
