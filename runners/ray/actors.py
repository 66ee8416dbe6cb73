"""Building and measuring in actors: each request is packed and opened here, on either side of the message.

Actors keep no state that is not rebuilt on a restart.
"""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

from chorale.runners.api.base import FailureKind, Outcome, RunFailure, RunRequest
from chorale.runners.api.workers import Completion, Future
from chorale.runners.ray.parcels import Packed, Parcel, ParcelOpener, SharedValues
from chorale.runners.ray.pool import Call, RayPool
from chorale.runners.ray.runner_holder import BuilderFactory, RunnerFactory, RunnerHolder, error_line
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.lowering.options import LoweringOptions

BUILD_LIMIT_S = 600.0

_OTHERS = tuple(field.name for field in fields(RunRequest) if field.name not in ("topology", "programs"))


class RayBuilder:
    """Submits to a pool of `BuildWorker`s, of which each takes one CPU."""

    def __init__(self, pool: RayPool, shared: SharedValues) -> None:
        self._pool = pool
        self._shared = shared

    def submit(self, request: BuildRequest) -> Future[BuildResult | BuildFailure]:
        source = request.source
        topology = {"topology": self._shared.parcel(source.topology)}  # in a dict, as Ray opens bare references itself
        others = Packed.of((source.collective, source.method, source.options, source.depth))
        return self._pool.submit(
            Call("build", (topology, others, request.lowering), BUILD_LIMIT_S, _unpacked, _build_failed)
        )


class BuildWorker:
    """Synthesizes, verifies, lowers and checks candidates."""

    def __init__(self, make_builder: BuilderFactory) -> None:
        self._builder = make_builder()
        self._opener = ParcelOpener()

    def build(
        self, shared: dict[str, Parcel], others: Packed[tuple[Any, ...]], lowering: LoweringOptions
    ) -> Completion[Packed[BuildResult | BuildFailure]]:
        """Return what came of a BuildRequest, and what that took."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        source = ScheduleRequest(self._opener.open(shared["topology"]), *others.open())
        result = Packed.of(self._builder.build(BuildRequest(source, lowering)))
        return Completion(result, None, time.perf_counter() - began_s, time.process_time() - began_cpu_s)


class RayMeasurer:
    """Submits to a pool of `MeasureWorker`s; a measurement may take `grace_s` beyond the runner's own watchdog."""

    def __init__(self, pool: RayPool, shared: SharedValues, grace_s: float) -> None:
        self._pool = pool
        self._shared = shared
        self._grace_s = grace_s

    def submit(self, request: RunRequest) -> Future[Outcome]:
        topology = {"topology": self._shared.parcel(request.topology)}
        programs = {name: self._shared.parcel(program) for name, program in request.programs.items()}
        others = Packed.of({name: getattr(request, name) for name in _OTHERS})
        limit_s = request.timeout_s + self._grace_s
        return self._pool.submit(Call("measure", (topology, programs, others), limit_s, _returned, _measurement_failed))


class MeasureWorker(RunnerHolder):
    """A `RunnerHolder` in an actor."""

    def __init__(self, make_runner: RunnerFactory, alone: bool = False) -> None:
        super().__init__(make_runner, alone)
        self._opener = ParcelOpener()

    def measure(
        self, shared: dict[str, Parcel], programs: dict[str, Parcel], others: Packed[dict[str, Any]]
    ) -> Completion[Outcome]:
        """Return what the runner says to a RunRequest, and what that took; an error of it becomes a RunFailure too."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        opened = {name: self._opener.open(program) for name, program in programs.items()}
        outcome = self.run(RunRequest(self._opener.open(shared["topology"]), opened, **others.open()))
        return Completion(outcome, None, time.perf_counter() - began_s, time.process_time() - began_cpu_s)


def _returned(completion: Completion[Any]) -> Completion[Any]:
    return completion


def _unpacked(completion: Completion[Packed[BuildResult | BuildFailure]]) -> Completion[BuildResult | BuildFailure]:
    return Completion(completion.value.open(), None, completion.seconds, completion.cpu_s)


def _build_failed(error: BaseException) -> Completion[BuildResult | BuildFailure]:
    return Completion(BuildFailure(BuildFailureKind.CRASH, error_line(error)))


def _measurement_failed(error: BaseException) -> Completion[Outcome]:
    kind = FailureKind.TIMEOUT if isinstance(error, TimeoutError) else FailureKind.CRASH
    return Completion(RunFailure(kind, error_line(error)))
