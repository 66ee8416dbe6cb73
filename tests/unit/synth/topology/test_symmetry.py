"""Symmetries and renamings: checked, searched and found, against the definition and brute force."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.topology.formats.json_document import from_json, to_json
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import (
    is_vertex_transitive,
    isomorphism,
    symmetries_of,
    transitive_symmetries,
)
from chorale.synth.topology.topology import (
    Link,
    Links,
    Topology,
    automorphisms_are_transitive,
    carries,
    is_automorphism,
    transpose,
)
from chorale.synth.verify.verify import verify
from tests.links import order_of
from tests.properties import random_cases
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies

SMALL = strongly_connected_topologies(max_nodes=4, max_extra_links=6, bandwidths=MIXED[:2], switches=2)
ANY = st.one_of(
    strongly_connected_topologies(2, 5, switches=1, bandwidths=MIXED[:2]), strongly_connected_topologies(2, 5)
)


def is_carried(source: Topology, target: Topology, image: tuple[int, ...]) -> bool:
    """The definition: the same kinds of nodes, and the links of `source` under new names are those of `target`."""
    moved = Counter(link._replace(src=image[link.src], dst=image[link.dst]) for link in source.links)
    ranks = range(source.compute_count)
    return {image[rank] for rank in ranks} == set(range(target.compute_count)) and moved == Counter(target.links)


def images_of(network: Topology) -> list[tuple[int, ...]]:
    return [image for image in permutations(range(network.node_count)) if is_carried(network, network, image)]


def is_transitive(network: Topology) -> bool:
    return {image[0] for image in images_of(network)} == set(range(network.compute_count))


def untold(network: Topology) -> Topology:
    return replace(network, automorphisms=())


def renamed(network: Topology, seed: int) -> tuple[Topology, np.ndarray]:
    """Return `network` under random names of nodes and without its symmetries, and the new number of each node."""
    rng, ranks = np.random.default_rng(seed), network.compute_count
    new_node = np.concatenate([rng.permutation(ranks), ranks + rng.permutation(network.switch_count)])
    links = [link._replace(src=int(new_node[link.src]), dst=int(new_node[link.dst])) for link in network.links]
    names = tuple(f"n{node}" for node in range(network.node_count))
    return Topology("renamed", names, ranks, Links.build(links), network.bandwidth_unit), new_node


@given(SMALL, st.data())
def test_is_automorphism(topology, data):
    image = tuple(data.draw(st.permutations(range(topology.node_count))))
    assert is_automorphism(topology, np.array(image)) == is_carried(topology, topology, image)


@pytest.mark.parametrize("wrong", [[0, 0, 1], [0, 1], [0, 1, 3], [[0, 1, 2]]])
def test_what_is_no_permutation_is_no_automorphism(wrong):
    assert not is_automorphism(parse_topology("complete:3"), np.array(wrong))


def test_many_links_into_a_node():
    """More than are sorted by insertion; one link is faster, so its ends must stay where they are."""
    links = [Link(*pair, Fraction(2 if pair == (3, 8) else 1)) for pair in permutations(range(40), 2)]
    topology = Topology("almost complete", tuple(map(str, range(40))), 40, Links.build(links))
    order, kept = np.random.default_rng(5).permutation(40), np.arange(40)
    others = np.setdiff1d(kept, [3, 8])
    assert is_automorphism(parse_topology("complete:40"), order)
    assert not is_automorphism(topology, order)
    kept[others] = np.roll(others, 7)
    assert is_automorphism(topology, kept)


@given(SMALL)
def test_vertex_transitivity_of_random_networks(topology):
    assert is_vertex_transitive(topology) == is_transitive(topology)


@given(regular_topologies())
def test_families_are_vertex_transitive_without_being_told(spec):
    topology = parse_topology(spec)
    assert is_vertex_transitive(topology) is True
    assert is_vertex_transitive(untold(topology)) is True
    assert is_vertex_transitive(transpose(topology)) is True


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("mesh:128x128", False),
        ("without(torus:4x4;link=0-1)", False),
        ("without(circulant:8,1,4;link=0-4;link=1-5)", False),  # equal degrees, other distances
        ("torus:9x9", True),
        ("a100:8", True),
        ("mi250:2", False),
    ],
)
def test_vertex_transitivity_of_larger_networks(spec, expected):
    assert is_vertex_transitive(untold(parse_topology(spec))) is expected


def test_undecided_when_the_search_gives_up():
    """Points and lines of GQ(3, 3) look alike to links, and no symmetry takes one to the other."""
    quadrangle = parse_topology("distreg:4,80")
    assert is_vertex_transitive(quadrangle) is False
    assert is_vertex_transitive(quadrangle, tries=0) is None
    assert is_vertex_transitive(untold(parse_topology("torus:9x9")), tries=0) is True


def is_found(topology: Topology) -> bool:
    """Whether symmetries are found that take rank 0 to every rank; all that are returned do."""
    symmetries, _ = transitive_symmetries(topology)
    assert not symmetries or automorphisms_are_transitive(replace(topology, automorphisms=symmetries))
    return bool(symmetries)


@given(strongly_connected_topologies(max_nodes=5, max_extra_links=6, bandwidths=MIXED[:2]))
def test_symmetries_of_random_networks_are_found_and_their_products_are_all_of_them(topology):
    generators = symmetries_of(topology)
    assert all(is_carried(topology, topology, tuple(generator.tolist())) for generator in generators)
    assert order_of(generators, topology.node_count) == len(images_of(topology))
    assert is_found(topology) == is_transitive(topology)


@pytest.mark.parametrize(
    ("spec", "order"),
    [("torus:4x5", 80), ("hypercube:4", 384), ("debruijn:3,3", 6), ("genkautz:4,64", 24), ("genkautz:4,25", 10),
     ("mesh:3x3", 8)],
)  # fmt: skip
def test_groups_of_families_are_found_whole(spec, order):
    topology, _ = renamed(parse_topology(spec), 2)
    assert order_of(symmetries_of(topology), topology.node_count) == order


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("uniring:2,7", True), ("complete:12", True), ("torus:3x4x5", True), ("hamming:2,5", True),
     ("twisted-torus:4x8,4", True), ("product(uniring:1,4;ring:5)", True), ("cayley:8.8.7.1,40,51,17,52", True),
     ("line(complete:4)", True), ("mesh:4x4", False), ("genkautz:4,64", False), ("debruijn:2,5", False),
     ("scaled(torus:4x4;link=0-1;factor=1/2)", False)],
)  # fmt: skip
def test_families_are_recognised_whatever_their_numbers(spec, expected):
    assert [is_found(renamed(parse_topology(spec), seed)[0]) for seed in (1, 6)] == [expected] * 2


def test_a_file_without_symmetries_is_solved_for_one_rank():
    named = parse_topology("torus:32x32")
    document = json.dumps(to_json(renamed(named, 3)[0])).encode()
    topology = from_json(document)
    assert automorphisms_are_transitive(topology)
    schedule = symmetric_bfb(topology, ALLGATHER, SerialExecutor())
    assert verify(schedule).cost == verify(symmetric_bfb(named, ALLGATHER, SerialExecutor())).cost
    assert from_parquet(to_parquet(schedule), lambda _spec: from_json(document)).id == schedule.id


@pytest.mark.parametrize("spec", ["a100:2", "mi250:2", "dragonfly:4,2,2", "distreg:4,45", "genkautz:2,9"])
def test_a_renamed_network_is_recognised(spec):
    network = parse_topology(spec)
    other, _ = renamed(network, 1)
    found = isomorphism(network, other)
    assert found is not None
    assert is_carried(network, other, tuple(found.tolist()))


@random_cases(150)
@given(ANY, ANY)
def test_every_answer_is_that_of_all_permutations(first, second):
    same = first.node_count == second.node_count and first.compute_count == second.compute_count
    expected = same and any(is_carried(first, second, image) for image in permutations(range(first.node_count)))
    found = isomorphism(first, second)
    assert (found is not None) == expected
    assert not expected or is_carried(first, second, tuple(found.tolist()))


@random_cases(100)
@given(ANY, st.integers(0, 2**31))
def test_a_renaming_is_carried_and_found(network, seed):
    other, new_node = renamed(network, seed)
    assert carries(network, other, new_node)
    assert isomorphism(network, other) is not None


def test_regular_networks_of_equal_parameters_are_told_apart():
    """The rook's graph and Shrikhande's: strongly regular, so that refinement says nothing."""

    def graph(offsets: set[tuple[int, int]]) -> Topology:
        cells = list(product(range(4), repeat=2))
        pairs = [(i, j) for (i, one), (j, other) in product(enumerate(cells), repeat=2)
                 if ((other[0] - one[0]) % 4, (other[1] - one[1]) % 4) in offsets]  # fmt: skip
        return Topology("cells", tuple(map(str, range(16))), 16, Links.build(Link(*pair) for pair in pairs))

    rook = graph({(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)})
    shrikhande = graph({(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)})
    assert isomorphism(rook, shrikhande) is None
