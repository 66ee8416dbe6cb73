"""Stand-ins for tests: a runner that measures by formula, and workers without a cluster."""

import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

from chorale.runners.api.base import (
    Completion,
    FailureKind,
    Measurement,
    Outcome,
    RunFailure,
    Runner,
    RunRequest,
    SizeMeasurement,
)
from chorale.runners.workers.campaign_worker import measure_in_rungs
from chorale.synth.build.build import CachingBuilder
from chorale.synth.programs.program import Program

Fault = Callable[[RunRequest], RunFailure | None]


def fake_seconds(program: Program, size_bytes: int) -> float:
    """The more instructions the longest block has and the more bytes each moves, the slower."""
    longest = max(len(block.instructions) for rank in program.ranks for block in rank.blocks)
    return longest * (1e-5 + size_bytes / program.chunks * 1e-8)


class FakeRunner:
    """Implements the Runner port by formula. `fault` may turn a request into a failure."""

    name = "fake"

    def __init__(self, fault: Fault = lambda request: None) -> None:
        self.requests: list[RunRequest] = []
        self.closed = False
        self._fault = fault

    def submit(self, request: RunRequest) -> Outcome:
        self.requests.append(request)
        failure = self._fault(request)
        if failure is not None:
            return failure
        if request.library:
            return RunFailure(FailureKind.REJECTED, "a formula has no algorithms of its own")
        results = {
            name: tuple(
                SizeMeasurement(size, size, (fake_seconds(program, size),) * request.repeats, correct=True)
                for size in request.sizes_bytes
            )
            for name, program in request.programs.items()
        }
        return Measurement(self.name, results, {"runner": self.name})

    def library(self, collective: str) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self.closed = True


def fail_with(kind: FailureKind) -> Fault:
    """Return a fault that fails every request."""
    return lambda request: RunFailure(kind, f"made to fail ({kind.value})")


class InlineWorkers:
    """Implements the Workers port in this process, one request per call of `wait`, the newest first if asked."""

    def __init__(self, runner: Runner, newest_first: bool = False) -> None:
        self.runner = runner
        self.caching_builder = CachingBuilder()
        self.closed = False
        self._newest_first = newest_first
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def build(self, request: Any) -> Future[Any]:
        return self._submitted(partial(self.caching_builder.build, request))

    def measure(self, request: Any) -> Future[Any]:
        return self._submitted(lambda: measure_in_rungs(self.runner, request))

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        done = [future for future in futures if future.done()]
        if done or not self._waiting:
            return done
        future, work = self._waiting.pop() if self._newest_first else self._waiting.popleft()
        began_s = time.perf_counter()
        value = work()
        future.set_result(Completion(value, time.perf_counter() - began_s))
        return [future for future in futures if future.done()]

    def close(self) -> None:
        self.closed = True

    def _submitted(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, work))
        return future
