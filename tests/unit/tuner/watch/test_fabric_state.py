"""What is left of a fabric as a spec."""

from __future__ import annotations

from fractions import Fraction

import pytest

from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.fabric_state import FabricState, single_losses
from chorale.tuner.watch.link_monitor import LinkMonitor, LinkState, MonitorOptions

_CUBE = parse_topology("hypercube:3")
_LINKS = sorted({(int(a), int(b)) for a, b in zip(_CUBE.links.src, _CUBE.links.dst, strict=True)})
_RATE = 1e8


def _monitors() -> dict[tuple[int, int], LinkMonitor]:
    return {link: LinkMonitor(_RATE, MonitorOptions(threshold=10.0)) for link in _LINKS}


def _kill(monitor: LinkMonitor) -> None:
    for probe in range(10):
        monitor.on_ping(float(probe), False)
    assert monitor.state == LinkState.DEAD


def _slow(monitor: LinkMonitor, rate: float) -> None:
    for probe in range(10):
        monitor.on_rate(float(probe), rate)
    assert monitor.state == LinkState.SLOW


def test_a_healthy_fabric_is_the_declared_one() -> None:
    state = FabricState.of(_monitors())
    assert state.is_healthy
    assert state.spec(_CUBE) == "hypercube:3"
    assert str(state) == "all links are healthy"


def test_dead_and_slow_links_are_in_the_spec() -> None:
    monitors = _monitors()
    _kill(monitors[0, 1])
    _slow(monitors[2, 3], _RATE / 10)
    _slow(monitors[3, 2], _RATE * 0.5)
    state = FabricState.of(monitors)
    spec = state.spec(_CUBE)
    assert spec == "without(scaled(scaled(hypercube:3;link=2>3;factor=1/10);link=3>2;factor=1/2);link=0>1)"
    links = {(link.src, link.dst): link.bandwidth for link in parse_topology(spec).links}
    assert (0, 1) not in links
    assert links[1, 0] == 1
    assert (links[2, 3], links[3, 2]) == (Fraction(1, 10), Fraction(1, 2))


@pytest.mark.parametrize("outward", [True, False])
def test_a_rank_without_links_one_way_is_lost(outward: bool) -> None:
    monitors = _monitors()
    for link, monitor in monitors.items():
        if link[0 if outward else 1] == 5:
            _kill(monitor)
    state = FabricState.of(monitors)
    assert state.nodes == {5}
    assert parse_topology(state.spec(_CUBE)).compute_count == 7


def test_the_loss_of_each_cable_and_of_each_rank_is_a_state() -> None:
    states = list(single_losses(_LINKS))
    left = [parse_topology(state.spec(_CUBE)) for state in states]
    assert [(topology.compute_count, len(topology.links)) for topology in left] == [(8, 22)] * 12 + [(7, 18)] * 8
