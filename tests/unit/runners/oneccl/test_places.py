"""Where ranks run: the fabric that is up, else the cluster, loopback only when asked for."""

from fractions import Fraction

import pytest

from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.oneccl import ranks
from chorale.runners.oneccl.ranks import RankPlacement, place_ranks
from chorale.runners.process_launch.processes import LocalHost
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology

RING = parse_topology("ring:4")
UP = EmulatedFabric("up", "ring:4", RING.id, Fraction(50), 4, 0, 400, False, 1)
CLUSTER = RankPlacement([LocalHost("10.0.0.1")] * 4, {"network": "cluster"})


def _world(monkeypatch: pytest.MonkeyPatch, *, fabric: bool, cluster: bool) -> None:
    found = UP if fabric else None
    monkeypatch.setattr(ranks, "find_fabric", lambda topology_id, name: found if name in (None, "up") else None)
    monkeypatch.setattr(ranks, "_cluster", lambda topology: CLUSTER if cluster else None)


def test_a_fabric_comes_before_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    _world(monkeypatch, fabric=True, cluster=True)
    ground = place_ranks(RING, None, None)
    assert ground.facts == UP.facts()
    assert {"network": "fabric", "fabric": "up", "link_mbps": 50.0}.items() <= ground.facts.items()
    assert [place.address for place in ground.hosts] == [f"10.99.0.{rank + 1}" for rank in range(4)]
    assert place_ranks(RING, "cluster", None) is CLUSTER


def test_a_cluster_comes_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _world(monkeypatch, fabric=False, cluster=True)
    assert place_ranks(RING, None, None) is CLUSTER


@pytest.mark.parametrize(("where", "fabric"), [(None, "other"), ("fabric", None), ("fabric", "other")])
def test_a_fabric_that_was_asked_for_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, where: str | None, fabric: str | None
) -> None:
    _world(monkeypatch, fabric=False, cluster=True)
    with pytest.raises(Unavailable, match="oneCCL needs a network"):
        place_ranks(RING, where, fabric)


def test_loopback_is_only_taken_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _world(monkeypatch, fabric=False, cluster=False)
    with pytest.raises(Unavailable, match="got none for ring:4; run: chorale fabric up ring:4"):
        place_ranks(RING, None, None)
    ground = place_ranks(RING, "loopback", None)
    assert [place.address for place in ground.hosts] == ["127.0.0.1"] * 4
    assert ground.facts == {"network": "loopback"}


def test_unknown_places_are_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown place to run 'moon'; choose from fabric, cluster, loopback"):
        place_ranks(RING, "moon", None)
