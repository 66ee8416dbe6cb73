"""The diameter against the distances of all pairs, by every way that leads to it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.topology import distance as module
from chorale.synth.topology.distance import diameter, distances_from, hop_distances
from chorale.synth.topology.spec import parse_topology
from tests.strategies import regular_topologies, strongly_connected_topologies


@given(strongly_connected_topologies(max_nodes=10, switches=3))
def test_it_is_the_largest_of_the_distances_of_all_pairs(topology):
    ranks = topology.compute_count
    assert diameter(topology) == hop_distances(topology)[:ranks, :ranks].max()


@pytest.mark.parametrize("spec", ["genkautz:3,700", "kautz:2,8", "distreg:4,728", "hxmesh:4,5x4", "a100:40"])
def test_large_networks(spec):
    """Some of these have switches, some known symmetries."""
    topology = parse_topology(spec)
    ranks = np.arange(topology.compute_count)
    expected = distances_from(topology, ranks)[:, : len(ranks)]
    assert diameter(topology) == diameter(dataclasses.replace(topology, automorphisms=())) == expected.max()


def test_symmetries_that_are_not_transitive_save_searches(monkeypatch):
    """Exchanges of letters leave one in 24 or so of the words of a Kautz network to be looked at."""
    topology = parse_topology("kautz:3,5")
    starts = []
    search = module.hops_along
    monkeypatch.setattr(module, "hops_along", lambda *given: starts.append(len(given[2])) or search(*given))
    assert diameter(topology) == 6
    assert 0 < sum(starts) <= topology.compute_count / 12


@given(regular_topologies())
def test_diameter_by_one_search_equals_diameter_by_all(spec):
    topology = parse_topology(spec)
    assert diameter(topology) == diameter(dataclasses.replace(topology, automorphisms=()))


def test_diameter_of_a_grid_takes_a_handful_of_searches(monkeypatch):
    searches = []
    search = module.hops_along
    monkeypatch.setattr(module, "hops_along", lambda *given: searches.append(given) or search(*given))
    assert diameter(parse_topology("mesh:40x30")) == 68
    assert len(searches) < 20


def test_a_wrong_symmetry_is_not_believed():
    path = parse_topology("mesh:4")
    wrong = np.array([1, 2, 3, 0], dtype=np.int32)
    assert diameter(dataclasses.replace(path, automorphisms=(wrong,))) == 3
