"""The frontiers of many sizes at once: a dynamic programme over rising numbers of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from chorale.synth.executor.port import Executor
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.constructions import SeparateConstructions
from chorale.synth.finder.divisors import divisors
from chorale.synth.finder.find import Stage
from chorale.synth.finder.pareto import frontier
from chorale.synth.finder.query import FinderQuery
from chorale.synth.finder.refine import specs_to_score, with_exact_costs
from chorale.synth.finder.scores import ScoreCache
from chorale.synth.finder.sources import BaseSources


def find_all(
    queries: Sequence[FinderQuery], executor: Executor, stage: Stage | None = None
) -> dict[FinderQuery, tuple[TopologyCandidate, ...]]:
    """Return the Pareto frontier by rising steps of every query, as `find` would, the simplest of equals.

    All queries must agree in degree, bases and direction. Costs that follow from theorems or that the database
    claims are taken as they are, all others computed on the built topology; no schedule is made.
    """
    enter: Stage = stage or (lambda _name: None)
    scores = ScoreCache()
    ordered = sorted(queries, key=lambda query: query.nodes)
    first = ordered[0]
    if not first.bidirectional:
        scores.compute(_kautz_specs(ordered), executor, enter("generalized Kautz graphs"))
    constructions = SeparateConstructions(BaseSources(scores, first.bases, first.bidirectional))
    enter("constructions")
    candidates = {query: constructions.candidates(query.nodes, query.degree) for query in ordered}
    wanted = [spec for query in ordered for spec in specs_to_score(candidates[query])]
    scores.compute(wanted, executor, enter("scores"))
    return {
        query: tuple(group[0] for group in frontier(with_exact_costs(candidates[query], scores))) for query in ordered
    }


def _kautz_specs(queries: Sequence[FinderQuery]) -> list[str]:
    """Return the generalized Kautz graphs that the constructions will ask for, also for degree expansion."""
    return [
        f"genkautz:{query.degree // copies},{query.nodes // copies}"
        for query in queries
        for copies in divisors(query.degree)
        if query.nodes % copies == 0 and query.nodes // copies > query.degree // copies + 1 and copies < query.degree
    ]
