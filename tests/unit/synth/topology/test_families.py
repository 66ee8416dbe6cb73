"""Families: counts, degrees, distances and symmetries, against formulas and NetworkX."""

import math
import time
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism, orbits
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.strategies import regular_topologies


def links_of(topology: Topology) -> Counter[tuple[int, int]]:
    return Counter(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))


def directed(graph: nx.Graph) -> Counter[tuple[int, int]]:
    return Counter(list(graph.to_directed().edges()))


@given(st.integers(3, 40))
def test_ring(m):
    ring = parse_topology(f"ring:{m}")
    assert links_of(ring) == directed(nx.cycle_graph(m))
    assert (ring.degree, diameter(ring)) == (2, m // 2)
    assert ring.id == parse_topology(f"torus:{m}").id == parse_topology(f"biring:2,{m}").id


@given(st.sampled_from([2, 4, 6]), st.integers(3, 12))
def test_biring_has_half_of_its_links_to_each_neighbour(d, m):
    assert links_of(parse_topology(f"biring:{d},{m}")) == Counter(
        {pair: d // 2 for pair in nx.cycle_graph(m).to_directed().edges()}
    )


@given(st.integers(1, 5), st.integers(2, 12))
def test_uniring(d, m):
    uniring = parse_topology(f"uniring:{d},{m}")
    assert links_of(uniring) == Counter({(i, (i + 1) % m): d for i in range(m)})
    assert (uniring.degree, diameter(uniring)) == (d, m - 1)


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.booleans())
def test_torus_and_mesh(sizes, periodic):
    topology = parse_topology(("torus:" if periodic else "mesh:") + "x".join(map(str, sizes)))
    graph = nx.grid_graph(dim=sizes[::-1], periodic=periodic)
    ranks = {node: int(np.ravel_multi_index(node, sizes)) for node in graph} if len(sizes) > 1 else {}
    assert links_of(topology) == directed(nx.relabel_nodes(graph, ranks))
    assert diameter(topology) == sum(size // 2 if periodic else size - 1 for size in sizes)
    if periodic:
        assert topology.degree == sum(1 if size == 2 else 2 for size in sizes)


@pytest.mark.parametrize("n", range(1, 7))
def test_hypercube(n):
    cube = parse_topology(f"hypercube:{n}")
    graph = nx.hypercube_graph(n)
    ranks = {node: int("".join(map(str, node)), 2) for node in graph} if n > 1 else {}
    assert links_of(cube) == directed(nx.relabel_nodes(graph, ranks))
    assert (cube.degree, diameter(cube)) == (n, n)


def test_dimensions_of_two_are_single_pairs_of_links():
    assert parse_topology("torus:2x2x2").id == parse_topology("hypercube:3").id == parse_topology("mesh:2x2x2").id


@pytest.mark.parametrize("m", range(2, 9))
def test_complete(m):
    assert links_of(parse_topology(f"complete:{m}")) == directed(nx.complete_graph(m))


@pytest.mark.parametrize("d", range(1, 7))
def test_bipartite(d):
    assert links_of(parse_topology(f"bipartite:{d}")) == directed(nx.complete_bipartite_graph(d, d))


@given(st.data())
def test_circulant(data):
    n = data.draw(st.integers(2, 30))
    halves = data.draw(st.sets(st.integers(1, n // 2), min_size=1).filter(lambda a: math.gcd(n, *a) == 1))
    offsets = [data.draw(st.sampled_from([a, n - a])) for a in sorted(halves)]
    topology = parse_topology(f"circulant:{n}," + ",".join(map(str, offsets)))
    assert links_of(topology) == directed(nx.circulant_graph(n, sorted(halves)))
    assert topology.degree == sum(1 if 2 * a == n else 2 for a in halves)


@given(regular_topologies())
def test_known_symmetries_hold_and_act_regularly(spec):
    topology = parse_topology(spec)
    count = topology.compute_count
    assert all(is_automorphism(topology, generator) for generator in topology.automorphisms)
    assert automorphisms_are_transitive(topology)
    group = generated_group([tuple(generator.tolist()) for generator in topology.automorphisms])
    assert len(group) == count  # transitive and as large as the network, so regular
    assert topology.degree is not None
    assert topology.is_eulerian


def generated_group(generators: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    identity = tuple(range(len(generators[0])))
    group, new = {identity}, [identity]
    while new:
        member = new.pop()
        for generator in generators:
            product = tuple(generator[image] for image in member)
            if product not in group:
                group.add(product)
                new.append(product)
    return group


def test_orbits():
    rotation_of_even_ranks = np.array([2, 1, 0, 3])
    assert len(set(orbits(4, [rotation_of_even_ranks]).tolist())) == 3


@pytest.mark.parametrize("spec", ["torus:128x128", "hypercube:14", "complete:1000", "circulant:100000,7,11"])
def test_large_networks_are_built_in_well_under_a_second(spec):
    start_s = time.process_time()
    parse_topology(spec)
    assert time.process_time() - start_s < 1.5
