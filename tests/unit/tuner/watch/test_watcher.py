"""The loop with a fake fabric, whose probes take no time: what it publishes, and when it does not."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.job.settings import read_table
from chorale.job.table.layout import TableProgram
from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest, SizeMeasurement
from chorale.runners.api.link_reports import Link, LinkReport, steady_unix_s
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.canary import CANDIDATE, PRESENT, CallTimes, Canary, Event, Key, Publisher, Renewal, Snapshot
from chorale.tuner.watch.links import FabricState
from chorale.tuner.watch.replanning import Planner, PlanRequest, table_entry
from chorale.tuner.watch.watcher import Watch, WatchRecords

_RATE, _SIZE = 1e8, 1 << 20
_NET = parse_topology("complete:4")


@dataclass
class _FakeFabric:
    """Stands in for links and clock: a source of reports."""

    declared_bits_per_s: Mapping[Link, float]
    now_s: float = 1000.0
    dead: set[Link] = field(default_factory=set)
    slow: dict[Link, float] = field(default_factory=dict)
    flapping: Link | None = None
    is_closed: bool = False

    @property
    def links(self) -> list[Link]:
        return list(self.declared_bits_per_s)

    def reports(self, limit_s: float) -> Iterator[LinkReport]:
        self.now_s += limit_s
        for link in self.declared_bits_per_s:
            is_down = link in self.dead or (link == self.flapping and int(self.now_s / 5) % 2)
            rate = 0.0 if is_down else _RATE * self.slow.get(link, 1.0)
            yield LinkReport(link, self.now_s, rate, int(self.now_s * 1e6))

    def close(self) -> None:
        self.is_closed = True


class _Inline(Executor):
    """Does everything at once, so that no time of the fake clock passes meanwhile."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **more))
        return future


def _fabric() -> _FakeFabric:
    pairs = zip(_NET.links.src, _NET.links.dst, strict=True)
    return _FakeFabric({link: _RATE for link in sorted({(int(a), int(b)) for a, b in pairs})})


def _measured(ratio: float) -> Callable[[RunRequest], Outcome]:
    """Return what stands in for a runner in which the candidate takes `ratio` times as long."""

    def measure(request: RunRequest) -> Outcome:
        def measured(seconds: float) -> tuple[SizeMeasurement, ...]:
            times_s = (seconds,) * request.repeats
            return tuple(SizeMeasurement(size, size, times_s, True) for size in request.sizes_bytes)

        times = {PRESENT: 1.0, CANDIDATE: ratio}
        return Measurement("fake", {name: measured(times[name]) for name in request.programs})

    return measure


def _watch(
    fabric: _FakeFabric,
    path: Path,
    measure: Callable[[RunRequest], Outcome] | None = None,
    routes: list[FabricState] | None = None,
    jobs: Callable[[], Snapshot] = dict,
) -> Watch:
    planner = Planner(PlanRequest(("allreduce",), (_SIZE,), ("bfb",), NetworkModel.of(0, 0, 0, "1/10")))
    canary = None if measure is None else Canary(_NET, measure, (_SIZE,), 6, 10.0, lambda: fabric.now_s)
    reroute = None if routes is None else routes.append
    folder = path.parent / "watch"
    folder.mkdir(exist_ok=True)
    publisher, clock = Publisher(path, folder), lambda: fabric.now_s
    renewal = Renewal(_NET, ("allreduce",), planner, canary, publisher, jobs, clock)
    records = WatchRecords(folder, "cube")
    return Watch(fabric, renewal, records, reroute, clock=clock, pool=_Inline())


def _run(watch: Watch, fabric: _FakeFabric, seconds: float = 600.0) -> Iterator[Event]:
    until_s = fabric.now_s + seconds
    return watch.run(lambda: fabric.now_s > until_s)


def _next(events: Iterator[Event], name: str) -> Event:
    return next(event for event in events if event["event"] == name)


def _entry(path: Path) -> TableProgram:
    entry = table_entry(read_table(path)[0], "allreduce", _SIZE)
    assert entry is not None
    return entry


def _begun(path: Path, *options: Any, seconds: float = 600.0) -> tuple[_FakeFabric, Iterator[Event], Event]:
    """Return a fabric, the events of its watch, and the first publication."""
    fabric = _fabric()
    events = _run(_watch(fabric, path, *options), fabric, seconds)
    return fabric, events, _next(events, "publish")


def test_a_jump_of_the_wall_clock_changes_no_durations(monkeypatch):
    before_s, wall_s = steady_unix_s(), time.time()
    assert abs(before_s - wall_s) < 3600
    monkeypatch.setattr(time, "time", lambda: wall_s - 86400)
    assert 0 <= steady_unix_s() - before_s < 3600


def test_it_publishes_for_the_fabric_as_it_is_and_after_a_change(tmp_path):
    routes = list[FabricState]()
    fabric, events, first = _begun(tmp_path / "table", _measured(0.7), routes)
    assert read_table(tmp_path / "table")[1] == first["table"]
    fabric.dead = {(0, 1), (1, 0)}
    cut_s = fabric.now_s
    changes = [_next(events, "state") for _ in range(2)]
    assert {(change["link"], change["from"], change["to"]) for change in changes} == {
        *(("0>1", "healthy", "dead"), ("1>0", "healthy", "dead"))
    }
    canary, second = _next(events, "canary"), _next(events, "publish")
    assert canary["rows"][0]["ratio"] == 0.7
    assert second["table"] != first["table"]
    assert second["spec"] == "without(complete:4;link=0>1;link=1>0)"
    assert cut_s < changes[0]["time_s"] < cut_s + 3
    assert second["seconds"] < 10
    assert [len(each.dead) for each in routes] == [0, 2]
    fabric.dead.clear()
    assert _next(events, "publish")["table"] == first["table"]
    events.close()  # type: ignore[attr-defined]
    assert fabric.is_closed


def test_a_slower_program_is_not_published(tmp_path):
    fabric, events, _ = _begun(tmp_path / "table", _measured(1.2))
    before = _entry(tmp_path / "table")
    fabric.dead = {(2, 3), (3, 2)}
    assert _next(events, "canary")["rows"][0]["slower"]
    published = _next(events, "publish")
    assert _entry(tmp_path / "table").digest == before.digest
    assert read_table(tmp_path / "table")[1] == published["table"]


def test_a_comparison_that_fails_keeps_no_table_back(tmp_path):
    failure = RunFailure(FailureKind.TIMEOUT, "ranks did not start")
    fabric, events, _ = _begun(tmp_path / "table", lambda _: failure)
    fabric.dead = {(0, 1), (1, 0)}
    assert "ranks did not start" in _next(events, "canary")["failures"][0]
    assert _next(events, "publish")["spec"].startswith("without")


def test_a_fabric_in_two_parts_keeps_its_table(tmp_path):
    fabric, events, first = _begun(tmp_path / "table", seconds=120.0)
    fabric.dead = {link for link in fabric.links if (link[0] < 2) != (link[1] < 2)}
    later = list(events)
    assert any("error" in event for event in later if event["event"] == "replan")
    assert all(event["event"] != "publish" for event in later)
    assert read_table(tmp_path / "table")[1] == first["table"]


def test_a_link_that_flaps_is_planned_around_until_it_is_quiet(tmp_path):
    fabric = _fabric()
    watch = _watch(fabric, tmp_path / "table")
    events = _run(watch, fabric, 400.0)
    first = _next(events, "publish")
    fabric.flapping = (0, 1)
    flapping = next(event for event in events if event["event"] == "state" and event["to"] == "flapping")
    for _ in range(500):
        list(watch.step())
    assert watch.renewal.present.spec == "without(complete:4;link=0>1)"
    while fabric.now_s < flapping["time_s"] + 100:  # it goes on to flap, and nobody plans anew
        assert [event for event in watch.step() if event["event"] in ("state", "publish")] == []
    fabric.flapping = None
    calm = next(event for event in events if event["event"] == "state")
    assert (calm["from"], calm["to"]) == ("flapping", "healthy")
    assert _next(events, "publish")["table"] == first["table"]


def test_failures_planned_ahead_are_looked_up(tmp_path):
    fabric = _fabric()
    watch = _watch(fabric, tmp_path / "table")
    events = _run(watch, fabric)
    _next(events, "publish")
    while not watch.renewal.planner.has("without(complete:4;link=2>3;link=3>2)"):
        assert list(watch.step()) == []
    fabric.dead = {(2, 3), (3, 2)}
    assert _next(events, "replan")["ahead"]


def test_a_table_that_serves_jobs_worse_is_taken_back(tmp_path):
    fabric = _fabric()
    said: dict[Key, CallTimes] = {}

    def calls(count: int, seconds: float) -> None:
        key = _entry(tmp_path / "table").digest, "allreduce", _SIZE
        more = CallTimes(count, count * seconds, count * seconds**2 * 1.01)
        said[key] = said.get(key, CallTimes()) + more

    def measure(request: RunRequest) -> Outcome:
        calls(100, 0.01)  # a job runs the present program meanwhile
        return _measured(0.9)(request)

    watch = _watch(fabric, tmp_path / "table", measure, jobs=lambda: dict(said))
    events = _run(watch, fabric, 300.0)
    first = _next(events, "publish")
    fabric.dead = {(0, 1), (1, 0)}
    second = _next(events, "publish")
    calls(100, 0.02)  # and the new one takes twice as long
    back = _next(events, "rollback")
    assert (back["table"], back["instead_of"]) == (first["table"], second["table"])
    assert "2.00 times as long" in back["why"]
    assert read_table(tmp_path / "table")[1] == first["table"]
    assert [event for event in events if event["event"] in ("publish", "rollback")] == []


def test_a_lost_rank_has_a_table_for_the_others_and_comes_back(tmp_path):
    fabric, events, first = _begun(tmp_path / "table", _measured(0.9))
    fabric.dead = {link for link in fabric.links if 2 in link}
    without = _next(events, "publish")
    assert (without["spec"], without["ranks"]) == ("without(complete:4;node=2)", (0, 1, 3))
    assert read_table(tmp_path / "table")[0].ranks == 3
    fabric.dead.clear()
    back = _next(events, "publish")
    assert (back["table"], back["ranks"]) == (first["table"], (0, 1, 2, 3))


def test_a_watch_that_starts_again_goes_on_and_publishes_nothing_twice(tmp_path):
    fabric, events, _ = _begun(tmp_path / "table")
    fabric.dead = {(0, 1), (1, 0)}
    second = _next(events, "publish")
    events.close()  # type: ignore[attr-defined]
    written = (tmp_path / "table").read_bytes()
    again = _watch(fabric, tmp_path / "table")
    later = _run(again, fabric, 60.0)
    assert _next(later, "resume")["table"] == second["table"]
    assert [event for event in later if event["event"] == "publish"] == []
    assert (tmp_path / "table").read_bytes() == written
    shown = json.loads((tmp_path / "watch" / "state.json").read_text())["events"]
    assert [event["table"] for event in shown if event["event"] == "publish"][-1] == second["table"]  # of the first
    fabric.dead.clear()
    assert _next(_run(_watch(fabric, tmp_path / "table"), fabric), "publish")["spec"] == "complete:4"


def test_a_hold_keeps_tables_back_until_it_is_released(tmp_path):
    fabric, events, first = _begun(tmp_path / "table")
    (tmp_path / "watch" / "hold").touch()
    _next(events, "hold")
    fabric.dead = {(0, 1), (1, 0)}
    held = _next(events, "held")
    assert read_table(tmp_path / "table")[1] == first["table"]
    (tmp_path / "watch" / "hold").unlink()
    assert _next(events, "publish")["table"] == held["table"]
    (tmp_path / "watch" / "roll-back").touch()
    assert _next(events, "rollback")["table"] == first["table"]
