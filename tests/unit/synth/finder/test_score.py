"""Scores against the cost of verified schedules, and the kernels against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.bfb_score import BfbScore, ScoreCache, bfb_score, bfb_score_of
from chorale.synth.kernels import native
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.links import Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology


def schedule_score(topology: Topology) -> BfbScore:
    verified = synthesize("bfb", topology, ALLGATHER, None, SerialExecutor())
    assert verified.cost.bandwidth_factor is not None
    return BfbScore(verified.schedule.steps, verified.cost.bandwidth_factor)


@pytest.mark.parametrize(
    "spec",
    [
        "complete:2", "uniring:1,9", "uniring:3,4", "ring:7", "bipartite:4", "genkautz:2,30", "debruijn:2,4", "diamond",
        "genkautz:4,23", "circulant:15,1,4,5", "line(base:d3;2)", "line(bipartite:3;2)", "degree(ring:5;2)",
        "hypercube:5", "power(diamond;2)", "product(ring:5;complete:4)", "circulant:60,1,2,3,4,5", "torus:4x6",
        "base:cayley-30-4", "bidirectional(genkautz:3,17)", "distreg:4,35", "uniring:1,40", "genkautz:9,40",
        "line(uniring:2,3)",
    ],
)  # fmt: skip
def test_score_is_the_cost_of_the_schedule(spec):
    topology = parse_topology(spec)
    assert bfb_score(topology) == schedule_score(topology)


@st.composite
def regular_digraphs(draw: st.DrawFn) -> Topology:
    """Unions of permutations, the first a cycle through all nodes: self-loops and parallel links may occur."""
    nodes, degree = draw(st.integers(3, 12)), draw(st.integers(1, 4))
    cycle = draw(st.permutations(range(nodes)))
    images = [np.array(cycle)[(np.argsort(cycle) + 1) % nodes]]
    images += [np.array(draw(st.permutations(range(nodes)))) for _ in range(degree - 1)]
    links = Links.of_unit_capacity(np.tile(np.arange(nodes), degree), np.concatenate(images))
    return Topology("random", tuple(map(str, range(nodes))), nodes, links)


@given(regular_digraphs())
def test_random_networks_score_as_their_schedules_cost(topology):
    assert bfb_score(topology) == schedule_score(topology)


@pytest.mark.parametrize("degree", range(2, 10))
def test_generalized_kautz_from_arithmetic(degree):
    for nodes in [*range(degree + 1, 40), 60, 64, 65, 128, 131]:
        spec = f"genkautz:{degree},{nodes}"
        assert bfb_score_of(spec) == bfb_score(parse_topology(spec))


def test_a_high_diameter_is_told_by_no_loads():
    tails = ((np.arange(40) - 1) % 40).astype(np.int32)[:, None]
    top, bottom = native.loads_of_low_diameter(tails, np.array([0]), 38)
    assert len(top) == len(bottom) == 0
    assert native.loads_of_low_diameter(tails, np.array([0]), 39)[0].tolist() == [1] * 39


def test_irregular_and_unequal_networks_are_refused():
    for spec in ("mesh:3x3", "scaled(ring:5;link=0-1;factor=1/2)", "dbt:8"):
        with pytest.raises(InvalidInput, match="regular"):
            bfb_score(parse_topology(spec))


def test_scores_are_computed_once_and_in_any_number():
    specs = [f"ring:{nodes}" for nodes in range(3, 150)]
    scores = ScoreCache()
    scores.compute(specs + specs[:5], SerialExecutor())
    assert len(scores) == len(specs)
    assert all(scores.of(f"ring:{nodes}").steps == nodes // 2 for nodes in range(3, 150))
    assert len(scores) == len(specs)
