"""The topology finder: the whole Pareto frontier of steps against bandwidth time for a number of nodes and degree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chorale.synth.executor.port import Executor, Progress
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.confirm import Confirmation, confirm
from chorale.synth.finder.constructions import SeparateConstructions
from chorale.synth.finder.pareto import frontier
from chorale.synth.finder.query import MAX_NODES, FinderQuery
from chorale.synth.finder.refine import check_claims, specs_to_score, with_exact_costs
from chorale.synth.finder.scores import ScoreCache
from chorale.synth.finder.sources import BaseSources
from chorale.synth.finder.ties import break_ties
from chorale.synth.topology.diameter import diameter
from chorale.synth.topology.spec import parse_topology

Stage = Callable[[str], Progress | None]
"""Called with the name of each stage as it begins; returns what hears about its tasks."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A Pareto-efficient candidate with its real cost.

    diameter: of the topology; a stored schedule may take more steps
    confirmation: how its cost was confirmed, beyond being computed exactly; see `chorale.synth.finder.confirm`
    equals: how many other candidates that were considered cost the same
    """

    candidate: TopologyCandidate
    diameter: int
    confirmation: Confirmation
    equals: int

    @property
    def confirmed(self) -> bool:
        """Whether a schedule was made and verified."""
        return self.confirmation in ("schedule", "symmetric schedule")


@dataclass(frozen=True, slots=True)
class FinderResult:
    """The frontier by rising steps, and how many candidates it was chosen from."""

    query: FinderQuery
    frontier: tuple[FrontierPoint, ...]
    considered: int
    scored: int


def find(
    query: FinderQuery,
    executor: Executor,
    stage: Stage | None = None,
    extra_bases: Mapping[tuple[int, int], tuple[TopologyCandidate, ...]] | None = None,
    confirmed_nodes: int = MAX_NODES,
) -> FinderResult:
    """Return the Pareto frontier that bases and expansions give for `query`.

    Costs are exact: candidates near the predicted frontier are scored by BFB on the built topology, those of a stored
    schedule by the exact rules; up to `confirmed_nodes` nodes every row is confirmed too, by a verified schedule where
    that is not too large. `found` adds bases, such as those of `chorale.synth.finder.search`. Equal for any executor.
    Raises InvalidInput for a question without an answer, CheckFailed if a schedule does not cost what was claimed.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 5.4.
    """
    enter: Stage = stage or (lambda _name: None)
    scores = ScoreCache()
    sources = BaseSources(scores, query.bases, query.bidirectional, extra_bases or {})
    enter("constructions")
    candidates = SeparateConstructions(sources).candidates(query.nodes, query.degree)
    scores.compute(specs_to_score(candidates), executor, enter("scores"))
    groups = frontier(with_exact_costs(candidates, scores))
    check_claims(groups, scores, executor)
    chosen = break_ties(groups, executor, enter("all-to-all rates"))
    skipped: list[Confirmation] = ["none"] * len(chosen)
    confirmations = _confirm_all(chosen, executor, enter) if query.nodes <= confirmed_nodes else skipped
    rows = (
        FrontierPoint(candidate, _diameter(candidate), confirmation, len(group) - 1)
        for candidate, confirmation, group in zip(chosen, confirmations, groups, strict=True)
    )
    return FinderResult(query, tuple(rows), len(candidates), len(scores))


def _confirm_all(chosen: Sequence[TopologyCandidate], executor: Executor, enter: Stage) -> list[Confirmation]:
    report = enter("schedules")
    confirmations: list[Confirmation] = []
    for candidate in chosen:
        confirmations.append(confirm(candidate, executor))
        if report is not None:
            report(len(confirmations), len(chosen))
    return confirmations


def _diameter(candidate: TopologyCandidate) -> int:
    return candidate.steps if candidate.method == "bfb" else diameter(parse_topology(candidate.spec))
