"""Transversals against their definition: a symmetry for every rank that takes rank 0 there."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import Transversal

SPECS = ["torus:4x3", "hypercube:4", "hamming:3,3", "circulant:16,3,4", "uniring:2,6", "bipartite:3", "distreg:4,10"]


@pytest.mark.parametrize("spec", SPECS)
def test_every_element_is_a_symmetry_that_takes_rank_0_to_its_rank(spec):
    topology = parse_topology(spec)
    transversal = Transversal.of(topology)
    for rank in range(topology.compute_count):
        element = transversal.element(rank)
        assert element[0] == rank
        assert is_automorphism(topology, element)


@pytest.mark.parametrize("spec", SPECS)
def test_images_are_those_of_the_elements(spec):
    topology = parse_topology(spec)
    transversal = Transversal.of(topology)
    points = np.array([0, topology.compute_count - 1, 1, 1])
    expected = [transversal.element(rank)[points] for rank in range(topology.compute_count)]
    assert np.array_equal(transversal.images(points), expected)


def test_the_same_topology_gives_the_same_tree():
    first, second = (Transversal.of(parse_topology("hamming:3,3")) for _ in range(2))
    assert np.array_equal(first.parent, second.parent)
    assert np.array_equal(first.move, second.move)


def test_symmetries_that_leave_ranks_out_are_refused():
    torus = parse_topology("torus:4x3")
    with pytest.raises(InvalidInput, match="take rank 0 to 4 of 12 ranks"):
        Transversal.of(replace(torus, automorphisms=(rows_onward(4, 3),)))


def rows_onward(rows, columns):
    return np.roll(np.arange(rows * columns, dtype=np.int32).reshape(rows, columns), -1, axis=0).ravel()


def test_networks_without_known_symmetries_are_refused():
    with pytest.raises(InvalidInput, match="use the column form"):
        Transversal.of(parse_topology("mesh:3x3"))


def test_networks_with_switches_are_refused():
    links = Links.build(Link(*ends) for node in range(2) for ends in ((node, 2), (2, node)))
    swap = np.array([1, 0, 2], dtype=np.int32)
    with pytest.raises(InvalidInput, match="no switches"):
        Transversal.of(Topology("star", ("0", "1", "s"), 2, links, automorphisms=(swap,)))
