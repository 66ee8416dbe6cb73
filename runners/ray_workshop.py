"""The Workshop on Ray: several actors prepare, one measures."""

from __future__ import annotations

from typing import Any

from runners.api import FailureKind, RunFailure, RunRequest
from runners.preparation import Recipe, Refusal, RefusalKind
from runners.ray_cluster import RayCluster
from runners.ray_pool import Done, Job, RayPool, wait_for
from runners.ray_workers import MeasureWorker, PrepareWorker, RunnerFactory
from runners.workshop import Finished
from synth.errors import Unavailable

PREPARE_LIMIT_S = 600.0
MEASURE_GRACE_S = 30.0  # beyond the runner's own watchdog


class RayWorkshop:
    """Actors on a local or an existing cluster: up to `preparers` of them prepare, one holds the live runner.

    Each takes one logical CPU. An actor that dies is replaced and its order is done again, a few times; then
    the answer is a failure of kind crash. Closing leaves an existing cluster as it was.
    """

    def __init__(self, make_runner: RunnerFactory, preparers: int, address: str | None = None) -> None:
        self._cluster = RayCluster(address, preparers + 1)
        free = self._cluster.wait_for_cpus(preparers + 1)
        if free < 2:
            self._cluster.close()
            rule = "a campaign needs two free CPUs on the Ray cluster, one to measure and one to prepare"
            raise Unavailable(rule, f"{free} free", "wait for other jobs, or unset RAY_ADDRESS to use this machine")
        self._measurers = RayPool(MeasureWorker, (make_runner,), 1)
        self._preparers = RayPool(PrepareWorker, (), min(preparers, free - 1))

    def prepare(self, key: str, recipe: Recipe) -> None:
        self._preparers.submit(Job(("prepare", key), "prepare", (recipe,), PREPARE_LIMIT_S))

    def measure(self, key: str, request: RunRequest) -> None:
        limit_s = request.timeout_s + MEASURE_GRACE_S
        self._measurers.submit(Job(("measure", key), "measure", (request,), limit_s))

    def wait(self, timeout_s: float) -> list[Finished]:
        return [_finished(done) for done in wait_for([self._measurers, self._preparers], timeout_s)]

    def close(self) -> None:
        self._measurers.close("close")
        self._preparers.close()
        self._cluster.close()


def _finished(done: Done) -> Finished:
    stage, key = _stage_and_key(done.key)
    if done.error is None:
        answer, seconds = done.value
        return Finished(key, answer, seconds)
    message = " ".join(f"{done.error}".split())
    if stage == "prepare":
        return Finished(key, Refusal(RefusalKind.CRASH, message))
    kind = FailureKind.TIMEOUT if isinstance(done.error, TimeoutError) else FailureKind.CRASH
    return Finished(key, RunFailure(kind, message))


def _stage_and_key(key: Any) -> tuple[str, str]:
    stage, order = key
    return stage, order
