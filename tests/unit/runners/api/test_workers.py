"""Workers in processes and on Ray: every request has one completion, whatever happens to its process."""

import os
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    Outcome,
    ResourceRequest,
    RunFailure,
    RunRequest,
    Workers,
    completions,
)
from chorale.runners.api.registry import create_runner
from chorale.runners.ray.cluster import ray
from chorale.runners.ray.workers import RayWorkers
from chorale.runners.workers.campaign_worker import LocalWorkers
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import Unavailable
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.spec import parse_topology
from tests.fakes import FakeRunner, InlineWorkers
from tests.waiting import until

TOPOLOGY = parse_topology("ring:4")
LOWERING = LoweringOptions("oneccl-xml")
PATIENCE_S = 60.0


class MortalRunner(FakeRunner):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self._mark = Path(folder) / "died"

    def submit(self, request: RunRequest) -> Outcome:
        if not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(request)


class MisbehavingRunner(FakeRunner):
    """Does what the seed of the request stands for."""

    def submit(self, request: RunRequest) -> Outcome:
        misbehaviour, _ = MISBEHAVIOURS[request.seed]
        if misbehaviour == "raise":
            raise ZeroDivisionError("made to fail")
        if misbehaviour == "missing":
            raise Unavailable("hardware must be there", "none", "buy some")
        if misbehaviour == "hang":
            time.sleep(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(request)


MISBEHAVIOURS = (
    ("raise", FailureKind.CRASH),
    ("missing", FailureKind.UNAVAILABLE),
    ("hang", FailureKind.TIMEOUT),
    ("die always", FailureKind.CRASH),
)


@pytest.fixture(name="kind", params=[LocalWorkers, pytest.param(RayWorkers, marks=pytest.mark.ray)])
def kind_of_workers(request: pytest.FixtureRequest) -> Any:
    if request.param is RayWorkers:
        request.getfixturevalue("ray_cluster")
    return request.param


def build_request(method: str) -> BuildRequest:
    return BuildRequest(ScheduleRequest(TOPOLOGY, ALLREDUCE, method), LOWERING)


def built(workers: Workers, method: str = "ring") -> BuildResult:
    [completion] = completions(workers, [workers.build(build_request(method))])
    assert isinstance(completion.value, BuildResult)
    return completion.value


def measured(workers: Workers, *requests: RunRequest) -> list[Outcome]:
    futures = [workers.measure(request) for request in requests]
    return [completion.value for completion in completions(workers, futures)]


def request(program: BuildResult, timeout_s: float = 60.0, seed: int = 0) -> RunRequest:
    return RunRequest(TOPOLOGY, {"candidate": program.program}, (4096,), repeats=2, timeout_s=timeout_s, seed=seed)


def test_builds_and_measurements_come_back(kind: Any) -> None:
    workers = kind(partial(create_runner, "simulated", {"link_mbps": 100}), 2)
    try:
        futures = [workers.build(build_request(method)) for method in ("bfb", "ring", "none such")]
        bfb, ring, failure = (completion.value for completion in completions(workers, futures))
        assert isinstance(failure, BuildFailure)
        assert failure.kind == BuildFailureKind.INVALID
        assert isinstance(bfb, BuildResult)
        assert isinstance(ring, BuildResult)
        times = []
        for outcome in measured(workers, request(bfb), request(ring)):
            assert isinstance(outcome, Measurement)
            times.append(outcome.results["candidate"][0].median_s)
        assert times[1] == pytest.approx(2 * times[0])
    finally:
        workers.close()
        workers.close()


def test_a_killed_measurement_is_done_again_and_what_another_moment_may_mend(kind: Any, tmp_path: Path) -> None:
    with closing(kind(partial(MortalRunner, str(tmp_path)), 1)) as workers:
        program = built(workers)
        outcomes = measured(workers, request(program), request(program))
        assert (tmp_path / "died").exists()
        assert all(isinstance(outcome, Measurement) for outcome in outcomes)
    with closing(kind(partial(FailingRunner, str(tmp_path)), 1)) as workers:
        program = built(workers)
        outcomes = measured(workers, *(request(program, seed=case) for case in range(len(FAILURES))))
        for case, (kind, failures, attempts, ends_well) in enumerate(FAILURES):
            assert isinstance(outcomes[case], Measurement) == ends_well, (kind, failures)
            assert len(list(tmp_path.glob(f"{case}-*"))) == attempts, (kind, failures)


@pytest.mark.slow
def test_what_goes_wrong_becomes_a_failure_and_the_next_is_measured_all_the_same(kind: Any) -> None:
    with closing(kind(MisbehavingRunner, 1, grace_s=1.0)) as workers:
        program = built(workers)
        for case, (misbehaviour, kind) in enumerate(MISBEHAVIOURS):
            timeout_s = 0.5 if misbehaviour == "hang" else 30.0
            [outcome] = measured(workers, request(program, timeout_s, case))
            assert isinstance(outcome, RunFailure), misbehaviour
            assert outcome.kind == kind, misbehaviour
            assert "\n" not in outcome.message


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_builds_on_a_silent_node_are_repeated_when_it_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(RayWorkers(FakeRunner, 1)) as workers:
        monkeypatch.setattr(workers, "_task", ray.remote(num_cpus=0)(lambda *_: time.sleep(100)))
        future = workers.build(build_request("ring"))
        assert workers.wait([future], 0.1) == []
        monkeypatch.undo()
        monkeypatch.setattr("chorale.runners.ray.workers._dead_nodes", lambda: {"0" * 56})
        until(lambda: workers.wait([future], 1.0), 30)
        assert isinstance(future.result().value, BuildResult)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_without_room_is_refused() -> None:
    most = ResourceRequest(cpus=ray.cluster_resources()["CPU"] - 1)
    refused = pytest.raises(Unavailable, match="a node with 1 CPU to measure, and one CPU to prepare")
    with closing(RayWorkers(FakeRunner, 1, needs=most)), refused:
        RayWorkers(FakeRunner, 1, needs=ResourceRequest(patience_s=1))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (ResourceRequest(resources={"fabric": 1}, patience_s=1), "1 CPU, 1 fabric to measure"),
        (ResourceRequest(labels={"rack": "7"}, patience_s=1), "1 CPU, rack=7 to measure"),
        (ResourceRequest(gpus=9, patience_s=1), "1 CPU, 9 GPU"),
    ],
)
def test_what_no_node_has_is_named_in_time(needs: ResourceRequest, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        RayWorkers(FakeRunner, 1, needs=needs)


FAILURES = (  # kind, how often it fails, how often it is tried, whether that ends well
    (FailureKind.CRASH, 2, 3, True),
    (FailureKind.CRASH, 9, 3, False),
    (FailureKind.UNAVAILABLE, 1, 2, True),
    (FailureKind.TIMEOUT, 9, 1, False),  # there is no other node, so a hang is not waited for again
    (FailureKind.WRONG_RESULT, 9, 1, False),
    (FailureKind.REJECTED, 9, 1, False),
)


class FailingRunner(FakeRunner):
    """Fails as `FAILURES` says at the place of the request's seed; the folder there holds a mark for each time."""

    def __init__(self, folder: str) -> None:
        super().__init__(self._fail)
        self._folder = Path(folder)

    def _fail(self, request: RunRequest) -> RunFailure | None:
        kind, failures, *_ = FAILURES[request.seed]
        marks = len(list(self._folder.glob(f"{request.seed}-*"))) + 1
        (self._folder / f"{request.seed}-{marks}").touch()
        return RunFailure(kind, "made to fail") if marks <= failures else None


class MeetingRunner(FakeRunner):
    """Measures only while another process measures too: the folder has a mark of each that has begun."""

    def __init__(self, folder: str) -> None:
        super().__init__(self._without_another)
        self._folder = Path(folder)

    def _without_another(self, request: RunRequest) -> RunFailure | None:
        (self._folder / f"{request.seed // 2}-{os.getpid()}").touch()
        deadline_s = time.monotonic() + PATIENCE_S / 4
        while len(list(self._folder.glob(f"{request.seed // 2}-*"))) < 2:
            if time.monotonic() > deadline_s:
                return RunFailure(FailureKind.REJECTED, "nobody else measured meanwhile")
            time.sleep(0.01)
        return None


def test_two_measurers_work_at_once_and_everything_comes_back(kind: Any, tmp_path: Path) -> None:
    """Requests go in pairs, and one of a pair ends only once the other has begun in another process."""
    with closing(kind(partial(MeetingRunner, str(tmp_path)), 1, measurers=2)) as workers:
        program = built(workers)
        outcomes = measured(workers, *(request(program, seed=seed) for seed in range(6)))
        assert [outcome for outcome in outcomes if not isinstance(outcome, Measurement)] == []


@pytest.mark.parametrize("newest_first", [False, True])
def test_all_come_back_in_the_order_of_their_futures(newest_first: bool) -> None:
    workers = InlineWorkers(FakeRunner(), newest_first)
    source = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "no such method")
    build = workers.build(BuildRequest(source, LoweringOptions("oneccl-xml")))
    measurement = workers.measure(RunRequest(source.topology, {}, (64,)))
    failure, measured = (completion.value for completion in completions(workers, [build, measurement]))
    assert isinstance(failure, BuildFailure)
    assert failure.kind == BuildFailureKind.INVALID
    assert measured.results == {}
    assert completions(workers, []) == []
