"""Groups of translations: the law of the group, where they move nodes and links, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.translations import TranslatedLinks, Translations
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
