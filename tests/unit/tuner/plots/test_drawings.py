"""Drawings of topologies and campaigns: what is drawn, where, and the same bytes every time."""

import tempfile
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from chorale.tuner.plots.layout import node_positions, switched_positions
from chorale.tuner.plots.network_plots import DrawnConnection, connections_of, curves_of, plot_topology
from tests.properties import random_cases
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies

ONE, TWO = Fraction(1), Fraction(2)


def network(*links: Link) -> Topology:
    return Topology("x", ("a", "b", "c"), 3, Links.build(links))


def least_distance(places: np.ndarray) -> float:
    return float((np.linalg.norm(places[:, None] - places[None, :], axis=2) + 9 * np.eye(len(places))).min())


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
    assert least_distance(places) > 0.5
    connections = connections_of(topology)
    for connection, curve in zip(connections, curves_of(connections, places), strict=True):
        assert np.allclose(curve[[0, -1]], places[[connection.src, connection.dst]])


def test_a_torus_stands_on_its_grid_and_links_around_it_pass_by_the_nodes_between():
    topology = parse_topology("torus:4x4")
    places = node_positions(topology)
    connections = connections_of(topology)
    for connection, curve in zip(connections, curves_of(connections, places), strict=True):
        others = np.delete(places, [connection.src, connection.dst], axis=0)
        distance = np.linalg.norm(curve[:, None] - others[None, :], axis=2).min()
        assert distance > 0.2, connection
    places = node_positions(parse_topology("transpose(torus:3x5)"))
    assert np.allclose(places, [(rank % 5, -(rank // 5)) for rank in range(15)])
    places = node_positions(parse_topology("nvl72:1"))
    radius = np.hypot(*places.T)
    assert np.allclose(places[72], 0)
    assert np.allclose(radius[:72], radius[0])
    assert radius[0] < 12  # a row would be 71 wide


def test_same_topology_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        plot_topology(network(Link(0, 1, Fraction(25, 2)), Link(1, 2), Link(2, 0)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "25/2 link capacities" in (tmp_path / "a.svg").read_text()


@random_cases(8)
@given(strongly_connected_topologies(bandwidths=MIXED, switches=3, latencies_s=MIXED[:1]))
def test_any_network_can_be_drawn(topology):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.svg"
        plot_topology(topology, path)
        assert path.read_text().count("<path") > topology.node_count


def heights(spec: str) -> dict[str, float]:
    """Return the height of each kind of node, which must be one for all of a kind, in rows of the drawing."""
    topology = parse_topology(spec)
    places = switched_positions(topology)
    assert places is not None
    by_kind: dict[str, set[float]] = defaultdict(set)
    for name, (_, y) in zip(topology.node_ids, places, strict=True):
        by_kind[name.partition(":")[0] if ":" in name else "compute"].add(round(float(y), 6))
    assert all(len(found) == 1 for found in by_kind.values())
    levels = sorted({next(iter(found)) for found in by_kind.values()})
    return {kind: levels.index(next(iter(found))) - levels.index(0.0) for kind, found in by_kind.items()}


def test_rows():
    assert heights("a100:3") == {"nvswitch": -1, "compute": 0, "nic": 1, "ib": 2}
    assert heights("railclos:3,4,50,2") == {"nvswitch": -1, "compute": 0, "nic": 1, "rail": 2, "spine": 3}
    assert heights("fattree:4") == {"compute": 0, "edge": 1, "agg": 2, "core": 3}
    assert heights("switch:5,1") == {"compute": 0, "switch": 1}
    assert switched_positions(parse_topology("mi250:2")) is None


def test_routers_stand_inside_a_circle_of_hosts():
    topology = parse_topology("dragonfly:4,2,2")
    places = switched_positions(topology)
    radius = np.hypot(*places.T)
    assert np.allclose(radius[:72], radius[0])
    assert np.allclose(radius[72:], radius[72])
    assert radius[72] < radius[0]
    for link in topology.links:
        if link.src < 72:
            nearest = np.linalg.norm(places[72:] - places[link.src], axis=1).argmin()
            assert nearest == link.dst - 72


@pytest.mark.parametrize(
    "spec",
    ["a100:2", "h100:3", "fattree:4", "fattree:6", "dragonfly:3,2,2", "railclos:2,4,50,3", "switch:9,1", "switch:40,1"],
)
def test_nodes_stand_apart(spec):
    assert least_distance(node_positions(parse_topology(spec))) > 0.45


@given(strongly_connected_topologies(switches=4))
def test_any_network_gets_a_place_for_every_node(topology):
    places = switched_positions(topology)
    assert places is None or (places.shape == (topology.node_count, 2) and np.isfinite(places).all())
