"""Products of complete graphs against NetworkX."""

from functools import reduce

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal, moore_steps
from tests.links import both_directions, links_of


def product_of_complete_graphs(sizes: list[int]) -> nx.Graph:
    product = reduce(nx.cartesian_product, [nx.complete_graph(size) for size in sizes])
    return nx.convert_node_labels_to_integers(product)


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3))
def test_hyperx(sizes):
    topology = parse_topology("hyperx:" + "x".join(map(str, sizes)))
    assert links_of(topology) == both_directions(product_of_complete_graphs(sizes).edges)
    assert (topology.degree, diameter(topology)) == (sum(sizes) - len(sizes), len(sizes))


@given(st.integers(1, 3), st.integers(2, 4))
def test_hamming_is_the_equal_sided_hyperx(n, q):
    assert parse_topology(f"hamming:{n},{q}").id == parse_topology("hyperx:" + "x".join([str(q)] * n)).id
    assert is_bandwidth_optimal(f"hamming:{n},{q}")


@pytest.mark.parametrize("spec", ["hyperx:3x4", "hyperx:2x3x4", "hamming:2,5"])
def test_bfb_is_optimal(spec):
    assert is_bandwidth_optimal(spec)


def test_two_letters_make_a_hypercube_and_squares_are_moore_optimal():
    assert parse_topology("hamming:4,2").id == parse_topology("hypercube:4").id
    assert bfb_cost("hamming:2,4")[0] == moore_steps(16, 6) == 2
