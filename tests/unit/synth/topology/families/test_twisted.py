"""Twisted tori and cubes against their definitions by coordinates."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal
from tests.links import both_directions, links_of


@given(st.data())
def test_two_dimensions(data):
    a, b = data.draw(st.integers(2, 6)), data.draw(st.integers(2, 6))
    twist = data.draw(st.integers(0, b - 1))
    topology = parse_topology(f"twisted-torus:{a}x{b},{twist}")
    edges = []
    for x, y in itertools.product(range(a), range(b)):
        down = (x + 1, y) if x + 1 < a else (0, (y + twist) % b)
        if x == 0 or (a, twist) != (2, 0):  # a dimension of 2 is one pair of links, not one there and one on
            edges.append((x * b + y, down[0] * b + down[1]))
        if y == 0 or b != 2:
            edges.append((x * b + y, x * b + (y + 1) % b))
    assert links_of(topology) == both_directions(edges)


@pytest.mark.parametrize("shape", ["3x5", "4x2", "2x2", "2x3"])
def test_without_a_twist_it_is_the_torus(shape):
    assert parse_topology(f"twisted-torus:{shape},0").id == parse_topology(f"torus:{shape}").id


@pytest.mark.parametrize("k", range(2, 7))
@pytest.mark.parametrize("kind", ["face-centred", "body-centred"])
def test_tpu_v4_forms_are_the_cubic_lattices(k, kind):
    """Nodes are points of Z^3 up to a lattice: two points are linked where they differ by a unit vector."""
    if kind == "face-centred":
        sizes, lattice = (k, k, 2 * k), [(k, 0, k), (0, k, k), (0, 0, 2 * k)]
    else:
        sizes, lattice = (k, 2 * k, 2 * k), [(k, k, k), (0, 2 * k, 0), (0, 0, 2 * k)]
    topology = parse_topology("twisted-torus:" + "x".join(map(str, sizes)))
    edges = []
    for point in np.ndindex(*sizes):
        for axis in range(3):
            moved = list(point)
            moved[axis] += 1
            for vector, size, place in zip(lattice, sizes, range(3), strict=True):
                while moved[place] >= size:
                    moved = [here - there for here, there in zip(moved, vector, strict=True)]
                while moved[place] < 0:
                    moved = [here + there for here, there in zip(moved, vector, strict=True)]
            edges.append(tuple(int(np.ravel_multi_index(p, sizes)) for p in (point, moved)))
    assert links_of(topology) == both_directions(edges)
    assert (topology.degree, diameter(topology)) == (6, 3 * k // 2)


@pytest.mark.parametrize("n", range(3, 8))
def test_twisted_hypercube(n):
    cube = nx.convert_node_labels_to_integers(nx.hypercube_graph(n), ordering="sorted")
    z = 2**n - 1
    cube.remove_edges_from([(z - 3, z - 2), (z - 1, z)])
    cube.add_edges_from([(z - 3, z), (z - 2, z - 1)])
    topology = parse_topology(f"twisted-hypercube:{n}")
    assert links_of(topology) == both_directions(cube.edges)
    assert (topology.degree, diameter(topology)) == (n, n - 1)


@pytest.mark.parametrize("k", range(2, 9))
def test_bfb_is_optimal_on_k_by_2k(k):
    spec = f"twisted-torus:{k}x{2 * k},{k}"
    assert bfb_cost(spec)[0] == k
    assert is_bandwidth_optimal(spec)


@pytest.mark.parametrize(
    "spec",
    ["twisted-hypercube:3", "twisted-torus:2x2x4", "twisted-torus:3x6x6", "twisted-torus:4x4x8", "twisted-torus:4x8x8"],
)
def test_bfb_is_optimal(spec):
    assert is_bandwidth_optimal(spec)


def test_bfb_is_not_optimal_on_larger_twisted_cubes():
    assert not is_bandwidth_optimal("twisted-hypercube:4")


SYNTAX = "write twisted-torus:AxB,s or twisted-torus:AxBxC"


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("4x8", "twisted-torus without s must have the shape k x k x 2k or k x 2k x 2k, got {}; " + SYNTAX),
        ("8x4x4", "twisted-torus without s must have the shape k x k x 2k or k x 2k x 2k, got {}; " + SYNTAX),
        ("4x8,8", "the twist s of twisted-torus:AxB,s must be below B, got {}; " + SYNTAX),
        ("4x4x8,4", "only a twisted torus of two dimensions takes a twist s, got {}; " + SYNTAX),
        ("1x1x2", "every dimension of twisted-torus must be >= 2, got {}; " + SYNTAX),
        ("4x8,1,2", "twisted-torus must have one twist s, got {}; " + SYNTAX),
    ],
)
def test_malformed(spec, error):
    with pytest.raises(InvalidInput) as caught:
        parse_topology(f"twisted-torus:{spec}")
    assert str(caught.value).startswith(error.format(f"twisted-torus:{spec}"))


@pytest.mark.parametrize("n", [2, 21])
def test_twisted_hypercubes_have_limits(n):
    with pytest.raises(InvalidInput, match="twisted-hypercube:n must have n"):
        parse_topology(f"twisted-hypercube:{n}")
