"""States of links by reports or by a list, and what is left of a fabric as a spec."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.job.table.layout import parse_table
from chorale.runners.api.link_reports import LinkReport
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.links import FabricState, LinkState, LinkTracker, single_losses
from chorale.tuner.watch.watcher import WatchRecords, open_watch, read_watch_config
from tests.command import chorale
from tests.links import topology_document

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


def test_a_link_is_healthy_though_its_rate_varies_and_dead_while_it_is_cut():
    clock = _Clock()
    assert clock.run(60, _RATE) + clock.run(60, 0.9 * _RATE) == []
    assert clock.tracker.state == LinkState.HEALTHY
    assert clock.tracker.in_force_bits_per_s == _RATE
    clock = _Clock()
    clock.run(60, _RATE)
    (dead,) = clock.run(10, 0.0)
    assert dead == (LinkState.HEALTHY, LinkState.DEAD)
    assert clock.tracker.in_force_bits_per_s == 0
    (back,) = clock.run(10, _RATE)
    assert back == (LinkState.DEAD, LinkState.HEALTHY)


def test_a_slow_link_has_its_rate_and_one_that_comes_and_goes_is_flapping():
    clock = _Clock()
    (slow,) = clock.run(60, _RATE / 10)
    assert (slow[1], clock.tracker.in_force_bits_per_s, clock.tracker.since_s) == (LinkState.SLOW, _RATE / 10, 0.25)
    assert clock.run(60, _RATE / 9) == []  # the same twentieth
    (slower,) = clock.run(60, _RATE / 40)
    assert slower == (LinkState.SLOW, LinkState.SLOW)
    assert (clock.tracker.part, clock.tracker.since_s) == (Fraction(1, 20), 0.25)  # slow since then
    (healthy,) = clock.run(60, _RATE)
    assert healthy[1] == LinkState.HEALTHY
    clock = _Clock()
    changes = [change for _ in range(3) for rate in (0.0, _RATE) for change in clock.run(5, rate)]
    assert [after for _, after in changes] == [*(LinkState.DEAD, LinkState.HEALTHY, LinkState.DEAD, LinkState.FLAPPING)]
    assert clock.tracker.in_force_bits_per_s == 0
    (calm,) = clock.run(60, _RATE)
    assert calm == (LinkState.FLAPPING, LinkState.HEALTHY)
    assert clock.run(60, _RATE) == []


def _trackers() -> dict[tuple[int, int], LinkTracker]:
    return {link: LinkTracker(_RATE) for link in _LINKS}


def test_the_spec_of_a_state_has_dead_and_slow_links():
    state = FabricState.of(_trackers())
    assert state == FabricState()
    assert state.spec(_CUBE) == "hypercube:3"
    assert str(state) == "all links are healthy"
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


def test_a_rank_without_links_one_way_is_lost_and_each_cable_and_rank_may_be():
    for end in (0, 1):
        trackers = _trackers()
        for link, tracker in trackers.items():
            if link[end] == 5:
                tracker.report(1.0, 0.0)
        state = FabricState.of(trackers)
        assert state.nodes == {5}
        assert parse_topology(state.spec(_CUBE)).compute_count == 7
    left = [parse_topology(state.spec(_CUBE)) for state in single_losses(_LINKS)]
    assert [(topology.compute_count, len(topology.links)) for topology in left] == [(8, 22)] * 12 + [(7, 18)] * 8


_LINK = (0, 1)


def test_rates_at_which_links_carry_bytes(tmp_path):
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


CONFIG = """name: cluster
topology: {}
table: job.table
links: faulty.txt
sizes: [64KiB]
methods: [bfb]
plan_failures: false
"""


@pytest.fixture
def once(tmp_path, monkeypatch, capsys):
    """Return what `chorale watch --once` does with this list of faulty links."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)

    def watched(faults: str | None, topology: str = "torus:3x3"):
        Path("cluster.yaml").write_text(CONFIG.format(topology))
        if faults is not None:
            Path("faulty.txt").write_text(faults)
        return chorale(capsys, "watch", "cluster.yaml", "--once", "--json")

    return watched


def published() -> tuple[int, str]:
    table = parse_table(Path("job.table").read_bytes())[0]
    return table.ranks, table.topology["spec"]


def test_each_change_of_the_list_leads_to_a_table_for_what_is_left(once):
    assert once("").code == 0
    assert published() == (9, "torus:3x3")
    lost = once("5  # down since Monday\n")
    assert (lost.code, published()) == (0, (8, "without(torus:3x3;node=5)"))
    assert "publish" in [json.loads(line)["event"] for line in lost.stdout.splitlines()]
    assert once("0>1\n1-2,40\n").code == 0
    assert published() == (9, "without(scaled(torus:3x3;link=1>2;link=2>1;factor=2/5);link=0>1)")
    ring = topology_document("0123", [(str(rank), str((rank + 1) % 4), 100) for rank in range(4)])
    Path("mine.json").write_text(json.dumps(ring))
    done = once("0-1\n", "file:mine.json")
    assert (done.code, published()[0]) == (0, 4), done.stderr


def test_what_cannot_be_watched_is_refused(once):
    for faults, topology, message in (
        ("0=1", "torus:3x3", "repair this line"),
        ("0-9", "torus:3x3", "lists links of the network as"),
        ("", "a100:2", "chorale table write --topology 'without(a100:2;node=0)'"),
    ):
        done = once(faults, topology)
        assert (done.code, message in done.stderr) == (2, True), done.stderr


def test_a_list_that_is_not_there_is_an_error_for_once_and_waited_for_by_a_watch(once):
    done = once(None)
    assert done.code == 3
    assert "faulty.txt: No such file or directory; if no link is faulty, write an empty file" in done.stderr
    assert not Path("job.table").exists()
    watch = open_watch(read_watch_config(Path("cluster.yaml")))
    events = watch.run(lambda: watch.is_current)
    assert next(events)["event"] == "warning"
    Path("faulty.txt").write_text("5\n")
    assert {"publish"} <= {event["event"] for event in events} <= {"state", "replan", "publish"}
    assert published()[0] == 8
