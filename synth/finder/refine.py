"""From predicted to real costs: candidates that may matter are scored on the built topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chorale.synth.errors import CheckFailed
from chorale.synth.executor.port import Executor
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.pareto import cost_of, promising
from chorale.synth.finder.scores import ScoreCache


def with_exact_costs(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> list[TopologyCandidate]:
    """Return the promising `candidates` with real costs, scoring here what `scores` does not know yet.

    A stored schedule, expanded, costs exactly what the rules say; all others are breadth-first broadcast.
    """
    return [candidate if candidate.exact else _real(candidate, scores) for candidate in promising(candidates)]


def specs_to_score(candidates: Sequence[TopologyCandidate]) -> list[str]:
    """Return the specs that `refined` needs the scores of."""
    return [candidate.spec for candidate in promising(candidates) if not candidate.exact]


def check_claims(groups: Sequence[tuple[TopologyCandidate, ...]], scores: ScoreCache, executor: Executor) -> None:
    """Score what stands on the frontier by a theorem or a claim of the database, one topology per task, and compare.

    Raises CheckFailed if a real cost differs.
    """
    claimed = [candidate for group in groups for candidate in group if candidate.method == "bfb"]
    scores.compute([candidate.spec for candidate in claimed], executor)
    for candidate in claimed:
        score = scores.of(candidate.spec)
        if (score.steps, score.bandwidth_factor) != cost_of(candidate):
            value = f"{score.steps} steps and {score.bandwidth_factor}"
            rule = f"bfb on {candidate.spec} must take {candidate.steps} steps and {candidate.bandwidth_factor} M/B"
            raise CheckFailed(rule, value, "report this as a defect of the finder")


def _real(candidate: TopologyCandidate, scores: ScoreCache) -> TopologyCandidate:
    score = scores.of(candidate.spec)
    return replace(
        candidate,
        steps=score.steps,
        bandwidth_factor=score.bandwidth_factor,
        exact=True,
        least_steps=score.steps,
        least_factor=score.bandwidth_factor,
    )
