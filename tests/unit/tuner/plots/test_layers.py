"""Drawings of switched networks: rows by level, routers on a circle."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.topology.spec import parse_topology
from chorale.tuner.plots.layout import node_positions, switched_positions
from tests.strategies import strongly_connected_topologies


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


def test_routers_stand_inside_a_circle_of_hosts():
    topology = parse_topology("dragonfly:4,2,2")
    places = switched_positions(topology)
    assert places is not None
    radius = np.hypot(*places.T)
    assert np.allclose(radius[:72], radius[0])
    assert np.allclose(radius[72:], radius[72])
    assert radius[72] < radius[0]
    for link in topology.links:
        if link.src < 72:
            nearest = np.linalg.norm(places[72:] - places[link.src], axis=1).argmin()
            assert nearest == link.dst - 72


def test_many_compute_nodes_stand_around_their_only_switch():
    places = node_positions(parse_topology("nvl72:1"))
    radius = np.hypot(*places.T)
    assert np.allclose(places[72], 0)
    assert np.allclose(radius[:72], radius[0])
    assert radius[0] < 12  # a row would be 71 wide


@pytest.mark.parametrize(
    "spec",
    ["a100:2", "h100:3", "fattree:4", "fattree:6", "dragonfly:3,2,2", "railclos:2,4,50,3", "switch:9,1", "switch:40,1"],
)
def test_nodes_stand_apart(spec):
    places = node_positions(parse_topology(spec))
    apart = np.linalg.norm(places[:, None] - places[None, :], axis=2) + 9 * np.eye(len(places))
    assert apart.min() > 0.45


@pytest.mark.parametrize("spec", ["mi250:2", "mi300x:2", "hxmesh:2,2x2"])
def test_networks_with_direct_links_are_drawn_otherwise(spec):
    assert switched_positions(parse_topology(spec)) is None


@given(strongly_connected_topologies(switches=4))
def test_any_network_gets_a_place_for_every_node(topology):
    places = switched_positions(topology)
    assert places is None or (places.shape == (topology.node_count, 2) and np.isfinite(places).all())
