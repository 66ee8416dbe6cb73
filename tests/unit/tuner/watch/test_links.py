"""States of links by reports, and what is left of a fabric as a spec."""

from fractions import Fraction
from pathlib import Path

import pytest

from chorale.runners.api.link_reports import LinkReport
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.links import FabricState, LinkState, LinkTracker, single_losses
from chorale.tuner.watch.watcher import WatchRecords

_RATE = 1e8
_CUBE = parse_topology("hypercube:3")
_LINKS = sorted({(int(a), int(b)) for a, b in zip(_CUBE.links.src, _CUBE.links.dst, strict=True)})


class _Clock:
    """Reports of one link, four a second."""

    def __init__(self) -> None:
        self.tracker, self.now_s = LinkTracker(_RATE), 0.0

    def run(self, seconds: float, rate: float) -> list[tuple[LinkState, LinkState]]:
        changes = []
        for _ in range(int(seconds * 4)):
            self.now_s += 0.25
            changes.append(self.tracker.report(self.now_s, rate))
        return [change for change in changes if change is not None]


def test_a_healthy_link_stays_so_though_its_rate_varies() -> None:
    clock = _Clock()
    assert clock.run(60, _RATE) + clock.run(60, 0.9 * _RATE) == []
    assert clock.tracker.state == LinkState.HEALTHY
    assert clock.tracker.in_force_bits_per_s == _RATE


def test_a_cut_link_is_dead_and_healthy_again_after_it_is_back() -> None:
    clock = _Clock()
    clock.run(60, _RATE)
    (dead,) = clock.run(10, 0.0)
    assert dead == (LinkState.HEALTHY, LinkState.DEAD)
    assert clock.tracker.in_force_bits_per_s == 0
    (back,) = clock.run(10, _RATE)
    assert back == (LinkState.DEAD, LinkState.HEALTHY)


def test_a_slow_link_has_its_rate_and_tells_when_it_becomes_slower() -> None:
    clock = _Clock()
    (slow,) = clock.run(60, _RATE / 10)
    assert (slow[1], clock.tracker.in_force_bits_per_s) == (LinkState.SLOW, _RATE / 10)
    assert clock.run(60, _RATE / 9) == []  # the same twentieth
    (slower,) = clock.run(60, _RATE / 40)
    assert slower == (LinkState.SLOW, LinkState.SLOW)
    assert clock.tracker.part == Fraction(1, 20)
    (healthy,) = clock.run(60, _RATE)
    assert healthy[1] == LinkState.HEALTHY


def test_a_link_that_comes_and_goes_is_flapping_until_it_is_quiet() -> None:
    clock = _Clock()
    changes = [change for _ in range(3) for rate in (0.0, _RATE) for change in clock.run(5, rate)]
    assert [after for _, after in changes] == [*(LinkState.DEAD, LinkState.HEALTHY, LinkState.DEAD, LinkState.FLAPPING)]
    assert clock.tracker.in_force_bits_per_s == 0
    (calm,) = clock.run(60, _RATE)
    assert calm == (LinkState.FLAPPING, LinkState.HEALTHY)
    assert clock.run(60, _RATE) == []


def _trackers() -> dict[tuple[int, int], LinkTracker]:
    return {link: LinkTracker(_RATE) for link in _LINKS}


def test_a_healthy_fabric_is_the_declared_one() -> None:
    state = FabricState.of(_trackers())
    assert state == FabricState()
    assert state.spec(_CUBE) == "hypercube:3"
    assert str(state) == "all links are healthy"


def test_dead_and_slow_links_are_in_the_spec() -> None:
    trackers = _trackers()
    trackers[0, 1].report(1.0, 0.0)
    trackers[2, 3].report(1.0, _RATE / 10)
    trackers[3, 2].report(1.0, _RATE * 0.5)
    spec = FabricState.of(trackers).spec(_CUBE)
    assert spec == "without(scaled(scaled(hypercube:3;link=2>3;factor=1/10);link=3>2;factor=1/2);link=0>1)"
    links = {(link.src, link.dst): link.bandwidth for link in parse_topology(spec).links}
    assert (0, 1) not in links
    assert links[1, 0] == 1
    assert (links[2, 3], links[3, 2]) == (Fraction(1, 10), Fraction(1, 2))


@pytest.mark.parametrize("outward", [True, False])
def test_a_rank_without_links_one_way_is_lost(outward: bool) -> None:
    trackers = _trackers()
    for link, tracker in trackers.items():
        if link[0 if outward else 1] == 5:
            tracker.report(1.0, 0.0)
    state = FabricState.of(trackers)
    assert state.nodes == {5}
    assert parse_topology(state.spec(_CUBE)).compute_count == 7


def test_the_loss_of_each_cable_and_of_each_rank_is_a_state() -> None:
    states = list(single_losses(_LINKS))
    left = [parse_topology(state.spec(_CUBE)) for state in states]
    assert [(topology.compute_count, len(topology.links)) for topology in left] == [(8, 22)] * 12 + [(7, 18)] * 8


_LINK = (0, 1)


def test_rates_at_which_links_carry_bytes(tmp_path: Path) -> None:
    records = WatchRecords(tmp_path, "cube")

    def load(time_s: float, carried_bytes: int | None) -> float | None:
        records.note_carried(LinkReport(_LINK, time_s, 1e8, carried_bytes))
        rate: float | None = records._row(_LINK, LinkTracker(1e8))["carried_bits_per_s"]
        return rate

    assert load(100.0, 1000) is None
    assert load(100.5, 2000) is None
    assert load(102.0, 251_000) == 1e6
    assert load(103.0, 0) == 0.0  # a fabric that was brought up anew
    assert load(104.0, None) == 0.0
