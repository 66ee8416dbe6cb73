"""Groups of translations and transversals against their definitions, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks, Translations, Transversal
from tests.properties import random_cases

SPECS = ("a100:3", "mi250:2", "fattree:4", "dragonfly:4,2,2", "torus:4x3", "hypercube:3", "biring:4,5", "uniring:2,4")
DEPENDENT = ("twisted-torus:4x8,4", "twisted-torus:3x8,5", "twisted-torus:2x2x4", "twisted-torus:2x4x4")


def group_of(spec):
    topology = parse_topology(spec)
    generators = tuple(range(len(topology.automorphisms)))
    return topology, generators, Translations.of(topology, generators)


@pytest.mark.parametrize("spec", SPECS + DEPENDENT)
def test_one_element_takes_each_first_rank_to_each_rank_of_its_orbit(spec):
    topology, _, group = group_of(spec)
    assert group.table.shape[1] == len(group)
    ranks = np.sort(group.table[: group.rank_orbits].ravel())
    assert np.array_equal(ranks, np.arange(topology.compute_count))
    nodes = np.arange(topology.node_count)
    assert np.array_equal(group.table[group.orbit, group.element], nodes)


@random_cases(60)
@given(st.sampled_from(SPECS + DEPENDENT), st.data())
def test_elements_add_up_and_have_inverses(spec, data):
    topology, _, group = group_of(spec)
    one, other = (data.draw(st.integers(0, len(group) - 1)) for _ in range(2))
    nodes = np.arange(topology.node_count)
    moved = group.images(group.images(nodes, np.array(one)), np.array(other))
    assert np.array_equal(moved, group.images(nodes, group.sum(np.array(one), np.array(other))))
    assert np.array_equal(group.images(moved, group.negative(group.sum(np.array(one), np.array(other)))), nodes)


@pytest.mark.parametrize("spec", SPECS)
def test_the_first_generator_is_an_element(spec):
    topology, _, group = group_of(spec)
    stride = len(group) // group.orders[0]
    moved = group.images(np.arange(topology.node_count), np.array(stride % len(group)))
    assert np.array_equal(moved, topology.automorphisms[0])


@random_cases(40)
@given(st.sampled_from(SPECS + DEPENDENT), st.integers(0, 2**32 - 1))
def test_totals_are_the_sums_over_all_preimages(spec, seed):
    topology, generators, group = group_of(spec)
    moves = TranslatedLinks.of(topology, generators, group)
    base = np.random.default_rng(seed).integers(0, 5, len(topology.links))
    links = np.arange(len(topology.links))
    expected = np.zeros(len(links), dtype=np.int64)
    for element in range(len(group)):
        images = moves.images(links, np.array(element))
        assert np.array_equal(np.sort(images), links)
        assert np.array_equal(topology.links.bandwidth_class[images], topology.links.bandwidth_class)
        expected[images] += base
    assert np.array_equal(moves.totals(base), expected)


def refusal(topology, generators):
    with pytest.raises(InvalidInput) as error:
        Translations.of(topology, generators)
    return error.value.value


def with_symmetries(spec, *moves):
    return replace(parse_topology(spec), automorphisms=tuple(np.array(move, dtype=np.int32) for move in moves))


def test_symmetries_that_are_no_translations_are_refused():
    turn, mirror, other = [1, 2, 3, 4, 0], [0, 4, 3, 2, 1], [4, 3, 2, 1, 0]
    assert "do not commute" in refusal(with_symmetries("ring:5", turn, mirror), (0, 1))
    assert "keep rank 0 in its place" in refusal(with_symmetries("ring:5", mirror), (0,))
    assert "keep a rank in its place" in refusal(with_symmetries("ring:5", other), (0,))


def test_dependent_symmetries_generate_what_they_do_together():
    half, quarter, odd = (np.roll(np.arange(16), -shift) for shift in (8, 4, 3))
    topology = with_symmetries("ring:16", half, quarter, odd)
    assert [len(Translations.of(topology, some)) for some in ((0, 1), (1, 0), (0, 1, 2), (2, 0))] == [4, 4, 16, 16]
    group = Translations.of(topology, (0, 1, 2))
    assert group.orders == (2, 2, 4)  # a quarter twice is a half; three steps four times are three quarters
    assert group.carries.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]


def test_a_symmetry_that_moves_switches_longer_than_ranks_is_refused():
    topology = parse_topology("fattree:4")
    cores = [topology.node_ids.index(name) for name in ("core:0.0", "core:0.1")]
    swap = np.arange(topology.node_count, dtype=np.int32)
    swap[cores] = cores[::-1]
    edges = topology.automorphisms[1]  # brings every host back after two moves, and with this every core switch, too
    assert len(Translations.of(replace(topology, automorphisms=(edges[swap],)), (0,))) == 2
    turned = np.array(edges)
    three = [topology.node_ids.index(name) for name in ("core:0.0", "core:0.1", "core:1.0")]
    turned[three] = np.roll(three, 1)
    assert "move other nodes" in refusal(replace(topology, automorphisms=(turned,)), (0,))


TRANSITIVE = [
    "torus:4x3",
    "hypercube:4",
    "hamming:3,3",
    "circulant:16,3,4",
    "uniring:2,6",
    "bipartite:3",
    "distreg:4,10",
]


@pytest.mark.parametrize("spec", TRANSITIVE)
def test_every_element_is_a_symmetry_that_takes_rank_0_to_its_rank(spec):
    topology = parse_topology(spec)
    transversal = Transversal.of(topology)
    for rank in range(topology.compute_count):
        element = transversal.element(rank)
        assert element[0] == rank
        assert is_automorphism(topology, element)


@pytest.mark.parametrize("spec", TRANSITIVE)
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
