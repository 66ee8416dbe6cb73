"""Bounds from networks inside of others: they hold, and leaving out what they beat changes no frontier."""

from __future__ import annotations

import pytest

from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder import cost_bounds, score_cache
from chorale.synth.finder import find as find_module
from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.constructions import SeparateConstructions
from chorale.synth.finder.cost_bounds import inner_specs, with_better_bounds
from chorale.synth.finder.find import FrontierPoint, find
from chorale.synth.finder.query import FinderQuery
from chorale.synth.finder.score_cache import ScoreCache


def candidates_of(nodes: int, degree: int) -> list[TopologyCandidate]:
    return SeparateConstructions(BaseSources(ScoreCache())).candidates(nodes, degree)


@pytest.mark.parametrize(("nodes", "degree"), [(128, 4), (256, 8), (324, 6)])
def test_no_network_costs_less_than_its_bounds(monkeypatch: pytest.MonkeyPatch, nodes: int, degree: int) -> None:
    monkeypatch.setattr(cost_bounds, "MAX_INNER_NODES", 20)
    candidates = [one for one in candidates_of(nodes, degree) if one.method == "bfb"]
    scores, exact = ScoreCache(), ScoreCache()
    scores.compute(inner_specs(candidates), SerialExecutor())
    raised = 0
    for candidate in candidates:
        better = with_better_bounds(candidate, scores)
        score = exact.of(candidate.spec)
        assert candidate.least_factor <= better.least_factor <= score.bandwidth_factor
        assert candidate.least_steps <= better.least_steps <= score.steps
        raised += better != candidate
    assert raised > 0


@pytest.mark.parametrize(("nodes", "degree"), [(64, 4), (144, 4), (256, 4), (128, 8)])
def test_what_bounds_leave_out_changes_no_frontier(monkeypatch: pytest.MonkeyPatch, nodes: int, degree: int) -> None:
    """All networks are scored on the built network, then only those that bounds leave, from parts."""

    def rows() -> tuple[FrontierPoint, ...]:
        return find(FinderQuery(nodes, degree), SerialExecutor(), confirmed_nodes=0).frontier

    monkeypatch.setattr(find_module, "with_better_bounds", lambda candidate, _scores: candidate)
    monkeypatch.setattr(score_cache, "_FROM_PARTS", 10**9)
    every = rows()
    monkeypatch.undo()
    monkeypatch.setattr(cost_bounds, "MAX_INNER_NODES", 20)
    monkeypatch.setattr(score_cache, "_FROM_PARTS", 21)
    assert rows() == every
