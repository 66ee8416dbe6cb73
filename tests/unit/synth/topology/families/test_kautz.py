"""Kautz, generalized Kautz and de Bruijn graphs against words, and against each other."""

import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from tests.bfb_cost import bfb_cost, moore_steps
from tests.links import graph_of, links_of


def shifts(words: list[tuple[int, ...]]) -> Counter[tuple[int, int]]:
    """A word is linked to those that drop its first letter and append one."""
    return Counter(
        (i, j) for (i, one), (j, other) in itertools.product(enumerate(words), repeat=2) if one[1:] == other[:-1]
    )


@given(st.integers(2, 3), st.integers(0, 3))
def test_kautz(d, n):
    words = [
        word
        for word in itertools.product(range(d + 1), repeat=n + 1)
        if all(one != other for one, other in itertools.pairwise(word))
    ]
    topology = parse_topology(f"kautz:{d},{n}")
    links = links_of(topology)
    assert links == (shifts(words) if n else Counter(itertools.permutations(range(d + 1), 2)))
    assert (topology.compute_count, topology.degree, diameter(topology)) == (d**n * (d + 1), d, n + 1)
    assert all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)


@pytest.mark.parametrize(("d", "n"), [(2, 1), (2, 3), (3, 2)])
def test_kautz_is_the_iterated_line_graph_and_a_generalized_kautz_graph(d, n):
    kautz = parse_topology(f"kautz:{d},{n}")
    assert kautz.id == parse_topology(f"line(complete:{d + 1};{n})").id
    generalized = parse_topology(f"genkautz:{d},{d**n * (d + 1)}")
    assert nx.is_isomorphic(nx.DiGraph(graph_of(kautz)), nx.DiGraph(graph_of(generalized)))
    assert set(links_of(generalized).values()) == {1}


@given(st.data())
def test_genkautz(data):
    d = data.draw(st.integers(2, 5))
    m = data.draw(st.integers(d + 1, 60))
    topology = parse_topology(f"genkautz:{d},{m}")
    assert links_of(topology) == Counter((x, (-d * x - a) % m) for x in range(m) for a in range(1, d + 1))
    assert topology.degree == d
    assert all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)
    loops = np.count_nonzero(topology.links.src == topology.links.dst)
    assert (loops == 0) == (m % (d + 1) == 0)


@pytest.mark.parametrize("d", [4, *(pytest.param(d, marks=pytest.mark.slow) for d in (2, 3, 8))])
def test_bfb_on_generalized_kautz_needs_at_most_one_step_more_than_the_moore_bound(d):
    for m in range(d + 1, 120):
        steps, factor = bfb_cost(f"genkautz:{d},{m}")
        assert steps <= moore_steps(m, d) + 1
        assert factor is not None
        assert factor < 2


@pytest.mark.parametrize(
    ("spec", "steps"), [("kautz:2,3", 4), ("kautz:4,2", 3), ("debruijn:2,4", 4), ("debruijn:4,2", 2)]
)
def test_bfb_is_moore_optimal(spec, steps):
    topology = parse_topology(spec)
    assert topology.degree is not None
    assert bfb_cost(spec)[0] == steps == moore_steps(topology.compute_count, topology.degree)


@pytest.mark.parametrize(
    ("spec", "steps", "factor"),
    [
        ("kautz:4,2", 3, "21/20"),
        ("genkautz:4,64", 3, "21/16"),
        ("genkautz:4,1024", 5, "341/256"),
        ("debruijn:2,3", 3, "7/4"),
        ("debruijn:2,4", 4, "15/8"),
        ("debruijn:4,2", 2, "5/4"),
        ("debruijn:4,4", 4, "85/64"),
    ],
)
def test_published_costs(spec, steps, factor):
    found_steps, found_factor = bfb_cost(spec)
    assert (found_steps, str(found_factor)) == (steps, factor)


@given(st.integers(2, 4), st.integers(1, 3))
def test_debruijn(d, n):
    topology = parse_topology(f"debruijn:{d},{n}")
    words = list(itertools.product(range(d), repeat=n))
    assert links_of(topology) == shifts(words)
    assert (topology.degree, diameter(topology)) == (d, n)
    assert np.count_nonzero(topology.links.src == topology.links.dst) == d
    assert all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)
