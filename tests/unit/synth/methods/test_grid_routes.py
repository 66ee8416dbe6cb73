"""The grid of ranks as the spec describes it, and routes: paths of fewest links that split where two ways are equal."""

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.methods.grid.pattern import PairRoutes, TorusLinks, minimal_paths, pair_routes
from chorale.synth.methods.grid.steps import grid_shape
from chorale.synth.topology.distance import distances_from
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.strategies import strongly_connected_topologies


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("torus:4x3x2", (4, 3, 2)),
        ("mesh:3x5", (3, 5)),
        ("hypercube:3", (2, 2, 2)),
        ("hamming:3,4", (4, 4, 4)),
        ("hxmesh:2,3x4", (6, 8)),
        ("ring:9", (9,)),
        ("scaled(torus:4x4;link=0-1;factor=1/2)", (4, 4)),
        ("without(torus:4x4;node=3)", (15,)),
        ("line(bipartite:4)", (32,)),
    ],
)
def test_shapes(spec, shape):
    assert grid_shape(parse_topology(spec)) == shape


@pytest.mark.parametrize("name", ["a network", "file:torus.json", ""])
def test_networks_without_a_spec_are_lines(name):
    topology = Topology(name, ("0", "1"), 2, Links.build([Link(0, 1), Link(1, 0)]))
    assert grid_shape(topology) == (2,)


def all_pairs(topology: Topology) -> PairRoutes:
    ranks = topology.compute_count
    keys = np.array([src * ranks + dst for src in range(ranks) for dst in range(ranks) if src != dst])
    return pair_routes(topology, grid_shape(topology), keys)


def walk(topology: Topology, pairs: PairRoutes, route: int, src: int, dst: int) -> list[int]:
    """Return the links of a route after checking that they lead from `src` to `dst`."""
    path = pairs.routes.path(route).tolist()
    node = src
    for link in path:
        assert topology.links.src[link] == node
        node = int(topology.links.dst[link])
    assert node == dst
    return path


def check(topology: Topology) -> PairRoutes:
    pairs = all_pairs(topology)
    hops = distances_from(topology, np.arange(topology.compute_count))
    for key, first, second in zip(pairs.keys.tolist(), pairs.first.tolist(), pairs.second.tolist(), strict=True):
        src, dst = divmod(key, topology.compute_count)
        path = walk(topology, pairs, first, src, dst)
        assert len(path) == hops[src, dst]
        if second >= 0:
            other = walk(topology, pairs, second, src, dst)
            assert len(other) == len(path)
            assert not set(path) & set(other)
    return pairs


@given(strongly_connected_topologies(2, 7, switches=3))
def test_routes_are_minimal_on_any_network(topology):
    check(topology)


@pytest.mark.parametrize(
    "spec",
    [
        *("torus:2", "torus:3x4x2", "hypercube:4", "mesh:3x4", "hyperx:3x4"),
        *("hxmesh:1,3x3", "hxmesh:4,2x2", "biring:4,6", "uniring:2,5", "a100:2", "fattree:4"),
    ],
)
def test_routes_are_minimal_on_families(spec):
    check(parse_topology(spec))


@pytest.mark.parametrize("spec", ["torus:4x6", "torus:5x2x3", "hypercube:4"])
def test_tori_are_recognised_and_routed_dimension_by_dimension(spec):
    topology = parse_topology(spec)
    shape = grid_shape(topology)
    assert TorusLinks.of(topology, shape) is not None
    pairs = all_pairs(topology)
    for key, first in zip(pairs.keys.tolist(), pairs.first.tolist(), strict=True):
        path = walk(topology, pairs, first, *divmod(key, topology.compute_count))
        ends = [np.unravel_index((topology.links.src[link], topology.links.dst[link]), shape) for link in path]
        axes = [next(axis for axis, pair in enumerate(end) if pair[0] != pair[1]) for end in ends]
        assert axes == sorted(axes)


@pytest.mark.parametrize("spec", ["mesh:4x4", "hyperx:3x4", "biring:4,6", "without(torus:4x4;link=0-1)"])
def test_other_networks_are_not_taken_for_tori(spec):
    topology = parse_topology(spec)
    assert TorusLinks.of(topology, grid_shape(topology)) is None


def test_opposite_nodes_of_a_ring_are_reached_both_ways():
    pairs = check(parse_topology("torus:6"))
    src, dst = np.divmod(pairs.keys, 6)
    assert ((pairs.second >= 0) == ((dst - src) % 6 == 3)).all()


def test_equal_ways_of_a_fat_tree_are_spread():
    pairs = all_pairs(parse_topology("fattree:4"))
    core = {tuple(pairs.routes.path(int(route)).tolist()[1:-1]) for route in pairs.first}
    assert len(core) > 16  # one way per pair of edge switches would be few


def paths(spec, src, dst):
    topology = parse_topology(spec)
    tables = minimal_paths(topology, np.array(src), np.array(dst))
    links = topology.links
    return [
        [[(int(links.src[link]), int(links.dst[link])) for link in table.path(route)] for route in range(len(src))]
        for table in tables
    ], tables


def test_parallel_links_are_two_paths():
    (first, second), tables = paths("biring:4,4", [0, 1], [1, 2])
    assert first == second == [[(0, 1)], [(1, 2)]]
    assert all(one != other for one, other in zip(tables[0].link_ids, tables[1].link_ids, strict=True))
