"""Drawings of topologies: what is drawn, where, and the same bytes every time."""

import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.layout import node_positions
from chorale.tuner.plots.network_plots import DrawnConnection, connections_of, curves_of, plot_topology
from tests.properties import random_cases
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies

ONE, TWO = Fraction(1), Fraction(2)


def network(*links: Link) -> Topology:
    return Topology("x", ("a", "b", "c"), 3, Links.build(links))


def test_links_there_and_back_are_one_connection():
    topology = network(Link(0, 1), Link(0, 1), Link(1, 0), Link(1, 2, TWO), Link(2, 1), Link(2, 2), Link(2, 0))
    assert set(connections_of(topology)) == {
        DrawnConnection(0, 1, ONE, 1, one_way=False),
        DrawnConnection(0, 1, ONE, 1, one_way=True),
        DrawnConnection(1, 2, TWO, 1, one_way=True),
        DrawnConnection(2, 1, ONE, 1, one_way=True),
        DrawnConnection(2, 0, ONE, 1, one_way=True),
    }


@given(strongly_connected_topologies(bandwidths=MIXED))
def test_every_link_is_drawn_once(topology):
    drawn = connections_of(topology)
    shown = sum(connection.count * (1 if connection.one_way else 2) for connection in drawn)
    assert shown == len(topology.links)


@given(regular_topologies())
def test_nodes_stand_apart_and_curves_join_them(spec):
    topology = parse_topology(spec)
    places = node_positions(topology)
    assert places.shape == (topology.node_count, 2)
    apart = np.linalg.norm(places[:, None] - places[None, :], axis=2) + 9 * np.eye(len(places))
    assert apart.min() > 0.5
    connections = connections_of(topology)
    for connection, curve in zip(connections, curves_of(connections, places), strict=True):
        assert np.allclose(curve[0], places[connection.src])
        assert np.allclose(curve[-1], places[connection.dst])


def test_links_around_a_torus_pass_by_the_nodes_between():
    topology = parse_topology("torus:4x4")
    places = node_positions(topology)
    connections = connections_of(topology)
    for connection, curve in zip(connections, curves_of(connections, places), strict=True):
        others = np.delete(places, [connection.src, connection.dst], axis=0)
        distance = np.linalg.norm(curve[:, None] - others[None, :], axis=2).min()
        assert distance > 0.2, connection


def test_a_torus_stands_on_its_grid():
    places = node_positions(parse_topology("transpose(torus:3x5)"))
    assert np.allclose(places, [(rank % 5, -(rank // 5)) for rank in range(15)])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_same_topology_same_bytes(tmp_path, suffix):
    topology = parse_topology("without(biring:4,6;link=0>1)")
    for name in "ab":
        plot_topology(topology, tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@random_cases(15)
@given(strongly_connected_topologies(bandwidths=MIXED, switches=3, latencies_s=MIXED[:1]))
def test_any_network_can_be_drawn(topology):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.svg"
        plot_topology(topology, path)
        assert path.read_text().count("<path") > topology.node_count


def test_a_legend_names_the_bandwidths(tmp_path):
    path = tmp_path / "a.svg"
    plot_topology(network(Link(0, 1, Fraction(25, 2)), Link(1, 2), Link(2, 0)), path)
    assert "25/2 link capacities" in path.read_text()
