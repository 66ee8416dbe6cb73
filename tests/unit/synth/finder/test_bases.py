"""Every base costs, and is, what the finder believes of it."""

from fractions import Fraction

import pytest

from chorale.synth.finder.base_candidates import (
    DISTANCE_REGULAR_STEPS,
    BaseSources,
    database_entries,
    optimal_families,
    scored_families,
    traits_of,
)
from chorale.synth.finder.bfb_score import ScoreCache, bfb_score
from chorale.synth.topology.bases.database import load_bases
from chorale.synth.topology.spec import parse_topology


def check(candidate) -> None:
    topology = parse_topology(candidate.spec)
    assert (topology.compute_count, topology.degree) == (candidate.nodes, candidate.degree), candidate
    real = traits_of(topology)
    assert (real.simple, real.self_loops, real.bidirectional) == (
        candidate.traits.simple,
        candidate.traits.self_loops,
        candidate.traits.bidirectional,
    ), candidate
    if candidate.method == "bfb":
        score = bfb_score(topology)
        assert (score.steps, score.bandwidth_factor) == (candidate.steps, candidate.bandwidth_factor), candidate
    assert (candidate.least_steps, candidate.least_factor) == (candidate.steps, candidate.bandwidth_factor)


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 6, 8])
def test_families_keep_their_promise(degree):
    seen = set()
    for nodes in range(max(2, degree + 1), 66):
        for candidate in optimal_families(nodes, degree):
            check(candidate)
            seen.add(candidate.spec.partition(":")[0])
    assert "uniring" in seen
    expected = {1: {"complete"}, 2: {"ring", "hypercube"}, 4: {"circulant", "distreg", "hamming", "twisted-torus"}}
    assert expected.get(degree, set()) <= seen


@pytest.mark.parametrize("nodes", DISTANCE_REGULAR_STEPS)
def test_distance_regular_graphs(nodes):
    check(next(c for c in optimal_families(nodes, 4) if c.spec.startswith("distreg")))


@pytest.mark.parametrize("degree", [2, 3, 4, 5, 6])
def test_scored_families(degree):
    scores = ScoreCache()
    for nodes in range(degree + 1, 40):
        for candidate in scored_families(nodes, degree, scores, bidirectional=False):
            check(candidate)


def test_a_bidirectional_network_exists_wherever_it_can():
    sources = BaseSources(ScoreCache(), bidirectional=True)
    for degree in range(2, 9):
        for nodes in range(degree + 1, 60):
            if nodes * degree % 2 == 0:
                found = list(sources.all(nodes, degree))
                assert found, (nodes, degree)
                assert all(candidate.traits.bidirectional for candidate in found)


def test_database_entries_of_both_kinds():
    own, plain = database_entries(8, 2, ScoreCache(), paper_only=False), []
    methods = {(c.spec, c.method): c for c in own}
    assert (methods["diamond", "expand"].steps, methods["diamond", "expand"].bandwidth_factor) == (3, Fraction(7, 8))
    assert methods["diamond", "bfb"].bandwidth_factor == 1
    assert ("base:d3", "bfb") in methods
    plain = {c.spec for c in database_entries(8, 2, ScoreCache(), paper_only=True)}
    assert plain == {"diamond", "dbjmod:2,3"}


def test_all_database_entries_are_offered_once_by_their_size():
    scores = ScoreCache()
    for entry in load_bases().values():
        names = (entry.name, f"base:{entry.name}")
        offered = [c for c in database_entries(entry.nodes, entry.degree, scores, False) if c.spec in names]
        for candidate in offered:
            check(candidate)
        special = entry.name == "diamond" or entry.name.startswith("dbjmod")
        assert len(offered) == (1 if not special else 2 * (entry.name == "diamond")), entry.name
