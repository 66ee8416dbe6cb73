"""How claims of candidates are confirmed, by size and kind."""

from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder import confirmation as module
from chorale.synth.finder.bfb_score import bfb_score
from chorale.synth.finder.candidate import TopologyCandidate, Traits
from chorale.synth.finder.confirmation import confirm
from chorale.synth.finder.find import FinderQuery, find
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology


def claim(spec: str, method: str = "bfb") -> TopologyCandidate:
    """Return a candidate with the real cost of `spec`."""
    topology = parse_topology(spec)
    if method == "bfb":
        score = bfb_score(topology)
        steps, factor = score.steps, score.bandwidth_factor
    else:
        cost = synthesize(method, topology, ALLGATHER, None, SerialExecutor()).cost
        steps, factor = cost.steps, cost.bandwidth_factor
    traits = Traits(simple=True, self_loops=False, bidirectional=False, reverse_symmetric=False)
    return TopologyCandidate(
        spec, method, topology.compute_count, topology.degree, steps, factor, True, traits, steps, factor
    )


CASES = [
    ("line(bipartite:3;2)", "bfb", "prediction"),
    ("line(circulant:9,1,2)", "bfb", "prediction"),
    ("genkautz:3,36", "bfb", "prediction"),
    ("genkautz:2,20", "bfb", "prediction"),
    ("debruijn:2,5", "bfb", "prediction"),
    ("line(diamond)", "expand", "prediction"),
    ("line(power(diamond;2))", "expand", "prediction"),
    ("genkautz:3,35", "bfb", "prediction"),
    ("circulant:9,1,2", "bfb", "none"),
]


@pytest.mark.parametrize(("spec", "method", "how"), CASES)
def test_beyond_the_size_of_schedules(monkeypatch, spec, method, how):
    """The limits are lowered, so that the same claims are confirmed by schedules too."""
    candidate = claim(spec, method)
    assert confirm(candidate, SerialExecutor()) == "schedule"
    monkeypatch.setattr(module, "automorphisms_are_transitive", lambda _topology: False)
    monkeypatch.setattr(module, "MAX_EXPANDED_RANKS", 4)
    assert confirm(candidate, SerialExecutor()) == how
    wrong = replace(candidate, bandwidth_factor=candidate.bandwidth_factor - Fraction(1, 10**6))
    if how == "prediction":
        with pytest.raises(CheckFailed, match="must have the nodes, degree, steps and factor"):
            confirm(wrong, SerialExecutor())
    with pytest.raises(CheckFailed):
        confirm(replace(candidate, nodes=candidate.nodes + 1), SerialExecutor())


def test_one_rank_is_enough_where_symmetries_reach_all(monkeypatch):
    monkeypatch.setattr(module, "MAX_WHOLE_RANKS", 4)
    candidate = claim("torus:4x5")
    assert confirm(candidate, SerialExecutor()) == "symmetric schedule"
    with pytest.raises(CheckFailed):
        confirm(replace(candidate, steps=candidate.steps - 1), SerialExecutor())
    assert confirm(claim("line(bipartite:2)"), SerialExecutor()) in ("schedule", "symmetric schedule")


def test_large_rows_say_how_they_were_confirmed():
    rows = find(FinderQuery(6000, 4), SerialExecutor()).frontier
    assert [row.confirmation for row in rows].count("none") == 0
    assert rows[0].confirmation == "prediction"
    assert rows[-1].confirmation == "symmetric schedule"
    assert [row.confirmed for row in rows] == [row.confirmation != "prediction" for row in rows]
