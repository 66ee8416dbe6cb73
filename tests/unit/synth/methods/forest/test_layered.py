from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from chorale.synth.methods.forest import packing
from chorale.synth.methods.forest.layered import MOST_LATE_WORK, layered_trees
from chorale.synth.methods.forest.network import ForestNetwork, Trees, forest_network, tree_heights
from chorale.synth.topology.distance import hop_distances
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.translations import Transversal
from tests.forest_networks import network_of, tight_network
from tests.reference.packed_trees import faults_of, height_of

SPECS = ("torus:6x5", "torus:3x4x2", "hypercube:4", "circulant:30,1,7", "uniring:2,7", "hamming:2,4")


def _at_its_optimum(spec: str) -> tuple[ForestNetwork, Transversal]:
    topology = parse_topology(spec)
    nodes, degree = topology.compute_count, topology.degree
    assert degree is not None
    supply = np.full(nodes, degree, dtype=np.int64)
    return forest_network(topology, Fraction(nodes - 1), supply), Transversal.of(topology)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_the_height_of_a_whole_packing_is_the_diameter(spec: str, symmetric: bool) -> None:
    network, transversal = _at_its_optimum(spec)
    trees = layered_trees(network, transversal if symmetric else None)
    assert faults_of(network, trees) == []
    assert height_of(network, trees) == hop_distances(parse_topology(spec)).max()


def test_symmetries_that_capacities_break_are_not_used() -> None:
    network, transversal = _at_its_optimum("torus:5x5")
    more = network.capacity.copy()
    more[3] += 1
    broken = replace(network, capacity=more)
    with_symmetries, without = layered_trees(broken, transversal), layered_trees(broken)
    assert np.array_equal(with_symmetries.parent_arc, without.parent_arc)
    uneven = replace(network, supply=network.supply - (np.arange(25) == 7))
    assert faults_of(uneven, layered_trees(uneven, transversal)) == []


def test_what_is_returned_fits_even_where_it_is_not_all() -> None:
    kinds = set()
    for seed in range(150):
        network = network_of(*tight_network(Random(seed)))
        trees = layered_trees(network)
        rooted = np.zeros(network.nodes, dtype=np.int64)
        np.add.at(rooted, trees.root, trees.weight)
        assert np.all(rooted <= network.supply)
        assert faults_of(replace(network, supply=rooted), trees) == []
        kinds.add((bool(len(trees)), np.array_equal(rooted, network.supply)))
    assert kinds >= {(True, True), (True, False)}


def test_neighbours_at_the_same_distance_help() -> None:
    # Node 3 is two hops from 0 by node 1 only, whose arc is too thin for both trees; node 2 is as far as 3.
    arcs = [(0, 1, 2), (1, 2, 2), (1, 3, 1), (2, 3, 1)]
    network = network_of(4, arcs, [2, 0, 0, 0])
    for numbers in ((0, 1, 2, 3), (0, 1, 3, 2)):
        renamed = network_of(4, [(numbers[a], numbers[b], c) for a, b, c in arcs], [2, 0, 0, 0])
        if len(layered_trees(renamed)) == 2:
            network = renamed
    trees = layered_trees(network)
    assert faults_of(network, trees) == []
    assert sorted(tree_heights(trees, network.src).tolist()) == [2, 3]


def test_nothing_is_tried_where_it_would_take_too_long() -> None:
    network, transversal = _at_its_optimum("torus:5x5")
    assert len(layered_trees(network)) > 0
    assert len(layered_trees(network, most_work=0)) == 0
    assert len(layered_trees(network, transversal, most_work=0)) > 0
    assert len(layered_trees(network, transversal, most_work=0, most_nodes=24)) == 0


@pytest.mark.parametrize("spec", ["torus:6x5", "circulant:30,1,7"])
def test_layers_take_over_where_growth_is_slow_on_a_network_too_large_to_begin_with_them(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = _at_its_optimum(spec)
    asked: list[int] = []

    def layers(network: ForestNetwork, _: object = None, most_work: int = 0) -> Trees:
        asked.append(most_work)
        return layered_trees(network, most_work=most_work)

    monkeypatch.setattr(packing, "layered_trees", layers)
    monkeypatch.setattr(packing, "MOST_WORK", 0)
    trees = packing.pack_trees(network)
    assert asked[:2] == [0, MOST_LATE_WORK]
    assert faults_of(network, trees) == []
    assert height_of(network, trees) == hop_distances(parse_topology(spec)).max()
