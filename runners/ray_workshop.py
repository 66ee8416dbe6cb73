"""The Workshop on Ray: several actors prepare, one or a few measure."""

from __future__ import annotations

import math
import time
from typing import Any

from runners.api import FailureKind, RunFailure, RunRequest
from runners.needs import Needs
from runners.packed import Packed
from runners.preparation import Recipe, Refusal, RefusalKind
from runners.ray_cluster import RayCluster
from runners.ray_pool import Done, Job, RayPool, wait_for
from runners.ray_workers import ALONE_PATIENCE_S, MeasureWorker, PrepareWorker, RunnerFactory
from runners.retries import Retries
from runners.workshop import Finished
from synth.errors import Unavailable

PREPARE_LIMIT_S = 600.0
MEASURE_GRACE_S = 30.0  # beyond the runner's own watchdog
POLL_S = 0.2
BALANCE_S = 3.0


class RayWorkshop:
    """Actors on a local or an existing cluster: up to `preparers` of them prepare, `measurers` hold a runner each.

    A preparer takes one CPU, a measurer what `needs` says. An actor that dies is replaced and its order is done
    again, a few times; then the answer is a failure of kind crash. Measurements that fail are tried again, elsewhere
    where that is possible, as `Retries` says. Measuring comes first: while no measurer finds a node, preparers make
    room, and come back when there is some. With `alone` a measurer has its machine for itself while it measures, as
    far as other campaigns go. Closing leaves an existing cluster as it was.

    Raises Unavailable if no node has what a measurer needs within `needs.patience_s`.
    """

    def __init__(
        self,
        make_runner: RunnerFactory,
        preparers: int,
        address: str | None = None,
        needs: Needs | None = None,
        measurers: int = 1,
        alone: bool = False,
    ) -> None:
        needs = needs or Needs()
        self._cluster = RayCluster(address, preparers + math.ceil(needs.cpus * measurers))
        self._wanted = preparers
        self._alone = alone
        self._look_again_s = 0.0
        retries = Retries()
        again = lambda key, value, elsewhere: retries.again(key[1], value[0], elsewhere)  # noqa: E731 (a callback)
        self._measurers = RayPool(MeasureWorker, (make_runner, alone), measurers, needs=needs, again=again)
        self._preparers = RayPool(PrepareWorker, (), 0)
        try:
            self._await_room(needs)
        except BaseException:
            self.close()
            raise

    def prepare(self, key: str, recipe: Recipe) -> None:
        self._preparers.submit(Job(("prepare", key), "prepare", (recipe,), PREPARE_LIMIT_S))

    def measure(self, key: str, request: RunRequest) -> None:
        limit_s = request.timeout_s + MEASURE_GRACE_S + (ALONE_PATIENCE_S if self._alone else 0)
        self._measurers.submit(Job(("measure", key), "measure", (Packed.of(request),), limit_s))

    def wait(self, timeout_s: float) -> list[Finished]:
        done = wait_for([self._measurers, self._preparers], timeout_s)
        self._balance()
        return [_finished(one) for one in done]

    def close(self) -> None:
        self._measurers.close("close")
        self._preparers.close()
        self._cluster.close()

    def _await_room(self, needs: Needs) -> None:
        """Wait for a measurer to start and for a CPU to prepare on; asking is what makes a cluster grow by itself."""
        deadline_s = time.monotonic() + needs.patience_s
        while not self._measurers.has_started or self._cluster.free_cpus < 1:
            wait_for([self._measurers], POLL_S)
            if time.monotonic() > deadline_s:
                free = {name: amount for name, amount in self._cluster.free.items() if ":" not in name}
                rule = f"a campaign needs a node with {needs} to measure, and one CPU to prepare"
                way_out = "wait for other jobs, change `runner.needs`, or raise its `patience_s` where nodes can come"
                raise Unavailable(rule, f"free in the cluster: {free}", way_out)
        self._preparers.grow(min(self._wanted, self._cluster.free_cpus))

    def _balance(self) -> None:
        """Let preparers make room for a measurer that waits for a node; start more of them where there is room."""
        if time.monotonic() < self._look_again_s:
            return
        self._look_again_s = time.monotonic() + BALANCE_S
        if self._measurers.is_starved:
            self._preparers.shrink(max(1, self._preparers.size - 1))
        elif self._preparers.size < self._wanted and self._preparers.is_whole and self._measurers.is_whole:
            self._preparers.grow(min(self._wanted, self._preparers.size + self._cluster.free_cpus))


def _finished(done: Done) -> Finished:
    stage, key = _stage_and_key(done.key)
    if done.error is None:
        answer, seconds, cpu_s = done.value
        return Finished(key, answer.open() if isinstance(answer, Packed) else answer, seconds, cpu_s)
    message = " ".join(f"{done.error}".split())
    if stage == "prepare":
        return Finished(key, Refusal(RefusalKind.CRASH, message))
    kind = FailureKind.TIMEOUT if isinstance(done.error, TimeoutError) else FailureKind.CRASH
    return Finished(key, RunFailure(kind, message))


def _stage_and_key(key: Any) -> tuple[str, str]:
    stage, order = key
    return stage, order
