"""Building and measuring in actors: each request is packed and opened here, on either side of the message.

Actors keep no state that is not rebuilt on a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

from chorale.runners.api.base import FailureKind, Outcome, RunFailure, Runner, RunRequest
from chorale.runners.api.workers import Completion, Future
from chorale.runners.measurement.driver import measure_in_rungs
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.runners.ray.parcels import Packed, Parcel, ParcelOpener, SharedValues
from chorale.runners.ray.pool import Call, RayPool
from chorale.synth.build.cache import CachingBuilder
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.errors import ChoraleError, Unavailable
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.redaction import redacted

ALONE_PATIENCE_S = 600.0
BUILD_LIMIT_S = 600.0

_OTHERS = tuple(field.name for field in fields(RunRequest) if field.name not in ("topology", "programs"))

RunnerFactory = Callable[[], Runner]
"""A picklable call that makes a runner, for example `functools.partial(create_runner, "local")`."""

BuilderFactory = Callable[[], CachingBuilder]
"""A picklable call that makes a builder, with the caches that it looks into."""


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


class MeasureWorker:
    """Holds a runner, made when it is first needed. An `alone` one measures while nobody else does on its machine."""

    def __init__(self, make_runner: RunnerFactory, alone: bool = False) -> None:
        self._make_runner = make_runner
        self._alone = alone
        self._runner: Runner | None = None
        self._opener = ParcelOpener()

    def measure(
        self, shared: dict[str, Parcel], programs: dict[str, Parcel], others: Packed[dict[str, Any]]
    ) -> Completion[Outcome]:
        """Return what the runner says to a RunRequest, and what that took; an error of it becomes a RunFailure too."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        opened = {name: self._opener.open(program) for name, program in programs.items()}
        outcome = self.run(RunRequest(self._opener.open(shared["topology"]), opened, **others.open()))
        return Completion(outcome, None, time.perf_counter() - began_s, time.process_time() - began_cpu_s)

    def run(self, request: RunRequest) -> Outcome:
        """Return what the runner says to `request`; an error of it becomes a RunFailure too."""
        try:
            with exclusive(machine_lock(), ALONE_PATIENCE_S) if self._alone else nullcontext():
                if self._runner is None:
                    self._runner = self._make_runner()
                return measure_in_rungs(self._runner, request)
        except Unavailable as error:
            return RunFailure(FailureKind.UNAVAILABLE, str(error))
        except ChoraleError as error:
            return RunFailure(FailureKind.REJECTED, str(error))
        except Exception as error:  # a value, so that one bad run does not end the campaign
            self._runner = None
            return RunFailure(FailureKind.CRASH, _one_line(error, f"{type(error).__name__}: "))

    def close(self) -> bool:
        """Let go of the runner before the actor is killed."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        return True


def _returned(completion: Completion[Any]) -> Completion[Any]:
    return completion


def _unpacked(completion: Completion[Packed[BuildResult | BuildFailure]]) -> Completion[BuildResult | BuildFailure]:
    return Completion(completion.value.open(), None, completion.seconds, completion.cpu_s)


def _build_failed(error: BaseException) -> Completion[BuildResult | BuildFailure]:
    return Completion(BuildFailure(BuildFailureKind.CRASH, _one_line(error)))


def _measurement_failed(error: BaseException) -> Completion[Outcome]:
    kind = FailureKind.TIMEOUT if isinstance(error, TimeoutError) else FailureKind.CRASH
    return Completion(RunFailure(kind, _one_line(error)))


def _one_line(error: BaseException, kind: str = "") -> str:
    return redacted(" ".join(f"{kind}{error}".split()))
