"""The workers of a campaign on one machine: processes."""

from collections import Counter
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from chorale.runners.api.base import FailureKind, Outcome, RunFailure, RunRequest
from chorale.runners.api.workers import Completion
from chorale.runners.workers.campaign_worker import (
    BUILD_LIMIT_S,
    MEASURE_GRACE_S,
    RETRIES,
    BuilderFactory,
    CampaignWorker,
    RunnerFactory,
    build_failure,
    measure_limit_s,
    run_failure,
)
from chorale.synth.build.build import CachingBuilder
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult
from chorale.synth.executor.processes import ProcessPool, shared_message

CLOSE_LIMIT_S = 5.0


class LocalWorkers:
    """Implements `Workers` with `builders` processes that build and `measurers` that measure, each with a runner.

    A process that dies is replaced and its request is done again, a few times. Measurements that fail are tried again
    as `RETRIES` says.
    """

    def __init__(
        self,
        make_runner: RunnerFactory,
        builders: int,
        *,
        measurers: int = 1,
        alone: bool = False,
        make_builder: BuilderFactory = CachingBuilder,
        grace_s: float = MEASURE_GRACE_S,
    ) -> None:
        self._worker = shared_message(CampaignWorker(make_runner, make_builder, alone))
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
        completion: Completion[BuildResult | BuildFailure]
        try:
            completion = self._builders.call(CampaignWorker.build, self._worker, request, BUILD_LIMIT_S)
        except Exception as error:  # a value, so that the campaign goes on
            completion = build_failure(error)
        return completion

    def _measure(self, request: RunRequest) -> Completion[Outcome]:
        limit_s = measure_limit_s(request, self._grace_s, self._alone)
        failures: Counter[FailureKind] = Counter()
        completion: Completion[Outcome]
        while True:
            try:
                completion = self._measurers.call(CampaignWorker.measure, self._worker, request, limit_s)
            except Exception as error:  # the same
                return run_failure(error)
            outcome = completion.value
            if not isinstance(outcome, RunFailure) or failures[outcome.kind] >= RETRIES.get(outcome.kind, 0):
                return completion
            failures[outcome.kind] += 1
