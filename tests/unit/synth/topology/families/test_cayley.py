"""Cayley digraphs against the group law by coordinates; directed circulants."""

import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.spec import parse_topology
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal, moore_steps
from tests.links import links_of

GROUPS = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(0, 6), st.integers(1, 3)).filter(
    lambda numbers: SemidirectProduct(*numbers).is_group and 1 < numbers[0] * numbers[1] * numbers[3] <= 40
)


@given(GROUPS)
def test_group_axioms(numbers):
    group = SemidirectProduct(*numbers)
    elements = np.arange(group.order)
    table = group.product(elements[:, None], elements[None, :])
    assert np.array_equal(np.sort(table, axis=0), np.repeat(elements[:, None], group.order, axis=1))
    assert np.array_equal(table[0], elements)
    assert np.array_equal(table[:, 0], elements)
    assert np.array_equal(table[table], table[:, table])  # (x y) z = x (y z)


@given(GROUPS, st.data())
def test_links_follow_the_law_by_coordinates(numbers, data):
    m, k, r, l = numbers  # noqa: E741
    order = m * k * l
    wanted = data.draw(st.sets(st.integers(1, order - 1), min_size=1, max_size=4))
    generators = sorted(wanted | set(SemidirectProduct(*numbers).generating_set))
    topology = parse_topology(f"cayley:{m}.{k}.{r}.{l}," + ",".join(map(str, generators)))
    elements = list(itertools.product(range(m), range(k), range(l)))
    expected = Counter()
    for rank, (a, b, c) in enumerate(elements):
        for generator in generators:
            a2, b2, c2 = elements[generator]
            expected[rank, elements.index(((a + r**b * a2) % m, (b + b2) % k, (c + c2) % l))] += 1
    assert links_of(topology) == expected
    assert topology.degree == len(generators)
    assert all(is_automorphism(topology, translation) for translation in topology.automorphisms)
    assert automorphisms_are_transitive(topology)


def test_three_numbers_leave_the_third_factor_out():
    assert parse_topology("cayley:16.8.3,92,101,77,122").id == parse_topology("cayley:16.8.3.1,92,101,77,122").id
    assert parse_topology("cayley:9.1.1,1,8").id == parse_topology("ring:9").id


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("cayley:8.2.7.2,18,27,8,20", 3),
        ("cayley:8.8.7.1,40,51,17,52", 4),
        ("cayley:16.8.3.1,92,101,77,122", 4),
        ("cayley:16.8.11.2,248,44,75,178", 5),
        ("cayley:32.8.3.4,292,332,42,331", 7),
    ],
)
def test_found_generators_are_bandwidth_optimal(spec, steps):
    assert bfb_cost(spec)[0] == steps
    assert is_bandwidth_optimal(spec)


@pytest.mark.parametrize("d", range(1, 9))
def test_dicirculant(d):
    spec = f"dicirculant:{d}"
    topology = parse_topology(spec)
    reference = nx.complement(nx.DiGraph([(i, (i + d + 1) % (d + 2)) for i in range(d + 2)]))
    assert links_of(topology) == Counter(list(reference.edges))
    assert diameter(topology) == bfb_cost(spec)[0] == moore_steps(d + 2, d) == 2
    assert is_bandwidth_optimal(spec)


def test_dicirculant_needs_a_degree():
    with pytest.raises(InvalidInput, match="dicirculant:d must have a degree d >= 1"):
        parse_topology("dicirculant:0")
