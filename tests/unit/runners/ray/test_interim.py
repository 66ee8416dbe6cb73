"""Workers in this process until a cluster has started, and without one where it does not start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from chorale.runners.api.base import FailureKind, RunFailure, RunRequest
from chorale.runners.api.workers import completions
from chorale.runners.ray.interim import InterimWorkers
from chorale.synth.build.cache import CachingBuilder
from chorale.synth.build.request import BuildRequest
from chorale.synth.errors import Unavailable
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.request_builder import RequestBuilder
from tests.campaigns import small_campaign
from tests.fakes import FakeRunner, InlineWorkers

LIMIT_S = 30.0


class Start:
    """The start of a cluster, which takes until it is released; the first `failures` starts fail."""

    def __init__(self, failures: int = 0) -> None:
        self.cluster = InlineWorkers(FakeRunner())
        self.failures = failures
        self.begun = 0
        self._released = threading.Event()

    def prepare(self) -> Any:
        self.begun += 1
        return self.start

    def start(self) -> Any:
        assert self._released.wait(LIMIT_S)
        if self.begun <= self.failures:
            raise Unavailable("a cluster must start", "it does not", "try again")
        return self.cluster

    def release(self, workers: InterimWorkers) -> None:
        self._released.set()
        deadline_s = time.monotonic() + LIMIT_S
        while not workers.is_settled:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


@contextmanager
def interim(start: Start, runner: FakeRunner | None = None, after_s: float = 0.0) -> Iterator[InterimWorkers]:
    local = runner or FakeRunner()
    workers = InterimWorkers(start.prepare, lambda: local, CachingBuilder, start_after_s=after_s, pauses_s=(0.0,))
    with closing(workers):
        try:
            yield workers
        finally:
            start.release(workers)
    assert start.cluster.closed == (start.begun > start.failures)


def build_request() -> BuildRequest:
    campaign = small_campaign()
    return next(iter(RequestBuilder(campaign, load_topology(campaign.topology)).baseline_builds().values()))


def run_request(workers: InterimWorkers) -> RunRequest:
    campaign = small_campaign()
    topology = load_topology(campaign.topology)
    [built] = completions(workers, [workers.builder.submit(build_request())])
    workers.share(topology, [built.value.program])
    return RunRequest(topology, {"ring": built.value.program}, (4096,), 1)


def build_until_it_starts(start: Start, workers: InterimWorkers, times: int) -> None:
    """Build until a cluster has begun to start `times` times: that is looked at while something is waited for."""
    deadline_s = time.monotonic() + LIMIT_S
    while start.begun < times:
        assert time.monotonic() < deadline_s
        completions(workers, [workers.builder.submit(build_request())])


def test_work_goes_on_here_until_there_is_a_cluster_and_then_there() -> None:
    start, runner = Start(), FakeRunner()
    with interim(start, runner) as workers:
        request = run_request(workers)
        build_until_it_starts(start, workers, 1)
        [first] = completions(workers, [workers.measurer.submit(request)])
        assert len(runner.requests) == 1
        assert not workers.is_settled  # what starts may show in times
        start.release(workers)
        [second] = completions(workers, [workers.measurer.submit(request)])
        assert len(start.cluster.runner.requests) == 1
        assert first.value == second.value
        assert runner.closed


def test_work_goes_on_here_where_no_cluster_starts_and_it_is_tried_again() -> None:
    start, runner = Start(failures=1), FakeRunner()
    with interim(start, runner) as workers:
        request = run_request(workers)
        build_until_it_starts(start, workers, 1)
        start.release(workers)
        completions(workers, [workers.measurer.submit(request)])
        assert len(runner.requests) == 1
        build_until_it_starts(start, workers, 2)
        start.release(workers)
        completions(workers, [workers.measurer.submit(request)])
        assert (start.begun, len(runner.requests), len(start.cluster.runner.requests)) == (2, 1, 1)


def test_after_the_last_failure_nobody_tries_again() -> None:
    start, runner = Start(failures=9), FakeRunner()
    with interim(start, runner) as workers:
        request = run_request(workers)
        for attempts in (1, 2, 2, 2):
            build_until_it_starts(start, workers, attempts)
            start.release(workers)
            completions(workers, [workers.measurer.submit(request)])
    assert (start.begun, len(runner.requests)) == (2, 4)


def test_a_short_campaign_starts_no_cluster() -> None:
    start, runner = Start(), FakeRunner()
    with interim(start, runner, after_s=60.0) as workers:
        completions(workers, [workers.measurer.submit(run_request(workers))])
        assert workers.is_settled
    assert (start.begun, len(runner.requests)) == (0, 1)


def test_a_measurement_that_crashes_is_repeated_as_in_a_cluster() -> None:
    failures = [RunFailure(FailureKind.CRASH, "once")]
    runner = FakeRunner(lambda request: failures.pop() if failures else None)
    with interim(Start(), runner) as workers:
        [measured] = completions(workers, [workers.measurer.submit(run_request(workers))])
        assert not isinstance(measured.value, RunFailure)
        assert len(runner.requests) == 2
