"""Finds networks that are Pareto-optimal in steps and bandwidth time T_B, for a given node count and degree.

Predicted costs are confirmed: candidates are scored on the built topology, and schedules are verified. If several
candidates have equal cost and their all-to-all rates are cheap to compute, the one with the highest rate is chosen. A
search may also rank candidates by this rate, alone or together with the allreduce cost.

A construction with N nodes is built from constructions whose node counts divide N. If many sizes are searched, sizes
with the same largest prime factor share most of this work, so they form one task, which starts with the smallest size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Any, Literal

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed, InvalidInput, unknown_name
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.candidate import (
    ScoreCache,
    TopologyCandidate,
    cost_of,
    frontier,
    least_bandwidth_factor,
    least_steps,
    promising,
    score_of_all_nodes,
)
from chorale.synth.finder.constructions import BASE_SETS, BaseSet, BaseSources, SeparateConstructions
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.methods.bfb.bfb import MAX_EXPANDED_RANKS, symmetric_bfb
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import automorphisms_are_transitive
from chorale.synth.verify.verify import verify

MAX_RATED_NODES = 128
"""Maximum number of nodes for breaking ties by all-to-all rate, whose computation takes seconds on larger networks."""
_CONTENDERS = 4
MAX_NODES = 2**14
MAX_LINKS = 2**20
_SCORED_AT_ONCE = 16
Stage = Callable[[str], Progress | None]
"""Called with a stage's name when the stage begins; returns a callback for the progress of its tasks, or None."""
Frontier = tuple[TopologyCandidate, ...]
_FIXED_COST = 500
"""Cost of finding the constructions for one size, as the node count of a network that is equally costly to score."""
Goal = Literal["allreduce", "alltoall", "both"]
MAX_NODES_BY_RATE = 1024
"""Maximum number of nodes for ranking by all-to-all rate, which would take minutes for each larger network."""
_ROWS = 5


def with_known_costs(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> list[TopologyCandidate]:
    """Replace the candidates' predicted costs with their real costs if `scores` contains them.

    Only costs of BFB are predicted; costs of expanded stored schedules are already exact.
    """
    known = list(candidates)
    for place, candidate in enumerate(known):
        if not candidate.exact and candidate.spec in scores:
            steps, factor = scores[candidate.spec]
            real: Any = {"steps": steps, "bandwidth_factor": factor, "least_steps": steps, "least_factor": factor}
            known[place] = replace(candidate, exact=True, **real)
    return known


def check_claims(groups: Sequence[tuple[TopologyCandidate, ...]], scores: ScoreCache, executor: Executor) -> None:
    """Score all BFB candidates in `groups`, to check costs that come from a theorem or from the database.

    Raises:
        CheckFailed: if a candidate's real cost differs from the claimed cost.
    """
    claimed = [candidate for group in groups for candidate in group if candidate.method == "bfb"]
    scores.compute([candidate.spec for candidate in claimed], executor)
    for candidate in claimed:
        score = scores[candidate.spec]
        if score != cost_of(candidate):
            value = f"{score.steps} steps and {score.bandwidth_factor}"
            rule = f"bfb on {candidate.spec} must take {candidate.steps} steps and {candidate.bandwidth_factor} M/B"
            raise CheckFailed(rule, value, "report this as a defect of the finder")


def break_ties(
    groups: Sequence[tuple[TopologyCandidate, ...]], executor: Executor, progress: Progress | None = None
) -> list[TopologyCandidate]:
    """From each group of equal cost, choose the candidate with the highest all-to-all rate.

    Rates are compared by their certified lower bounds. If these are equal, or if networks are too large to compute
    rates, `tie_break` decides.
    """
    contenders = [group[:_CONTENDERS] if group[0].nodes <= MAX_RATED_NODES else group[:1] for group in groups]
    rates = rates_of([one.spec for group in contenders if len(group) > 1 for one in group], executor, progress)

    def order(candidate: TopologyCandidate) -> tuple[Fraction, tuple[int, int, str]]:
        return -rates[candidate.spec].lower if candidate.spec in rates else Fraction(0), candidate.tie_break

    return [min(group, key=order) for group in contenders]


Confirmation = Literal["schedule", "symmetric schedule", "prediction", "none"]
"""How a cost was confirmed.

schedule:           by a verified schedule that contains the rows of all ranks
symmetric schedule: by a verified schedule that contains the rows of rank 0 and symmetries
prediction:         without a schedule, by code independent of the code that scored the candidate
none:               not confirmed, for example because the expansion of a stored schedule would be too large
"""

MAX_WHOLE_RANKS = 1024
"""Up to this number of ranks, the schedule contains the rows of all ranks even if those of rank 0 would suffice."""


def confirm(candidate: TopologyCandidate, executor: Executor) -> Confirmation:
    """Confirm the candidate's cost and return how it was confirmed.

    Above `MAX_EXPANDED_RANKS` ranks, only schedules in symmetric form are made.

    Raises:
        CheckFailed: if the verified schedule or the prediction has another cost, node count or degree.
    """
    topology = parse_topology(candidate.spec)
    ranks = topology.compute_count
    real: tuple[int, Fraction | None]
    how: Confirmation = "schedule"
    if ranks > MAX_WHOLE_RANKS and candidate.method == "bfb" and automorphisms_are_transitive(topology):
        how, cost = "symmetric schedule", verify(symmetric_bfb(topology, ALLGATHER, executor)).cost
        real = cost.steps, cost.bandwidth_factor
    elif ranks <= MAX_EXPANDED_RANKS:
        cost = synthesize(candidate.method, topology, ALLGATHER, None, executor).cost
        real = cost.steps, cost.bandwidth_factor
    elif candidate.method == "expand":
        return "none"
    else:
        how, real = "prediction", score_of_all_nodes(topology)
    claimed = (candidate.nodes, candidate.degree, *cost_of(candidate))
    found = (ranks, topology.degree, *real)
    if claimed != found:
        rule = f"{candidate.method} on {candidate.spec} must have the nodes, degree, steps and factor that are claimed"
        value = f"{', '.join(map(str, found))} instead of {', '.join(map(str, claimed))}"
        raise CheckFailed(rule, value, "report this as a defect of the finder")
    return how


def rates_of(specs: Sequence[str], executor: Executor, progress: Progress | None) -> dict[str, AllToAllRate]:
    """Return certified bounds on the all-to-all rate of each topology in `specs`. Each topology is a separate task."""
    known = list(dict.fromkeys(specs))
    return dict(zip(known, executor.map(_alltoall_rate, known, None, progress), strict=True))


def _alltoall_rate(_shared: None, spec: str) -> AllToAllRate:
    return alltoall_rate(parse_topology(spec))


def rated_frontier(
    candidates: Sequence[TopologyCandidate], rates: Mapping[str, AllToAllRate], goal: Goal
) -> list[tuple[TopologyCandidate, ...]]:
    """Return the best candidates in groups of equal rate and exact cost, sorted by decreasing achievable rate.

    For the goal `alltoall`, these are the few candidates with the highest rates; for the goal `both`, all candidates
    that are Pareto-optimal in rate, steps and bandwidth time.
    """

    def order(candidate: TopologyCandidate) -> tuple[Fraction, int, Fraction]:
        return -rates[candidate.spec].lower, *cost_of(candidate)

    ordered = sorted(candidates, key=lambda one: (order(one), one.tie_break))
    groups = {cost: tuple(group) for cost, group in groupby(ordered, key=order)}
    if goal == "alltoall":
        return list(groups.values())[:_ROWS]
    return [
        group
        for cost, group in groups.items()
        if not any(other != cost and all(other[i] <= cost[i] for i in range(3)) for other in groups)
    ]


@dataclass(frozen=True, slots=True)
class FinderQuery:
    """A search for topologies of `nodes` nodes, each with `degree` outgoing and `degree` incoming links.

    bidirectional: whether every link must have a reverse link
    bases:         "all", or "paper" for only the bases in tables 8 and 9 of Zhao et al.

    Raises InvalidInput if no such network exists, or if the network would be too large.
    """

    nodes: int
    degree: int
    bidirectional: bool = False
    bases: BaseSet = "all"

    def __post_init__(self) -> None:
        nodes, degree = self.nodes, self.degree
        if self.bases not in BASE_SETS:
            raise unknown_name("set of bases", self.bases, BASE_SETS)
        for holds, rule, value in (
            (2 <= nodes <= MAX_NODES, f"the number of nodes must lie between 2 and {MAX_NODES}", nodes),
            (degree >= 1, "the degree must be at least 1", degree),
        ):
            if not holds:
                raise InvalidInput(rule, value, "choose another number")
        size = f"degree {degree} for {nodes} nodes"
        if degree >= nodes:
            way_out = f"choose a degree of at most {nodes - 1}"
            raise InvalidInput("the degree must be below the number of nodes", size, way_out)
        if nodes * degree > MAX_LINKS:
            rule = f"nodes times degree must be at most {MAX_LINKS} links"
            raise InvalidInput(rule, nodes * degree, "choose another number")
        if self.bidirectional and nodes * degree % 2:
            rule = "a bidirectional network must have an even number of nodes times degree"
            raise InvalidInput(rule, size, "change one of them by 1")
        if self.bidirectional and degree == 1 and nodes > 2:
            rule = "a connected bidirectional network of degree 1 must have 2 nodes"
            raise InvalidInput(rule, f"{nodes} nodes", "ask for degree 2 or more")

    @property
    def least_steps(self) -> int:
        return least_steps(self.nodes, self.degree, self.bidirectional)

    @property
    def least_bandwidth_factor(self) -> Fraction:
        return least_bandwidth_factor(self.nodes)


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A Pareto-optimal candidate with its real cost.

    diameter:     diameter of the topology, which is the number of steps unless a stored schedule takes more
    confirmation: how the computed cost was confirmed (see `Confirmation`)
    alternatives: specs of other candidates with equal cost
    rate:         all-to-all rate, if the search ranks by it
    """

    candidate: TopologyCandidate
    diameter: int
    confirmation: Confirmation
    alternatives: tuple[str, ...] = ()
    rate: AllToAllRate | None = None

    @property
    def confirmed(self) -> bool:
        return self.confirmation in ("schedule", "symmetric schedule")


@dataclass(frozen=True, slots=True)
class FinderResult:
    """Result of the search `query`: the Pareto frontier, sorted by steps, and other candidates.

    considered: number of candidates whose predicted or exact costs were compared
    scored:     number of topologies whose BFB cost was computed
    others:     candidates with exact cost that are not on the frontier
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
    """Return the Pareto frontier of all networks that match `query` and can be built from bases by expansion.

    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 5.4.
    The result does not depend on the executor. All costs are exact: candidates near the predicted frontier are scored
    by BFB on the built topology, and the cost of an expanded stored schedule follows from exact rules.

    Args:
        query: the network's size and the bases to use.
        executor: computes scores, rates and schedules.
        stage: called when a stage begins.
        extra_bases: maps (nodes, degree) to additional bases, for example from `chorale.synth.finder.cayley_search`.
        confirmed_nodes: maximum number of nodes for which the cost of every result is also confirmed. This is done with
            a verified schedule, unless the schedule would be too large.
        goal: `allreduce` ranks by steps and bandwidth time; `alltoall` ranks by all-to-all rate and returns only the
            few best results; `both` uses all three criteria. Rates are supported up to `MAX_NODES_BY_RATE` nodes.
        allowed: function that returns whether a candidate may be chosen; None allows all candidates.

    Returns:
        The frontier and statistics of the search.

    Raises:
        InvalidInput: if the goal needs rates and the network is too large for them.
        CheckFailed: if a schedule's real cost differs from the claimed cost.
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
        progress = enter("scores")
        # Start with the candidates that may have the fewest steps, because their exact costs rule out many others.
        known = with_known_costs(candidates, scores)
        while waiting := [one for one in promising(known) if not one.exact]:
            waiting.sort(key=lambda one: (one.least_steps, cost_of(one), one.tie_break))
            scores.compute([one.spec for one in waiting[:_SCORED_AT_ONCE]], executor, progress)
            known = with_known_costs(candidates, scores)
        groups = frontier(promising(known))
        check_claims(groups, scores, executor)
        chosen = break_ties(groups, executor, enter("all-to-all rates"))
    else:
        scores.compute([one.spec for one in candidates if not one.exact], executor, enter("scores"))
        known = with_known_costs(candidates, scores)
        rates = rates_of([one.spec for one in known], executor, enter("all-to-all rates"))
        groups = rated_frontier(known, rates, goal)
        check_claims(groups, scores, executor)
        chosen = [group[0] for group in groups]
    confirmations: list[Confirmation] = ["none"] * len(chosen)
    if query.nodes <= confirmed_nodes:
        report = enter("schedules")
        for index, candidate in enumerate(chosen):
            confirmations[index] = confirm(candidate, executor)
            if report is not None:
                report(index + 1, len(chosen))
    rows = []
    for candidate, confirmation, group in zip(chosen, confirmations, groups, strict=True):
        score = scores.get(candidate.spec)  # the number of BFB steps equals the diameter
        hops = score.steps if score else diameter(parse_topology(candidate.spec))
        alternatives = tuple(one.spec for one in group if one.spec != candidate.spec)
        rows.append(FrontierPoint(candidate, hops, confirmation, alternatives, rates.get(candidate.spec)))
    taken = {one.spec for group in groups for one in group}
    known = [one for one in with_known_costs(candidates, scores) if one.exact or one.spec in scores]
    others = tuple(one for one in known if one.spec not in taken)
    return FinderResult(query, tuple(rows), len(candidates), len(scores), others)


def find_all(
    queries: Sequence[FinderQuery], executor: Executor, stage: Stage | None = None
) -> dict[FinderQuery, Frontier]:
    """Return each query's Pareto frontier, sorted by steps, with the simplest candidate for each cost.

    All queries must have the same degree, bases and `bidirectional`. Costs from theorems or from the database are not
    checked; all other costs are computed. No schedules are made.
    """
    enter: Stage = stage or (lambda _name: None)
    groups: dict[int, list[FinderQuery]] = {}  # largest prime factor of the node count -> queries
    for query in sorted(set(queries), key=lambda query: query.nodes):
        factor, rest = 2, query.nodes
        while factor * factor <= rest:
            if rest % factor:
                factor += 1
            else:
                rest //= factor
        groups.setdefault(rest, []).append(query)
    # Start with the tasks that take longest.
    tasks = sorted(groups.values(), key=lambda group: sum(_FIXED_COST + query.nodes for query in group), reverse=True)
    frontiers: dict[FinderQuery, Frontier] = {}
    for task, results in zip(tasks, executor.map(_frontiers, tasks, None, enter("frontiers")), strict=True):
        frontiers |= zip(task, results, strict=True)
    return {query: frontiers[query] for query in sorted(frontiers, key=lambda query: query.nodes)}


def _frontiers(_shared: None, queries: Sequence[FinderQuery]) -> list[Frontier]:
    """Return the frontier of each of `queries`, which must be sorted by number of nodes."""
    scores = ScoreCache()
    constructions = SeparateConstructions(BaseSources(scores, queries[0].bases, queries[0].bidirectional))
    frontiers = []
    for query in queries:
        candidates = promising(constructions.candidates(query.nodes, query.degree))
        for candidate in candidates:
            if not candidate.exact:
                scores.of(candidate.spec)
        frontiers.append(tuple(group[0] for group in frontier(with_known_costs(candidates, scores))))
    return frontiers
