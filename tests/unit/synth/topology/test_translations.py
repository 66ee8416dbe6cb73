"""Groups of translations and transversals against their definitions, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology, is_automorphism
from chorale.synth.topology.translations import TranslatedLinks, Translations, Transversal
from tests.properties import random_cases

SPECS = ("a100:3", "mi250:2", "fattree:4", "dragonfly:4,2,2", "torus:4x3", "hypercube:3", "biring:4,5", "uniring:2,4")
DEPENDENT = ("twisted-torus:4x8,4", "twisted-torus:3x8,5", "twisted-torus:2x2x4", "twisted-torus:2x4x4")


def group_of(spec):
    topology = parse_topology(spec)
    generators = tuple(range(len(topology.automorphisms)))
    return topology, generators, Translations.of(topology, generators)


@random_cases(60)
@given(st.sampled_from(SPECS + DEPENDENT), st.data())
def test_elements_take_first_ranks_everywhere_add_up_and_have_inverses(spec, data):
    topology, _, group = group_of(spec)
    nodes = np.arange(topology.node_count)
    assert np.array_equal(np.sort(group.table[: group.rank_orbits].ravel()), np.arange(topology.compute_count))
    assert np.array_equal(group.table[group.orbit, group.element], nodes)
    one, other = (np.array(data.draw(st.integers(0, len(group) - 1))) for _ in range(2))
    moved = group.images(group.images(nodes, one), other)
    assert np.array_equal(moved, group.images(nodes, group.sum(one, other)))
    assert np.array_equal(group.images(moved, group.negative(group.sum(one, other))), nodes)
    if spec in SPECS:  # the first generator is an element
        first = group.images(nodes, np.array(len(group) // group.orders[0] % len(group)))
        assert np.array_equal(first, topology.automorphisms[0])


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


@pytest.mark.parametrize("spec", ["torus:4x3", "hamming:3,3", "circulant:16,3,4", "uniring:2,6", "distreg:4,10"])
def test_every_element_is_a_symmetry_that_takes_rank_0_to_its_rank(spec):
    topology = parse_topology(spec)
    transversal = Transversal.of(topology)
    elements = [transversal.element(rank) for rank in range(topology.compute_count)]
    assert [element[0] for element in elements] == list(range(topology.compute_count))
    assert all(is_automorphism(topology, element) for element in elements)
    points = np.array([0, topology.compute_count - 1, 1, 1])
    assert np.array_equal(transversal.images(points), [element[points] for element in elements])
    assert np.array_equal(transversal.parent, Transversal.of(parse_topology(spec)).parent)


def star():
    links = Links.build(Link(*ends) for node in range(2) for ends in ((node, 2), (2, node)))
    swap = np.array([1, 0, 2], dtype=np.int32)
    return Topology("star", ("0", "1", "s"), 2, links, automorphisms=(swap,))


@pytest.mark.parametrize(
    ("topology", "rule"),
    [
        (with_symmetries("torus:4x3", np.roll(np.arange(12), -3)), "take rank 0 to 4 of 12 ranks"),
        (parse_topology("mesh:3x3"), "use the column form"),
        (star(), "no switches"),
    ],
)
def test_networks_without_symmetries_that_reach_all_ranks_are_refused(topology, rule):
    with pytest.raises(InvalidInput, match=rule):
        Transversal.of(topology)
