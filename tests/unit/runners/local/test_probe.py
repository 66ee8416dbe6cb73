"""The rate of links that a machine sustains, and the pace that each link gets of it."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from chorale.runners.local import runner as probe
from chorale.runners.local.ranks import seconds_per_byte
from chorale.runners.local.runner import LinkRate, rate_efficiency, sustainable_rate
from chorale.synth.topology.topology import Link, Links, Topology


class Machine:
    """Carries links up to a rate at 97 %, beyond it at 80 %."""

    def __init__(self, carries_mbps: float) -> None:
        self.carries_mbps = carries_mbps
        self.asked: list[float] = []

    def efficiency(self, link_mbps: float) -> float:
        self.asked.append(link_mbps)
        return 0.97 if link_mbps <= self.carries_mbps else 0.8


@pytest.mark.parametrize(
    ("carries", "found"), [(130, 100), (10, 10), (9.9, 5), (2, 2), (1e9, 5000), (199.9, 100), (200, 200), (0, 1)]
)
def test_the_ladder_ends_at_the_largest_good_rate(carries: float, found: float) -> None:
    assert probe._climb(Machine(carries)) == LinkRate(found, 0.97 if carries else 0.8)  # type: ignore[arg-type]


def test_the_rate_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "not" / "there"
    first = sustainable_rate(2, 2, home)
    assert first.link_mbps in probe.RATES_MBPS
    monkeypatch.setattr(probe, "_probe_ranks", None)
    assert sustainable_rate(2, 2, home) == first
    (machines,) = json.loads((home / "link-rates.json").read_text()).values()
    assert list(machines) == ["2 nodes, 2 links"]


@pytest.mark.parametrize(
    ("load", "age_s", "is_kept"),
    [
        *((0.0, 0, True), (0.0, 29 * 86_400, True), (0.0, 31 * 86_400, False)),
        *((1e3, 60, True), (1e3, 3600, False), (0.0, -60, False)),
    ],
)
def test_a_rate_of_a_busy_machine_is_not_kept_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, age_s: float, is_kept: bool
) -> None:
    now_s = 1e9
    monkeypatch.setattr(probe, "load_average", lambda: load)
    monkeypatch.setattr(probe.time, "time", lambda: now_s)
    monkeypatch.setattr(probe, "_probe_ranks", lambda *_: nullcontext())
    monkeypatch.setattr(probe, "_climb", lambda _: LinkRate(5, 0.9))
    sustainable_rate(2, 2, tmp_path)
    now_s += age_s
    monkeypatch.setattr(probe, "_climb", lambda _: LinkRate(50, 0.97))
    assert sustainable_rate(2, 2, tmp_path).link_mbps == (5 if is_kept else 50)


def test_a_damaged_cache_or_an_unwritable_home_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link-rates.json").write_text("[not json")
    (tmp_path / "file").touch()
    monkeypatch.setattr(probe, "_climb", lambda _: LinkRate(50, 0.97))
    for home in (tmp_path, tmp_path / "file"):
        assert sustainable_rate(2, 2, home) == LinkRate(50, 0.97)


@pytest.mark.parametrize(("nodes", "links"), [(2, 2), (3, 7), (4, 16)])
def test_any_number_of_links_can_be_probed(nodes: int, links: int) -> None:
    rate = rate_efficiency(nodes, links, 20)
    assert rate.link_mbps == 20
    assert 0.1 < (rate.efficiency or 0) <= 1.0


def test_links_keep_their_proportions_and_the_fastest_gets_the_rate() -> None:
    links = Links.build([Link(0, 1, 300), Link(1, 0, 25)])
    gigabytes = Topology("", ("a", "b"), 2, links, "GB/s")
    paces = dict(zip(links.src.tolist(), seconds_per_byte(gigabytes, 8), strict=True))
    assert paces == {0: pytest.approx(1e-6), 1: pytest.approx(12e-6)}
    in_links = Topology("", ("a", "b"), 2, links, "link")
    assert dict(zip(links.src.tolist(), seconds_per_byte(in_links, 8), strict=True))[0] == pytest.approx(1e-6 / 300)
