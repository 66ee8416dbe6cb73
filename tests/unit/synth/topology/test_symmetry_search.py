"""Symmetries found: against brute force on small networks, on shuffled copies of families, and through files."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.topology.automorphism import automorphisms_are_transitive, orbits
from chorale.synth.topology.formats.json_document import from_json, to_json
from chorale.synth.topology.links import Rates, sorted_links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import symmetries_of, transitive_symmetries
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from tests.strategies import MIXED, strongly_connected_topologies
from tests.unit.synth.topology.test_symmetry import keeps_links, transitive_by_brute_force


def shuffled(topology: Topology, seed: int) -> Topology:
    """The same network with its nodes numbered at random, and no symmetries."""
    label = np.random.default_rng(seed).permutation(topology.node_count)
    links = topology.links
    rates = Rates(links.bandwidth_class, links.bandwidths, links.latency_class, links.latencies_s)
    return replace(topology, links=sorted_links(label[links.src], label[links.dst], rates), automorphisms=())


def is_found(topology: Topology) -> bool:
    """Whether symmetries are found that take rank 0 to every rank; all that are returned do."""
    symmetries = transitive_symmetries(topology)
    assert not symmetries or automorphisms_are_transitive(replace(topology, automorphisms=symmetries))
    return bool(symmetries)


@given(strongly_connected_topologies(max_nodes=4, max_extra_links=6, bandwidths=MIXED[:2]))
def test_symmetries_of_random_networks_are_found_where_there_are_any(topology):
    assert is_found(topology) == transitive_by_brute_force(topology)


def order_of(generators: tuple[np.ndarray, ...], nodes: int) -> int:
    """How many products of `generators` there are."""
    reached = {tuple(range(nodes))}
    new = list(reached)
    while new:
        product = new.pop()
        for generator in generators:
            image = tuple(int(generator[node]) for node in product)
            if image not in reached:
                reached.add(image)
                new.append(image)
    return len(reached)


@given(strongly_connected_topologies(max_nodes=5, max_extra_links=6, bandwidths=MIXED[:2]))
def test_all_symmetries_of_random_networks_are_products_of_those_found(topology):
    images = [image for image in permutations(range(topology.node_count)) if keeps_links(topology, image)]
    generators = symmetries_of(topology)
    assert all(keeps_links(topology, tuple(generator.tolist())) for generator in generators)
    assert order_of(generators, topology.node_count) == len(images)


@pytest.mark.parametrize(
    ("spec", "order"),
    [("ring:9", 18), ("torus:4x5", 80), ("hypercube:4", 384), ("complete:5", 120), ("debruijn:3,3", 6),
     ("genkautz:4,64", 24), ("genkautz:4,25", 10), ("mesh:3x3", 8), ("mesh:2x5", 4)],
)  # fmt: skip
def test_groups_of_families_are_found_whole(spec, order):
    topology = shuffled(parse_topology(spec), 2)
    assert order_of(symmetries_of(topology), topology.node_count) == order


def test_kinds_of_ranks_of_a_large_network_are_told_apart_exactly():
    topology = shuffled(parse_topology("mesh:8x8"), 5)
    assert len(set(orbits(64, symmetries_of(topology)).tolist())) == 10


SYMMETRIC = (
    "ring:9", "uniring:2,7", "complete:12", "bipartite:5", "torus:4x6", "torus:3x4x5", "hypercube:6", "hamming:2,5",
    "circulant:40,4,5", "twisted-torus:4x8,4", "product(uniring:1,4;ring:5)", "kautz:2,1",
    "cayley:8.8.7.1,40,51,17,52", "line(complete:4)",
)  # fmt: skip


@pytest.mark.parametrize("spec", SYMMETRIC)
@given(seed=st.integers(0, 9))
def test_families_are_recognised_whatever_their_numbers(spec, seed):
    assert is_found(shuffled(parse_topology(spec), seed))


@pytest.mark.parametrize(
    "spec", ["mesh:4x4", "genkautz:4,64", "debruijn:2,5", "distreg:4,26", "scaled(torus:4x4;link=0-1;factor=1/2)"]
)
def test_networks_whose_ranks_differ_have_none(spec):
    topology = shuffled(parse_topology(spec), 1)
    assert is_found(topology) == (spec == "distreg:4,26" and automorphisms_are_transitive(parse_topology(spec)))


def test_a_file_without_symmetries_is_solved_for_one_rank():
    named = parse_topology("torus:32x32")
    document = json.dumps(to_json(shuffled(named, 3))).encode()
    topology = from_json(document)
    assert automorphisms_are_transitive(topology)
    schedule = symmetric_bfb(topology, ALLGATHER, SerialExecutor())
    cost = verify(schedule).cost
    assert cost == verify(symmetric_bfb(named, ALLGATHER, SerialExecutor())).cost
    again = from_parquet(to_parquet(schedule), lambda _spec: from_json(document))
    assert again.id == schedule.id
