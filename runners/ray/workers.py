"""Runs a campaign's workers on Ray: programs are built in tasks and measured in actors."""

import logging
import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from chorale.runners.api.base import Completion, FailureKind, Outcome, ResourceRequest, RunFailure, RunRequest
from chorale.runners.ray.cluster import START_ATTEMPTS, RayCluster, ray
from chorale.runners.ray.watch import ClusterLost
from chorale.runners.workers.campaign_worker import (
    BUILD_LIMIT_S,
    MEASURE_GRACE_S,
    RETRIES,
    CampaignWorker,
    RunnerFactory,
    build_failure,
    measure_limit_s,
    run_failure,
)
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult
from chorale.synth.errors import Unavailable

MAX_ATTEMPTS = 4
POLL_S = 1.0
START_TIMEOUT_S = 150.0  # Ray takes 60 s to notice that a worker process died while starting
CLOSE_LIMIT_S = 5.0
NODE_LABEL = "ray.io/node-id"

_log = logging.getLogger("chorale.ray")


class MeasureWorker(CampaignWorker):
    """A `CampaignWorker` inside an actor. Requests arrive as pickles, because Ray's own pickling is slow for thousands
    of instructions.
    """

    def measure_on_node(self, request: bytes) -> tuple[str, Completion[Outcome]]:
        """Measure a pickled request; return the id of this node and the completion."""
        return str(ray.get_runtime_context().get_node_id()), self.measure(pickle.loads(request))  # noqa: S301 (ours)


def build_on_node(worker: bytes, request: bytes) -> Completion[BuildResult | BuildFailure]:
    """Build a pickled request in a Ray task. The process keeps its builder for the next build."""
    return _builder(worker).build(pickle.loads(request))  # noqa: S301 (from the same campaign)


def _dead_nodes() -> set[str]:
    return {one["NodeID"] for one in ray.nodes() if not one["Alive"]}  # type: ignore[no-untyped-call]


def _away_from(*nodes: str) -> dict[str, str]:
    """Return a label selector that matches all nodes except `nodes`."""
    return {NODE_LABEL: f"!in({','.join(sorted(nodes))})"}


@lru_cache(maxsize=1)
def _builder(worker: bytes) -> CampaignWorker:
    builder: CampaignWorker = pickle.loads(worker)  # noqa: S301 (as above)
    return builder


@dataclass(slots=True, eq=False)
class _Measurer:
    """An actor that measures. `ready` is a Ray reference to its node's id, available once the actor has started."""

    actor: Any
    ready: Any
    node: str = ""


@dataclass(slots=True, eq=False)
class _Call:
    """A waiting or running build or measurement. Its `deadline_s` is set at the moment it is sent to a worker."""

    request: Any
    limit_s: float
    future: Future[Any] = field(default_factory=Future)
    deadline_s: float = math.inf
    measurer: _Measurer | None = None
    deaths: int = 0
    failures: Counter[FailureKind] = field(default_factory=Counter)

    @property
    def packed(self) -> bytes:
        return pickle.dumps(self.request, pickle.HIGHEST_PROTOCOL)


class RayWorkers:
    """Implements `Workers` on a local or an existing cluster, with up to `builders` tasks and `measurers` actors.

    A build takes one CPU; a measurer reserves `needs` for the whole campaign. If a worker dies, its request is
    repeated, with at most `MAX_ATTEMPTS` attempts in total; then the result is a failure of kind crash. Failed
    measurements are repeated as often as `RETRIES` specifies, on another node if one is suitable. A measurement that
    times out is repeated once, and only if there is another suitable node. With `alone`, no other campaign measures on
    a measurer's machine at the same time.

    Raises Unavailable if no node has the resources for a measurer within `needs.patience_s`.
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
        grace_s: float = MEASURE_GRACE_S,
        attempts: int = START_ATTEMPTS,
    ) -> None:
        self._needs = needs or ResourceRequest()
        cpus = builders + math.ceil(self._needs.cpus * measurers)
        self._cluster = RayCluster(address, cpus, attempts=attempts)
        self._factories = make_runner, alone
        self._alone, self._grace_s = alone, grace_s
        self._worker = pickle.dumps(CampaignWorker(*self._factories))
        self._task = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(build_on_node)
        self._builders = builders
        self._builds: deque[_Call] = deque()
        self._measurements: deque[_Call] = deque()
        self._running: dict[Any, _Call] = {}
        self._lost = False
        self._dead_before = _dead_nodes()
        self._dead: set[str] = set()  # nodes that died after those in `_dead_before`
        self._looked_s = 0.0
        self._failed_starts = 0
        self._started_s = time.monotonic()
        self._measurers = [self._new_measurer() for _ in range(measurers)]
        try:
            # Wait until a measurer has started and a CPU is free for builds. Meanwhile, an autoscaling cluster sees the
            # pending requests and grows.
            deadline_s = time.monotonic() + self._needs.patience_s
            while not any(one.node for one in self._measurers) or self._cluster.free.get("CPU", 0) < 1:
                self._settle(0.2)
                self._require_cluster()
                if time.monotonic() > deadline_s:
                    free = {name: amount for name, amount in self._cluster.free.items() if ":" not in name}
                    rule = f"a campaign needs a node with {self._needs} to measure, and one CPU to prepare"
                    way_out = (
                        "wait for other jobs, change `runner.needs`, or raise its `patience_s` if nodes can be added"
                    )
                    raise Unavailable(rule, f"free in the cluster: {free}", way_out)
        except BaseException:
            self.close()
            raise

    def build(self, request: BuildRequest) -> Future[Completion[BuildResult | BuildFailure]]:
        self._builds.append(_Call(request, BUILD_LIMIT_S))
        return self._builds[-1].future

    def measure(self, request: RunRequest) -> Future[Completion[Outcome]]:
        self._measurements.append(_Call(request, measure_limit_s(request, self._grace_s, self._alone)))
        return self._measurements[-1].future

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        done = [future for future in futures if future.done()]
        if not done:
            self._require_cluster()
            self._leave_dead_nodes()
            self._send()
            self._settle(min(timeout_s, POLL_S))
            self._send()
            done = [future for future in futures if future.done()]
        return done

    def close(self) -> None:
        if ray.is_initialized() and not self._lost:
            busy = [call.measurer for call in self._running.values()]
            idle = [one.actor for one in self._measurers if one.node and one not in busy]
            if idle:
                ray.wait([actor.close.remote() for actor in idle], num_returns=len(idle), timeout=CLOSE_LIMIT_S)
            for measurer in self._measurers:
                ray.kill(measurer.actor)
            for reference, call in self._running.items():
                if call.measurer is None:
                    ray.cancel(reference, force=True)
        self._measurers.clear()
        self._running.clear()
        self._cluster.close()

    def _send(self) -> None:
        busy = [call.measurer for call in self._running.values()]
        # For a while, Ray may still assign tasks to dead nodes, and later tasks of the same kind wait behind these.
        selector = _away_from(*self._dead) if self._dead else None
        task = self._task.options(name="BuildWorker", label_selector=selector)
        for _ in range(min(len(self._builds), self._builders - busy.count(None))):
            call = self._builds.popleft()
            self._run(call, task.remote(self._worker, call.packed))
        for measurer in [one for one in self._measurers if one.node and one not in busy]:
            if self._measurements:
                call = self._measurements.popleft()
                call.measurer = measurer
                self._run(call, measurer.actor.measure_on_node.remote(call.packed))

    def _run(self, call: _Call, reference: Any) -> None:
        call.deadline_s = time.monotonic() + call.limit_s
        self._running[reference] = call

    def _settle(self, timeout_s: float) -> None:
        """Wait for an event, then handle all events that have happened: starts, results, deaths, hangs."""
        starting = {one.ready: one for one in self._measurers if not one.node}
        references = [*starting, *self._running]
        if references and ray.wait(references, num_returns=1, timeout=timeout_s)[0]:
            for reference in ray.wait(references, num_returns=len(references), timeout=0)[0]:
                if reference in starting:
                    self._started(starting[reference])
                else:
                    self._ended(reference, self._running.pop(reference))
        now_s = time.monotonic()
        for reference, call in list(self._running.items()):
            if now_s > call.deadline_s:
                del self._running[reference]
                late = TimeoutError(f"no answer within {call.limit_s:.0f} s")
                if call.measurer is None:
                    ray.cancel(reference, force=True)
                    call.future.set_result(build_failure(late))
                else:
                    self._replace(call.measurer)
                    call.future.set_result(run_failure(late))
        if any(one.node for one in self._measurers) or not self._measurements:
            self._started_s = now_s
        elif now_s - self._started_s > START_TIMEOUT_S:
            rule = f"a Ray actor needs a node with {self._needs}"
            value = f"{len(self._measurers)} actors without a node after {START_TIMEOUT_S:.0f} s"
            raise Unavailable(rule, value, "ask for fewer workers or free the cluster")

    def _leave_dead_nodes(self) -> None:
        """Repeat calls that may be on a node that has died. Ray itself would wait minutes for the node's workers.

        It is unknown on which node a build runs, so all running builds are repeated.
        """
        if time.monotonic() - self._looked_s < POLL_S:
            return
        self._looked_s = time.monotonic()
        died = _dead_nodes() - self._dead_before - self._dead
        self._dead |= died
        for reference, call in list(self._running.items()) if died else ():
            if call.measurer is None:
                del self._running[reference]
                ray.cancel(reference, force=True)
                self._builds.appendleft(call)
            elif call.measurer.node in died:
                del self._running[reference]
                self._died(call, Unavailable("the node {} has died", call.measurer.node, "start it again"))

    def _started(self, measurer: _Measurer) -> None:
        try:
            measurer.node = ray.get(measurer.ready)
        except ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_ATTEMPTS:
                way_out = "check that this package is installed on all nodes of the cluster"
                raise Unavailable("a Ray actor could not start: {}", error, way_out) from error
            self._replace(measurer)

    def _ended(self, reference: Any, call: _Call) -> None:
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            call.future.set_result((build_failure if call.measurer is None else run_failure)(error.cause))
        except ray.exceptions.RayError as error:
            self._died(call, error)
        else:
            if call.measurer is None:
                call.future.set_result(answer)
            else:
                self._measured(call, *answer)

    def _measured(self, call: _Call, node: str, completion: Completion[Outcome]) -> None:
        """Complete the call's future with the measurement. If it failed and may be repeated, repeat it instead."""
        outcome = completion.value
        if isinstance(outcome, RunFailure):
            elsewhere = any(  # another live node has the resources for a measurer, whether free or in use
                one["Alive"] and one["NodeID"] != node and self._needs.fits(one["Resources"], one.get("Labels") or {})
                for one in ray.nodes()  # type: ignore[no-untyped-call]
            )
            retries = int(elsewhere) if outcome.kind == FailureKind.TIMEOUT else RETRIES.get(outcome.kind, 0)
            if call.failures[outcome.kind] < retries:
                call.failures[outcome.kind] += 1
                self._measurements.appendleft(call)
                if elsewhere and call.measurer is not None:
                    self._replace(call.measurer, node)
                return
        call.future.set_result(completion)

    def _died(self, call: _Call, error: Exception) -> None:
        rule = f"a worker must survive its task within {MAX_ATTEMPTS} attempts"
        failure = Unavailable(rule, error, "check whether nodes run out of memory, or use fewer workers")
        if call.measurer is None:  # Ray has already repeated the build
            call.future.set_result(build_failure(failure))
            return
        _log.warning("a Ray worker died; a new one repeats its task")
        _log.debug("%s", error)
        self._replace(call.measurer)
        call.deaths += 1
        if call.deaths < MAX_ATTEMPTS:
            self._measurements.appendleft(call)
        else:
            call.future.set_result(run_failure(failure))

    def _new_measurer(self, away_from: str = "") -> _Measurer:
        """Start an actor on any suitable node except `away_from`. Actors that reserve nothing are spread over nodes."""
        needs = self._needs
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "resources": dict(needs.resources)}
        selector = {**needs.labels, **(_away_from(away_from) if away_from else {})}
        if selector:
            options["label_selector"] = selector
        elif not any(needs.amounts.values()):
            options["scheduling_strategy"] = "SPREAD"
        actor_class: Any = ray.remote(MeasureWorker)
        actor = actor_class.options(max_restarts=0, **options).remote(*self._factories)
        # Runs inside the actor to find out when it has started.
        return _Measurer(actor, actor.__ray_call__.remote(lambda _: str(ray.get_runtime_context().get_node_id())))

    def _replace(self, measurer: _Measurer, away_from: str = "") -> None:
        ray.kill(measurer.actor)
        self._measurers[self._measurers.index(measurer)] = self._new_measurer(away_from)

    def _require_cluster(self) -> None:
        try:
            self._cluster.check()
        except ClusterLost:
            self._lost = True
            raise
