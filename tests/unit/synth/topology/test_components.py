"""Connected components against NetworkX."""

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import connected_labels


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40))
def test_labels_number_components_by_their_first_nodes(count, edges):
    edges = [(one % count, other % count) for one, other in edges]
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(count))
    expected = np.empty(count, dtype=np.int32)
    for number, component in enumerate(sorted(nx.connected_components(graph), key=min)):
        expected[list(component)] = number
    src, dst = (np.array([edge[end] for edge in edges], dtype=np.int64) for end in (0, 1))
    labels = connected_labels(count, src, dst)
    assert labels.dtype == np.int32
    assert np.array_equal(labels, expected)


def test_long_rings_in_any_order_are_one_component():
    order = np.random.default_rng(1).permutation(20_000)
    assert not connected_labels(len(order), order, np.roll(order, 1)).any()
