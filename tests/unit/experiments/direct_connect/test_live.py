"""Experiments that measure: rows of what a runner says, what stands for a fabric, and how workers are counted."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from chorale.experiments.framework import live as live_fabric
from chorale.experiments.framework.live import LiveRun, measure_live
from chorale.experiments.framework.run import load, run_experiment
from chorale.experiments.ours import live as channels_live, scaling as strong_scaling
from chorale.experiments.ours.live import Sweep, SweepPoint
from chorale.runners.api.base import FailureKind, RunFailure, RunRequest
from chorale.synth.errors import Unavailable
from chorale.synth.topology.spec import parse_topology
from tests.chosen_cases import rows_of
from tests.fakes import FakeRunner, fail_with

FEW = (
    Sweep("forest", "k", {k: SweepPoint("forest", k, 1) for k in (1, 3)}),
    Sweep("forest", "chunks", {parts: SweepPoint("forest", 3, parts) for parts in (1, 2)}),
    Sweep("bfb", "channels", {count: SweepPoint("bfb", None, 1, count) for count in (1, 2)}),
)


def test_one_parameter_at_a_time(monkeypatch, tmp_path):
    by_formula = lambda request, *_: LiveRun(FakeRunner().submit(request), "fake", "a formula")  # noqa: E731
    monkeypatch.setattr(channels_live, "measure_live", by_formula)
    rows = rows_of("channels-live", lambda cases: [(FEW, *case[1:]) for case in cases])
    assert [row["value"] for row in rows] == [value for sweep in FEW for value in sweep.values]
    assert all(row["holds"] and row["reason"] == "a formula" for row in rows)
    assert all(row["over_first"] == 1 for row in rows if row["value"] == 1)
    assert {row["over_first_in_theory"] for row in rows if row["parameter"] == "channels"} == {1}
    (_, trees) = (row["over_first_in_theory"] for row in rows if row["parameter"] == "k")
    assert trees == pytest.approx(7 / 9)  # 7 shards over 3 links, in thirds instead of whole
    load("channels-live").plot(rows, tmp_path / "channels.svg")
    assert "links alone" in (tmp_path / "channels.svg").read_text()


def beside_a_slower_library(request: RunRequest, link_mbps: int, runner: str, options: object) -> LiveRun:
    outcome = FakeRunner().submit(request)
    best = [min(sizes, key=lambda size: size.median_s) for sizes in zip(*outcome.results.values(), strict=True)]
    slower = tuple(replace(size, times_s=tuple(2 * time for time in size.times_s)) for size in best)
    return LiveRun(replace(outcome, results={**outcome.results, "library:own": slower}), runner, None)


def test_the_engine_beside_what_links_allow_and_a_library(monkeypatch, tmp_path):
    monkeypatch.setattr(channels_live, "measure_on_fabric", beside_a_slower_library)
    rows = rows_of("engine-live", lambda cases: cases)
    assert all(row["holds"] and row["best_library_over_engine"] == pytest.approx(2) for row in rows)
    for row in rows:  # two thirds of 7/8 of the vector cross each link, with a header of 52 bytes for 8,948
        allowed_s = row["efficiency"] * row["time_us"] / 1e6
        assert allowed_s == pytest.approx(row["size_bytes"] * 7 / 12 * 8 / 25e6, rel=0.01)
        assert allowed_s > row["size_bytes"] * 7 / 12 * 8 / 25e6
    assert {row["program"] for row in rows} <= {"bfb", "recursive-doubling", "swing-latency"}
    load("engine-live").plot(rows, tmp_path / "engine.svg")
    assert "hypercube:3, 25 Mbit/s" in (tmp_path / "engine.svg").read_text()


def test_a_run_that_fails_does_not_hold(monkeypatch):
    failed = LiveRun(RunFailure(FailureKind.TIMEOUT, "rank 1 hangs"), "fake", None)
    for measure in ("measure_live", "measure_on_fabric"):
        monkeypatch.setattr(channels_live, measure, lambda *_: failed)
    rows = rows_of("channels-live", lambda cases: [(FEW[2:], *case[1:]) for case in cases])
    rows = [*rows, *rows_of("engine-live", list)]
    assert [(row["holds"], row["reason"]) for row in rows] == [(False, "timeout: rank 1 hangs")] * 2


@contextmanager
def a_fabric(*_):
    yield "fabric"


@contextmanager
def no_fabric(*_):
    raise Unavailable("there must be namespaces", "none", "be root")
    yield


@pytest.mark.parametrize(
    ("fabric", "present", "runner", "reason"),
    [
        (a_fabric, ("oneccl", "mpi", "local"), "oneccl on a fabric", None),
        (a_fabric, ("mpi", "local"), "mpi on a fabric", "no oneccl: made to fail (unavailable)"),
        (a_fabric, ("local",), "local", "no mpi: made to fail (unavailable)"),
        (no_fabric, ("oneccl", "local"), "local", "no fabric: there must be namespaces, got none; be root"),
    ],
)
def test_what_stands_for_a_fabric(monkeypatch, tmp_path, fabric, present, runner, reason):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    monkeypatch.setattr(live_fabric, "machine_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(live_fabric, "_fabric", fabric)
    made = []

    def create(name, _options, _home):
        made.append(name)
        return FakeRunner() if name in present else FakeRunner(fail_with(FailureKind.UNAVAILABLE))

    monkeypatch.setattr(live_fabric, "create_runner", create)
    live = measure_live(RunRequest(parse_topology("ring:4"), {}, (1024,)), 50)
    assert (live.runner, live.outcome.runner) == (runner, "fake")
    assert live.runner.startswith(made[-1])
    assert (live.substitution or "").endswith(reason or "")


def test_another_answer_with_more_workers_does_not_hold(tmp_path):
    def turn(*seconds, last="a"):
        answers = ("a", "a", last)
        return {
            2**place: strong_scaling._Timed(*timed) for place, timed in enumerate(zip(seconds, answers, strict=True))
        }

    rounds = [turn(8.0, 5.0, 2.0), turn(8.0, 4.0, 2.0), turn(16.0, 8.0, 2.0, last="b")]
    rows = [strong_scaling._row("task", workers, rounds) for workers in (1, 2, 4)]
    assert [strong_scaling.worker_counts(cores) for cores in (1, 6)] == [[1], [1, 2, 4, 6]]
    assert [(row["least"], row["speedup"], row["most"]) for row in rows] == [(1, 1, 1), (1.6, 2, 2), (4, 4, 8)]
    assert [row["holds"] for row in rows] == [True, True, False]
    load("strong-scaling").plot(rows, tmp_path / "workers.svg")
    assert "Ray workers" in (tmp_path / "workers.svg").read_text()


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_workers():
    rows = run_experiment(load("strong-scaling"), True).rows
    assert all(row["holds"] and row["speedup"] > 0 for row in rows)
