"""Products of complete graphs against NetworkX, and HammingMesh against its definition by boards."""

from collections import Counter
from functools import reduce

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import is_automorphism, orbits
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.families.complete import plan_hxmesh
from chorale.synth.topology.grammar import parse_spec
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


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_links_by_name(b, x, y):
    if b * x * b * y < 2:
        return
    topology = parse_topology(f"hxmesh:{b},{x}x{y}")
    ids = topology.node_ids
    found = Counter((ids[link.src], ids[link.dst]) for link in topology.links)
    expected: Counter[tuple[str, str]] = Counter()
    rows, columns = b * x, b * y
    for row in range(rows):
        for column in range(columns):
            here = str(row * columns + column)
            for other_row, other_column in ((row, column + 1), (row + 1, column)):
                same_board = (row // b, column // b) == (other_row // b, other_column // b)
                if other_row < rows and other_column < columns and same_board:
                    add(expected, here, str(other_row * columns + other_column))
            for port in (0, b - 1):
                if y > 1 and column % b == port:
                    add(expected, here, f"row:{row}")
                if x > 1 and row % b == port:
                    add(expected, here, f"column:{column}")
    assert found == expected
    assert topology.compute_count == rows * columns
    if x > 1 and y > 1:
        assert topology.degree == 4
    plan = plan_hxmesh(parse_spec(f"hxmesh:{b},{x}x{y}"))
    assert (plan.nodes, plan.links) == (topology.node_count, len(topology.links))


def add(links: Counter[tuple[str, str]], one: str, other: str) -> None:
    links[one, other] += 1
    links[other, one] += 1


def test_one_board_is_a_mesh():
    assert parse_topology("hxmesh:4,1x1").id == parse_topology("mesh:4x4").id


def test_boards_of_one_node_meet_in_switches_twice():
    topology = parse_topology("hxmesh:1,2x3")
    assert topology.switch_count == 5
    assert topology.node_ids[6:] == ("row:0", "row:1", "column:0", "column:1", "column:2")


@pytest.mark.parametrize(("spec", "moves"), [("2,2x3", 2), ("1,4x4", 2), ("3,1x4", 1), ("3,4x1", 1), ("4,1x1", 0)])
def test_boards_may_change_places(spec, moves):
    topology = parse_topology(f"hxmesh:{spec}")
    assert len(topology.automorphisms) == moves
    assert all(is_automorphism(topology, move) for move in topology.automorphisms)
    b, boards = int(spec[0]), (int(spec[2]), int(spec[4]))
    assert len(np.unique(orbits(topology.node_count, topology.automorphisms)[: topology.compute_count])) == b * b
    assert topology.compute_count == b * b * boards[0] * boards[1]
