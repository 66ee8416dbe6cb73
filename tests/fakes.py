"""Stand-ins for tests: a runner that measures by formula, and a workshop without a cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from runners.api import FailureKind, Measurement, Outcome, RunFailure, RunRequest, SizeMeasurement
from runners.measurement.rungs import measure_in_rungs
from runners.preparation import Prepared, Recipe, Refusal
from runners.preparer import Preparer
from runners.workshop import Finished
from synth.lowering.program import Program

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
        """Nothing is held."""


def fail_with(kind: FailureKind) -> Fault:
    """Return a fault that fails every request."""
    return lambda request: RunFailure(kind, f"made to fail ({kind.value})")


class InlineWorkshop:
    """Implements the Workshop port in this process, one order per call of `wait`, the newest first if asked."""

    def __init__(self, runner: FakeRunner, newest_first: bool = False) -> None:
        self.runner = runner
        self.preparer = Preparer()
        self.closed = False
        self._newest_first = newest_first
        self._orders: deque[tuple[str, Recipe | RunRequest]] = deque()

    def prepare(self, key: str, recipe: Recipe) -> None:
        self._orders.append((key, recipe))

    def measure(self, key: str, request: RunRequest) -> None:
        self._orders.append((key, request))

    def wait(self, timeout_s: float) -> list[Finished]:
        if not self._orders:
            return []
        key, order = self._orders.pop() if self._newest_first else self._orders.popleft()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        answer: Prepared | Refusal | Outcome
        answer = self.preparer.prepare(order) if isinstance(order, Recipe) else measure_in_rungs(self.runner, order)
        return [Finished(key, answer, time.perf_counter() - began_s, time.process_time() - began_cpu_s)]

    def close(self) -> None:
        self.closed = True
