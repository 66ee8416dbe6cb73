"""The workers of a campaign on Ray: several actors build, one or a few measure."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from typing import Any

from chorale.runners.api.base import ResourceRequest
from chorale.runners.api.workers import Future
from chorale.runners.ray.actors import BuildWorker, MeasureWorker, RayBuilder, RayMeasurer
from chorale.runners.ray.cluster import START_ATTEMPTS, RayCluster
from chorale.runners.ray.parcels import SharedValues
from chorale.runners.ray.pool import RayPool, wait_for_results
from chorale.runners.ray.retries import RetryPolicy
from chorale.runners.ray.runner_holder import ALONE_PATIENCE_S, BuilderFactory, RunnerFactory
from chorale.runners.ray.watch import ClusterLost
from chorale.synth.build.cache import CachingBuilder
from chorale.synth.errors import Unavailable
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.topology.topology import Topology

MEASURE_GRACE_S = 30.0
POLL_S = 0.2
BALANCE_S = 3.0


class RayWorkers:
    """Actors on a local or an existing cluster: up to `builders` of them build, `measurers` hold a runner each.

    A builder takes one CPU, a measurer `needs`. An actor that dies is replaced and its request is done
    again, a few times; then the value is a failure of kind crash. Measurements that fail are tried again, elsewhere
    where that is possible, as `RetryPolicy` says. Measuring comes first: while no measurer finds a node, builders make
    room, and come back when there is some. With `alone` a measurer has its machine for itself while it measures, as
    far as other campaigns go. Closing leaves an existing cluster as it was.

    Raises Unavailable if no node has what a measurer needs within `needs.patience_s`.
    """

    def __init__(
        self,
        make_runner: RunnerFactory,
        builders: int,
        address: str | None = None,
        *,
        needs: ResourceRequest | None = None,
        measurers: int = 1,
        alone: bool = False,
        make_builder: BuilderFactory = CachingBuilder,
        grace_s: float = MEASURE_GRACE_S,
        attempts: int = START_ATTEMPTS,
    ) -> None:
        needs = needs or ResourceRequest()
        self._cluster = RayCluster(address, builders + math.ceil(needs.cpus * measurers), attempts=attempts)
        self._most_builders = builders
        self._lost = False
        self._look_again_s = 0.0
        retries = RetryPolicy()
        again = lambda future, value, elsewhere: retries.should_retry(future, value.value, elsewhere)  # noqa: E731 (a callback)
        self._measure_pool = RayPool(
            MeasureWorker, (make_runner, alone), measurers, resource_request=needs, should_retry=again
        )
        self._build_pool = RayPool(BuildWorker, (make_builder,), 0)
        self._shared = SharedValues()
        self.builder = RayBuilder(self._build_pool, self._shared)
        self.measurer = RayMeasurer(self._measure_pool, self._shared, grace_s + (ALONE_PATIENCE_S if alone else 0))
        try:
            self._await_room(needs)
        except BaseException:
            self.close()
            raise

    @property
    def is_settled(self) -> bool:
        return True

    def share(self, topology: Topology, programs: Iterable[AnyProgram]) -> None:
        self._shared.put((topology, *programs))

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        done = [future for future in futures if future.done]
        if not done:
            self._require_cluster()
            wait_for_results([self._measure_pool, self._build_pool], timeout_s)
            self._balance()
            done = [future for future in futures if future.done]
        return done

    def close(self) -> None:
        if self._lost:
            self._cluster.kill()
        else:
            self._measure_pool.close("close")
            self._build_pool.close()
        self._cluster.close()

    def _require_cluster(self) -> None:
        try:
            self._cluster.check()
        except ClusterLost:
            self._lost = True
            raise

    def _await_room(self, needs: ResourceRequest) -> None:
        """Wait for a measurer to start and for a CPU to build on; asking is what makes a cluster grow by itself."""
        deadline_s = time.monotonic() + needs.patience_s
        while not self._measure_pool.started or self._cluster.free_cpus < 1:
            wait_for_results([self._measure_pool], POLL_S)
            self._require_cluster()
            if time.monotonic() > deadline_s:
                free = {name: amount for name, amount in self._cluster.free.items() if ":" not in name}
                rule = f"a campaign needs a node with {needs} to measure, and one CPU to prepare"
                way_out = "wait for other jobs, change `runner.needs`, or raise its `patience_s` where nodes can come"
                raise Unavailable(rule, f"free in the cluster: {free}", way_out)
        self._build_pool.grow(min(self._most_builders, self._cluster.free_cpus))

    def _balance(self) -> None:
        """Let builders make room for a measurer that waits for a node; start more of them where there is room."""
        if time.monotonic() < self._look_again_s:
            return
        self._look_again_s = time.monotonic() + BALANCE_S
        builders, measurers = self._build_pool, self._measure_pool
        if measurers.is_starved:
            builders.shrink(max(1, builders.size - 1))
        elif builders.size < self._most_builders and builders.has_all_started and measurers.has_all_started:
            builders.grow(min(self._most_builders, builders.size + self._cluster.free_cpus))
