"""From predicted to real costs: candidates that may matter are scored on the built topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.executor.port import Executor, Progress
from synth.finder.candidate import Candidate
from synth.finder.pareto import frontier, promising
from synth.finder.scores import Scores


def refined(
    candidates: Sequence[Candidate], scores: Scores, executor: Executor, progress: Progress | None = None
) -> list[Candidate]:
    """Return the promising `candidates` with real costs; those that end up on the frontier have all been scored.

    A stored schedule, expanded, costs exactly what the rules say; all others are breadth-first broadcast, scored one
    topology per task. Candidates whose cost is known by a theorem are scored last, if they are still in play.
    """
    everyone = promising(candidates)
    guesses = [candidate.spec for candidate in everyone if candidate.method == "bfb" and not candidate.exact]
    scores.compute(guesses, executor, progress)
    known = [candidate if candidate.exact else _real(candidate, scores) for candidate in everyone]
    while True:
        ahead = [candidate for group in frontier(known) for candidate in group]
        claimed = [candidate for candidate in ahead if candidate.method == "bfb" and not scores.has(candidate.spec)]
        if not claimed:
            return known
        scores.compute([candidate.spec for candidate in claimed], executor, progress)
        known = [_real(candidate, scores) if candidate in claimed else candidate for candidate in known]


def _real(candidate: Candidate, scores: Scores) -> Candidate:
    score = scores.of(candidate.spec)
    return replace(
        candidate,
        steps=score.steps,
        bandwidth_factor=score.bandwidth_factor,
        exact=True,
        least_steps=score.steps,
    )
