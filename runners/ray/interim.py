"""Workers in this process, for as long as a cluster takes to start again after it was lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future as Pending
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chorale.runners.api.base import Outcome, RunRequest
from chorale.runners.api.workers import Completion, Future
from chorale.runners.ray.actors import BuilderFactory, MeasureWorker, RunnerFactory
from chorale.runners.ray.fault_tolerance import RetryPolicy
from chorale.runners.ray.workers import RayWorkers
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult
from chorale.synth.errors import Unavailable
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology

POLL_S = 0.02
START_LIMIT_S = 120.0

_log = logging.getLogger("chorale.ray")


class InterimWorkers:
    """Implements `Workers`: builds and measures in threads, one request of a kind at a time, until `start` returns.

    From then on all new requests go to what it returned; if it raises Unavailable, work goes on here. Only for runners
    whose results do not depend on what else the machine does meanwhile.
    """

    def __init__(
        self, start: Callable[[], RayWorkers], make_runner: RunnerFactory, make_builder: BuilderFactory
    ) -> None:
        self._next: RayWorkers | None = None
        self._failed = False
        self._shared: list[tuple[Topology, tuple[Program, ...]]] = []
        self._worker = MeasureWorker(make_runner)
        self._retries = RetryPolicy()
        caching = make_builder()
        self.builder = _Queue(lambda request: _built(caching.build, request), lambda: self._arrived, "builder")
        self.measurer = _Queue(self._measured, lambda: None if self.measurer.waiting else self._arrived, "measurer")
        self._start: Pending[RayWorkers] = Pending()
        self._closed = threading.Event()
        threading.Thread(target=self._run_start, args=(start,), name="chorale-ray-start", daemon=True).start()

    @property
    def has_started_or_failed(self) -> bool:
        """Whether it is known by now who does the work from here on."""
        return self._start.done()

    def share(self, topology: Topology, programs: Iterable[Program]) -> None:
        """Hand on to the cluster, as soon as there is one."""
        shared = (topology, tuple(programs))
        self._shared.append(shared)
        if self._next is not None:
            self._next.share(*shared)

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.builder.collect()
            self.measurer.collect()
            done = [future for future in futures if future.done]
            left_s = deadline_s - time.monotonic()
            if done or left_s <= 0:
                return done
            if (workers := self._arrived) is None:
                time.sleep(POLL_S)
            elif self.builder.waiting or self.measurer.waiting:
                workers.wait(futures, POLL_S)
                time.sleep(POLL_S)
            else:
                return workers.wait(futures, left_s)

    def close(self) -> None:
        self.builder.close()
        self.measurer.close()
        try:
            workers = self._start.result(START_LIMIT_S)
        except (Unavailable, TimeoutError) as error:
            _log.debug("no cluster to close: %s", error)
        else:
            workers.close()
        self._closed.set()
        self._worker.close()

    def _run_start(self, start: Callable[[], RayWorkers]) -> None:
        try:
            self._start.set_result(start())
        except BaseException as error:  # whoever waits gets it, with its type
            self._start.set_exception(error)
        self._closed.wait()  # Ray's processes end with the thread that started them

    @property
    def _arrived(self) -> RayWorkers | None:
        """The workers of the cluster, once it has started."""
        if self._next is None and not self._failed and self._start.done():
            try:
                self._next = self._start.result()
            except Unavailable as error:
                self._failed = True
                _log.warning("%s: the launch goes on in this process", error)
                return None
            for shared in self._shared:
                self._next.share(*shared)
        return self._next

    def _measured(self, request: RunRequest) -> Outcome:
        while True:
            outcome = self._worker.run(request)
            if not self._retries.should_retry(id(request), outcome, False):
                return outcome


class _Queue:
    """Builder or measurer of `InterimWorkers`: a thread, until there is somebody else."""

    def __init__(self, work: Callable[[Any], Any], successor: Callable[[], RayWorkers | None], role: str) -> None:
        self._work = work
        self._successor = successor
        self._role = role
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"chorale-{role}")
        self.waiting: dict[Future[Any], Pending[Completion[Any]]] = {}

    def submit(self, request: Any) -> Future[Any]:
        workers = self._successor()
        if workers is not None:
            future: Future[Any] = getattr(workers, self._role).submit(request)
            return future
        future = Future()
        self.waiting[future] = self._thread.submit(self._completion, request)
        return future

    def collect(self) -> None:
        """Complete the futures of what is done."""
        for future, pending in list(self.waiting.items()):
            if pending.done():
                del self.waiting[future]
                future.complete(pending.result())

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.waiting.clear()

    def _completion(self, request: Any) -> Completion[Any]:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        value = self._work(request)
        return Completion(value, None, time.perf_counter() - began_s, time.thread_time() - began_cpu_s)


def _built(
    build: Callable[[BuildRequest], BuildResult | BuildFailure], request: BuildRequest
) -> BuildResult | BuildFailure:
    try:
        return build(request)
    except Exception as error:  # a value, as from a worker of the cluster
        return BuildFailure(BuildFailureKind.CRASH, " ".join(f"{type(error).__name__}: {error}".split()))
