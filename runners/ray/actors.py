"""What runs inside the actors of a campaign: they keep no state that is not rebuilt on a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from chorale.runners.api.base import FailureKind, Outcome, RunFailure, Runner, RunRequest
from chorale.runners.api.workers import Completion
from chorale.runners.measurement.driver import measure_in_rungs
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.runners.ray.parcels import BuildParcel, Packed, ParcelOpener, RunParcel
from chorale.synth.build.cache import CachingBuilder
from chorale.synth.build.request import BuildFailure, BuildResult
from chorale.synth.errors import ChoraleError, Unavailable

ALONE_PATIENCE_S = 600.0

RunnerFactory = Callable[[], Runner]
"""A picklable call that makes a runner, for example `functools.partial(create_runner, "local")`."""

BuilderFactory = Callable[[], CachingBuilder]
"""A picklable call that makes a builder, with the caches that it looks into."""


class BuildWorker:
    """Synthesizes, verifies, lowers and checks candidates."""

    def __init__(self, make_builder: BuilderFactory) -> None:
        self._builder = make_builder()
        self._opener = ParcelOpener()

    def build(self, request: BuildParcel) -> Completion[Packed[BuildResult | BuildFailure]]:
        """Return what came of it, and what that took."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        result = Packed.of(self._builder.build(request.open(self._opener)))
        return Completion(result, None, time.perf_counter() - began_s, time.process_time() - began_cpu_s)


class MeasureWorker:
    """Holds a runner, made when it is first needed. An `alone` one measures while nobody else does on its machine."""

    def __init__(self, make_runner: RunnerFactory, alone: bool = False) -> None:
        self._make_runner = make_runner
        self._alone = alone
        self._runner: Runner | None = None
        self._opener = ParcelOpener()

    def measure(self, request: RunParcel) -> Completion[Outcome]:
        """Return what the runner says, and what that took; an error of the runner becomes a RunFailure too."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        outcome = self._submit(request.open(self._opener))
        return Completion(outcome, None, time.perf_counter() - began_s, time.process_time() - began_cpu_s)

    def _submit(self, request: RunRequest) -> Outcome:
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
            return RunFailure(FailureKind.CRASH, " ".join(f"{type(error).__name__}: {error}".split()))

    def close(self) -> bool:
        """Let go of the runner before the actor is killed."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        return True
