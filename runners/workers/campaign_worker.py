"""Builds and measures a campaign's candidates in worker processes on one machine."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from chorale.runners.api.base import (
    Completion,
    FailureKind,
    Measurement,
    Outcome,
    Race,
    RunFailure,
    Runner,
    RunRequest,
    Value,
)
from chorale.runners.measurement.driver import believable
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.synth.build.build import CachingBuilder
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult
from chorale.synth.errors import ChoraleError, Unavailable
from chorale.synth.executor.processes import ProcessPool, shared_message
from chorale.synth.redaction import redacted

BUILD_LIMIT_S = 600.0
MEASURE_GRACE_S = 30.0
"""Seconds that a measurement may take beyond the time limit that the runner enforces."""
ALONE_PATIENCE_S = 600.0

RETRIES: Mapping[FailureKind, int] = MappingProxyType({FailureKind.CRASH: 2, FailureKind.UNAVAILABLE: 2})
"""Failure kind -> how often a failed measurement is repeated. Wrong results and refusals are never repeated, because
they do not depend on chance."""

RunnerFactory = Callable[[], Runner]
"""A picklable function that creates a runner, for example `functools.partial(create_runner, "local")`."""
CLOSE_LIMIT_S = 5.0


class CampaignWorker:
    """Builds and measures a campaign's candidates. Its builder and runner are created at first use and never pickled.

    alone: whether measurements wait until no other campaign measures on this machine
    """

    def __init__(self, make_runner: RunnerFactory, alone: bool = False) -> None:
        self._factory = make_runner, alone
        self._builder: CachingBuilder | None = None
        self._runner: Runner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return CampaignWorker, self._factory

    def build(self, request: BuildRequest) -> Completion[BuildResult | BuildFailure]:
        """Synthesize, verify, lower and check a candidate."""
        self._builder = self._builder or CachingBuilder()
        return _timed(self._builder.build, request)

    def measure(self, request: RunRequest) -> Completion[Outcome]:
        """Measure a candidate. If the runner raises an error, return it as a RunFailure."""
        return _timed(self._measured, request)

    def close(self) -> bool:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        return True

    def _measured(self, request: RunRequest) -> Outcome:
        make_runner, alone = self._factory
        try:
            with exclusive(machine_lock(), ALONE_PATIENCE_S) if alone else nullcontext():
                self._runner = self._runner or make_runner()
                return measure_in_rungs(self._runner, request)
        except Unavailable as error:
            return RunFailure(FailureKind.UNAVAILABLE, str(error))
        except ChoraleError as error:
            return RunFailure(FailureKind.REJECTED, str(error))
        except Exception as error:  # return a failure, so that one bad run does not end the campaign
            self._runner = None
            return RunFailure(FailureKind.CRASH, error_line(error, f"{type(error).__name__}: "))


def measure_in_rungs(runner: Runner, request: RunRequest) -> Outcome:
    """Measure `request`. If it has a `Race`, measure a few repetitions first, and the rest only at the sizes at which
    the program is not clearly slower than the best one.

    Each of the two measurements has the full time limit. If one of them fails, its failure is the result.
    """
    race = request.race
    if race is None or race.first_repeats >= request.repeats:
        return believable(request, runner.submit(request))
    opening = replace(request, repeats=race.first_repeats)
    first = believable(opening, runner.submit(opening))
    if isinstance(first, RunFailure) or not (on := sizes_in_race(first, race)):
        return first
    sizes_bytes = tuple(request.sizes_bytes[index] for index in on)
    repeats = request.repeats - race.first_repeats
    more = replace(request, repeats=repeats, seed=request.seed + 2**31, sizes_bytes=sizes_bytes)
    rest = believable(more, runner.submit(more))
    if isinstance(rest, RunFailure):
        return rest
    results = {name: list(early) for name, early in first.results.items()}
    for name, joined in results.items():
        for index, later in zip(on, rest.results[name], strict=True):
            joined[index] = replace(joined[index], times_s=joined[index].times_s + later.times_s)
    return Measurement(first.runner, {name: tuple(sizes) for name, sizes in results.items()}, rest.environment)


def sizes_in_race(measurement: Measurement, race: Race) -> list[int]:
    """Return the indices of the sizes at which a program is not clearly slower than the best known one.

    If a reference was measured too, each repetition is compared with the reference's repetition of the same number,
    because other load on the machine slows both. If the program is as fast as the best known one, all n of its
    repetitions exceed the ratio with a probability of at most 2^-n.
    """
    on = []
    for index, ratio in enumerate(race.ratios):
        times_s = np.array(measurement.results[race.name][index].times_s)
        references = [measurement.results[name][index] for name in race.references if name in measurement.results]
        fastest = min(references, key=lambda one: one.median_s, default=None)
        ratios = times_s / (race.reference_s[index] if fastest is None else np.array(fastest.times_s))
        if np.min(ratios) <= ratio * (1 + race.margin):
            on.append(index)
    return on


def measure_limit_s(request: RunRequest, grace_s: float, alone: bool) -> float:
    """Return the time in seconds after which a worker that does not reply is considered to hang."""
    return request.timeout_s + grace_s + (ALONE_PATIENCE_S if alone else 0.0)


def build_failure(error: BaseException) -> Completion[BuildResult | BuildFailure]:
    return Completion(BuildFailure(BuildFailureKind.CRASH, error_line(error)))


def run_failure(error: BaseException) -> Completion[Outcome]:
    kind = FailureKind.TIMEOUT if isinstance(error, TimeoutError) else FailureKind.CRASH
    return Completion(RunFailure(kind, error_line(error)))


def error_line(error: BaseException, kind: str = "") -> str:
    """Return the text of `error` in one line, without passwords."""
    return redacted(" ".join(f"{kind}{error}".split()))


def _timed(work: Callable[[Any], Value], request: Any) -> Completion[Value]:
    began_s = time.perf_counter()
    value = work(request)
    return Completion(value, time.perf_counter() - began_s)


class LocalWorkers:
    """Implements `Workers` on this machine, with `builders` processes that build and `measurers` that measure.

    If a process dies, it is replaced and its request is repeated a few times. Measurements that fail are repeated as
    often as `RETRIES` specifies.
    """

    def __init__(
        self,
        make_runner: RunnerFactory,
        builders: int,
        *,
        measurers: int = 1,
        alone: bool = False,
        grace_s: float = MEASURE_GRACE_S,
    ) -> None:
        self._worker = shared_message(CampaignWorker(make_runner, alone))
        self._alone, self._grace_s = alone, grace_s
        self._builders = ProcessPool(builders, CampaignWorker.__module__)
        self._measurers = ProcessPool(measurers, CampaignWorker.__module__)

    def build(self, request: BuildRequest) -> Future[Completion[BuildResult | BuildFailure]]:
        return self._builders.threads.submit(self._build, request)

    def measure(self, request: RunRequest) -> Future[Completion[Outcome]]:
        return self._measurers.threads.submit(self._measure, request)

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        done = wait(futures, timeout_s, FIRST_COMPLETED).done
        return [future for future in futures if future in done]

    def close(self) -> None:
        self._builders.close()
        self._measurers.close(CLOSE_LIMIT_S)

    def _build(self, request: BuildRequest) -> Completion[BuildResult | BuildFailure]:
        try:
            return self._builders.call(CampaignWorker.build, self._worker, request, BUILD_LIMIT_S)
        except Exception as error:  # return a failure, so that the campaign continues
            return build_failure(error)

    def _measure(self, request: RunRequest) -> Completion[Outcome]:
        limit_s = measure_limit_s(request, self._grace_s, self._alone)
        failures: Counter[FailureKind] = Counter()
        while True:
            try:
                completion = self._measurers.call(CampaignWorker.measure, self._worker, request, limit_s)
            except Exception as error:  # see above
                return run_failure(error)
            outcome = completion.value
            if not isinstance(outcome, RunFailure) or failures[outcome.kind] >= RETRIES.get(outcome.kind, 0):
                return completion
            failures[outcome.kind] += 1
