"""The topology finder: the Pareto frontier of steps against bandwidth time for a number of nodes and degree.

`chorale.synth.finder.find_all` has those of many sizes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.candidate import TopologyCandidate, frontier, promising
from chorale.synth.finder.confirmation import (
    Confirmation,
    break_ties,
    check_claims,
    confirm,
    most_promising,
    with_known_costs,
)
from chorale.synth.finder.constructions import SeparateConstructions
from chorale.synth.finder.query import MAX_NODES, FinderQuery
from chorale.synth.finder.rated import MAX_NODES_BY_RATE, Goal, rated_frontier, rates_of
from chorale.synth.finder.score_cache import ScoreCache
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology

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
