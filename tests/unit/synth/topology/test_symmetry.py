"""Symmetries, renamings, translations, hops and components against definitions, NetworkX and brute force."""

import dataclasses
import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.topology.distance import (
    diameter,
    distances_from,
    distances_to,
    hops_along,
    require_strongly_connected,
)
from chorale.synth.topology.formats.json_document import from_json, to_json
from chorale.synth.topology.formats.networkx_graph import to_networkx
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
    connected_labels,
    is_automorphism,
    transpose,
)
from chorale.synth.topology.translations import TranslatedLinks, Translations, Transversal
from chorale.synth.verify.verify import verify
from tests.links import network, order_of
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


@given(SMALL)
def test_automorphisms_and_vertex_transitivity(topology):
    found = [image for image in permutations(range(topology.node_count)) if is_automorphism(topology, np.array(image))]
    assert found == images_of(topology)
    assert is_vertex_transitive(topology) == is_transitive(topology)


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
    for wrong in ([0, 0, 1], [0, 1], [0, 1, 3], [[0, 1, 2]]):  # no permutations
        assert not is_automorphism(parse_topology("complete:3"), np.array(wrong))


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
    assert is_found(topology) == is_vertex_transitive(topology) == is_transitive(topology)


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
    other, new_node = renamed(network, 1)
    found = isomorphism(network, other)
    assert found is not None
    assert is_carried(network, other, tuple(found.tolist()))
    assert carries(network, other, new_node)


@random_cases(150)
@given(ANY, ANY)
def test_every_answer_is_that_of_all_permutations(first, second):
    same = first.node_count == second.node_count and first.compute_count == second.compute_count
    expected = same and any(is_carried(first, second, image) for image in permutations(range(first.node_count)))
    found = isomorphism(first, second)
    assert (found is not None) == expected
    assert not expected or is_carried(first, second, tuple(found.tolist()))


def test_regular_networks_of_equal_parameters_are_told_apart():
    """The rook's graph and Shrikhande's: strongly regular, so that refinement says nothing."""

    def graph(offsets: set[tuple[int, int]]) -> Topology:
        pairs = product(product(range(4), repeat=2), offsets)
        return network(16, 0, ((4 * x + y, (x + a) % 4 * 4 + (y + b) % 4, 1) for (x, y), (a, b) in pairs))

    rook = graph({(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)})
    shrikhande = graph({(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)})
    assert isomorphism(rook, shrikhande) is None


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


@pytest.mark.parametrize(
    ("topology", "rule"),
    [
        (with_symmetries("torus:4x3", np.roll(np.arange(12), -3)), "take rank 0 to 4 of 12 ranks"),
        (parse_topology("mesh:3x3"), "use the column form"),
        (with_symmetries("switch:2,1", [1, 0, 2]), "no switches"),
    ],
)
def test_networks_without_symmetries_that_reach_all_ranks_are_refused(topology, rule):
    with pytest.raises(InvalidInput, match=rule):
        Transversal.of(topology)


@given(strongly_connected_topologies(max_nodes=10, switches=3))
def test_hop_distances(topology):
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(topology)))
    expected = np.array([[lengths[u][v] for v in topology.node_ids] for u in topology.node_ids])  # from row to column
    hops = distances_to(topology)
    assert hops.dtype == np.uint16
    assert np.array_equal(hops, expected.T)
    assert np.array_equal(distances_to(topology, np.array([1, 0])), expected.T[[1, 0]])
    assert np.array_equal(distances_from(topology, np.array([1, 0])), expected[[1, 0]])
    ranks = topology.compute_count
    assert diameter(topology) == expected[:ranks, :ranks].max()


def test_distances_beyond_sixteen_bits():
    assert diameter(parse_topology("uniring:1,70000")) == 69999


@pytest.mark.parametrize(
    ("links", "names"), [([(0, 1), (1, 0), (1, 2)], "from 2 to 0"), ([(0, 1), (1, 0), (2, 1)], "from 0 to 2")]
)
def test_missing_path_is_named(links, names):
    topology = Topology("x", ("0", "1", "2"), 3, Links.build(Link(u, v) for u, v in links))
    with pytest.raises(InvalidInput, match=f"no path {names}"):
        require_strongly_connected(topology)
    with pytest.raises(InvalidInput, match=f"no path {names}"):
        distances_to(topology)


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda ends: ends[0] != ends[1])), st.booleans())
def test_strong_connection_of_many_links(ends, both_ways):
    ends |= {(dst, src) for src, dst in ends if both_ways}
    topology = Topology("x", tuple("012345"), 6, Links.build(Link(u, v) for u, v in ends))
    graph = nx.DiGraph(ends)
    graph.add_nodes_from(range(6))
    with nullcontext() if nx.is_strongly_connected(graph) else pytest.raises(InvalidInput, match="no path"):
        require_strongly_connected(topology)


@given(st.data())
def test_hops_along_any_arcs(data):
    nodes = data.draw(st.integers(1, 70))
    node = st.integers(0, nodes - 1)
    arcs = sorted(data.draw(st.sets(st.tuples(node, node), max_size=4 * nodes)))
    offsets = np.searchsorted([tail for tail, _ in arcs], np.arange(nodes + 1)).astype(np.int64)
    hops = hops_along((offsets, np.array([head for _, head in arcs], dtype=np.int32)))
    graph = nx.DiGraph(arcs)
    graph.add_nodes_from(range(nodes))
    expected = np.full((nodes, nodes), 2**16 - 1)
    for tail, lengths in nx.all_pairs_shortest_path_length(graph):
        expected[tail, list(lengths)] = list(lengths.values())
    assert hops.dtype == np.uint16
    assert np.array_equal(hops, expected)


@pytest.mark.parametrize("spec", ["genkautz:3,700", "kautz:2,8", "torus:8x9", "hxmesh:4,5x4", "a100:40"])
def test_large_networks(spec):
    topology = parse_topology(spec)
    ranks = np.arange(topology.compute_count)
    expected = distances_from(topology, ranks)[:, : len(ranks)]
    assert diameter(topology) == diameter(dataclasses.replace(topology, automorphisms=())) == expected.max()


def test_a_wrong_symmetry_is_not_believed():
    wrong = np.array([1, 2, 3, 0], dtype=np.int32)
    assert diameter(dataclasses.replace(parse_topology("mesh:4"), automorphisms=(wrong,))) == 3


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
    order = np.random.default_rng(1).permutation(5_000)
    assert not connected_labels(len(order), order, np.roll(order, 1)).any()
