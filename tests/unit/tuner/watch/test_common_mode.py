"""Alarms under an overload that hits all links alike, modelled: as bursts in which many probes are lost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from chorale.runners.api.probes import Link
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.common_mode import CommonMode
from chorale.tuner.watch.evidence import Evidence, Hypotheses

_NET = parse_topology("hypercube:3")
_LINKS: tuple[Link, ...] = tuple(sorted(zip(_NET.links.src.tolist(), _NET.links.dst.tolist(), strict=True)))
_LOST = Hypotheses(0.01, 0.9)
_PERIOD_S = 0.25
Loss = Callable[[Link, float, bool], float]


def _alarms(seconds: float, threshold: float, loss: Loss, seed: int, *, compares: bool) -> list[tuple[float, Link]]:
    """Return when links were told to be dead; overloads begin at random, every 20 s, and last 2 s, on average."""
    draw, common = random.Random(seed), CommonMode(_LINKS)
    tests = {link: Evidence(_LOST, threshold) for link in _LINKS}
    alarms, is_overloaded, now_s = [], False, 0.0
    while now_s < seconds:
        now_s += _PERIOD_S
        is_overloaded = draw.random() < (math.exp(-_PERIOD_S / 2) if is_overloaded else 1 - math.exp(-_PERIOD_S / 20))
        for link in _LINKS:
            is_lost = draw.random() < loss(link, now_s, is_overloaded)
            elsewhere = common.share(link, now_s) if compares else 0.0
            common.note(link, is_lost, now_s)
            if tests[link].add(is_lost, elsewhere):
                alarms.append((now_s, link))
                tests[link].clear()
    return alarms


def _overload(_link: Link, _now_s: float, is_overloaded: bool) -> float:
    return 0.6 if is_overloaded else 0.003


@pytest.mark.parametrize("seed", [1])
def test_an_overload_of_all_links_raises_no_more_alarms_than_are_allowed(seed: int) -> None:
    """At a threshold that allows an alarm in 5,000 probes, so that the bound shows; without peers it is broken."""
    seconds, threshold = 300.0, math.log(5000)
    probes = seconds / _PERIOD_S * len(_LINKS)
    assert len(_alarms(seconds, threshold, _overload, seed, compares=True)) <= probes / 5000
    assert len(_alarms(seconds, threshold, _overload, seed, compares=False)) > 5 * probes / 5000


def test_a_link_that_is_cut_during_overloads_is_told() -> None:
    cut = (0, 1)
    alarms = _alarms(
        60, 19.4, lambda *args: 1.0 if args[0] == cut and args[1] > 30 else _overload(*args), 3, compares=True
    )
    assert {link for _, link in alarms} == {cut}
    assert alarms[0][0] - 30 < 15


@pytest.mark.parametrize(("dead", "limit_s"), [({(0, 1), (1, 0)}, 1.5), ({link for link in _LINKS if 3 in link}, 1.5)])
def test_a_cable_or_a_rank_is_told_as_soon_as_without_peers(dead: set[Link], limit_s: float) -> None:
    alarms = _alarms(20, 19.4, lambda link, now_s, _: float(link in dead and now_s > 10), 0, compares=True)
    first = {link: min(at for at, other in alarms if other == link) for _, link in alarms}
    assert set(first) == dead
    assert max(first.values()) - 10 <= limit_s


def test_a_loss_of_all_links_is_told_in_the_end() -> None:
    alarms = _alarms(60, 19.4, lambda _link, now_s, _: float(now_s > 10), 0, compares=True)
    assert {link for _, link in alarms} == set(_LINKS)


def test_links_without_unrelated_ones_are_judged_alone() -> None:
    common = CommonMode([(0, 1), (1, 0)])
    for link in ((0, 1), (1, 0)):
        common.note(link, True, 1.0)
    assert common.share((0, 1), 1.0) == 0.0


def test_what_is_long_ago_no_longer_counts() -> None:
    common = CommonMode(_LINKS)
    for link in _LINKS:
        common.note(link, True, 1.0)
    assert common.share((0, 1), 1.0) == pytest.approx(14 / 20)
    for second in range(2, 1000):
        for link in _LINKS:
            common.note(link, False, float(second))
    assert common.share((0, 1), 1000.0) == 0.0
