"""Workers in this process, until a cluster has started that is worth its start."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import Future as Pending
from concurrent.futures import wait as wait_for_any
from typing import Any

from chorale.runners.api.base import Outcome, RunRequest
from chorale.runners.api.workers import Completion, Future, Workers
from chorale.runners.ray.retries import RetryPolicy
from chorale.runners.ray.runner_holder import BuilderFactory, RunnerFactory, RunnerHolder
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult
from chorale.synth.errors import Unavailable
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.topology.topology import Topology

POLL_S = 0.02
LOOK_S = 0.5
START_LIMIT_S = 60.0
"""How long a start that is under way at the end is waited for."""
START_AFTER_S = 10.0
"""About what a start of Ray costs: whoever works as long as that without it has paid at most twice what is needed."""
PAUSES_S = (30.0, 60.0, 120.0, 240.0)
"""Between attempts to start Ray."""

Prepare = Callable[[], Callable[[], Workers]]
"""Imports Ray, and returns a function that starts a cluster and workers on it."""

_log = logging.getLogger("chorale.ray")


class InterimWorkers:
    """Implements `Workers`: builds and measures in threads, one request of a kind at a time, until Ray has started.

    `prepare` imports Ray and returns what starts it. That is called once work here has taken `start_after_s`, about
    what the start itself costs, so that a short campaign never pays for it. From then on all new requests go to what it
    returned; if it raises Unavailable, work goes on here and it is tried again after `pauses_s`, one after the other.

    alone: measure while nobody else does on this machine, as `RunnerHolder` does
    """

    def __init__(
        self,
        prepare: Prepare,
        make_runner: RunnerFactory,
        make_builder: BuilderFactory,
        *,
        alone: bool = False,
        start_after_s: float = START_AFTER_S,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._next: Workers | None = None
        self._shared: list[tuple[Topology, tuple[AnyProgram, ...]]] = []
        self._worker: RunnerHolder | None = RunnerHolder(make_runner, alone)
        self._retries = RetryPolicy()
        caching = make_builder()
        self.builder = _Queue(lambda request: _built(caching.build, request), lambda: self._arrived, "builder")
        self.measurer = _Queue(self._measured, lambda: None if self.measurer.waiting else self._arrived, "measurer")
        self._prepare = prepare
        self._start: Pending[Workers] | None = None
        self._start_after_s, self._start_at_s = start_after_s, -math.inf
        self._pauses_s = iter(pauses_s)
        self._closed = threading.Event()

    @property
    def is_settled(self) -> bool:
        return self._start is None or self._start.done()

    def share(self, topology: Topology, programs: Iterable[AnyProgram]) -> None:
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
            self._start_when_due()
            if (workers := self._arrived) is None:
                self._await_any(left_s)
            elif self.builder.waiting or self.measurer.waiting:
                workers.wait(futures, POLL_S)
                self._await_any(POLL_S)
            else:
                self._let_go_of_runner()
                return workers.wait(futures, left_s)

    def close(self) -> None:
        self._start_at_s = math.inf
        self.builder.close()
        self.measurer.close()
        try:
            workers = None if self._start is None else self._start.result(START_LIMIT_S)
        except (Unavailable, TimeoutError) as error:
            _log.debug("no cluster to close: %s", error)
        else:
            if workers is not None:
                workers.close()
        self._closed.set()
        self._let_go_of_runner()

    def _await_any(self, limit_s: float) -> None:
        """Wait until something is done here, at most `limit_s` and until Ray is looked at."""
        pending = [*self.builder.waiting.values(), *self.measurer.waiting.values()]
        first_s = min(limit_s, LOOK_S if self._start is None else POLL_S)
        wait_for_any(pending, first_s, FIRST_COMPLETED) if pending else time.sleep(first_s)

    def _start_when_due(self) -> None:
        """Start Ray in a thread when it is due. Imported here: two threads that import may block each other."""
        worked_s = self.builder.busy_s + self.measurer.busy_s
        if self._start is not None or worked_s < self._start_after_s or time.monotonic() < self._start_at_s:
            return
        started: Pending[Workers] = Pending()
        self._start = started
        try:
            start = self._prepare()
        except Unavailable as error:
            started.set_exception(error)
            return
        run = threading.Thread(target=self._run_start, args=(start, started), name="chorale-ray-start", daemon=True)
        run.start()

    def _run_start(self, start: Callable[[], Workers], started: Pending[Workers]) -> None:
        try:
            started.set_result(start())
        except BaseException as error:  # whoever waits gets it, with its type
            started.set_exception(error)
            return
        self._closed.wait()  # Ray's processes end with the thread that started them

    @property
    def _arrived(self) -> Workers | None:
        """The workers of the cluster, once it has started."""
        if self._next is None and self._start is not None and self._start.done():
            try:
                self._next = self._start.result()
            except Unavailable as error:
                self._try_again_later(error)
                return None
            for shared in self._shared:
                self._next.share(*shared)
        return self._next

    def _try_again_later(self, error: Unavailable) -> None:
        pause_s = next(self._pauses_s, math.inf)
        then = f", and Ray is started again in {pause_s:.0f} s" if pause_s < math.inf else ""
        _log.warning("%s: the launch goes on in this process%s", error, then)
        self._start, self._start_at_s = None, time.monotonic() + pause_s

    def _let_go_of_runner(self) -> None:
        """Close the runner of this process: nobody measures here any more."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _measured(self, request: RunRequest) -> Outcome:
        assert self._worker is not None  # whoever waits for this keeps it
        while True:
            outcome = self._worker.run(request)
            if not self._retries.should_retry(id(request), outcome, lambda: False):
                return outcome


class _Queue:
    """Builder or measurer of `InterimWorkers`: a thread, until there is somebody else."""

    def __init__(self, work: Callable[[Any], Any], successor: Callable[[], Workers | None], role: str) -> None:
        self._work = work
        self._successor = successor
        self._role = role
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"chorale-{role}")
        self.waiting: dict[Future[Any], Pending[Completion[Any]]] = {}
        self._done_s = 0.0
        self._began_s: float | None = None

    @property
    def busy_s(self) -> float:
        """How long it has worked, up to now."""
        began_s = self._began_s
        return self._done_s + (0.0 if began_s is None else time.perf_counter() - began_s)

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
        self._began_s = began_s = time.perf_counter()
        began_cpu_s = time.thread_time()
        try:
            value = self._work(request)
        finally:
            seconds = time.perf_counter() - began_s
            self._done_s, self._began_s = self._done_s + seconds, None
        return Completion(value, None, seconds, time.thread_time() - began_cpu_s)


def _built(
    build: Callable[[BuildRequest], BuildResult | BuildFailure], request: BuildRequest
) -> BuildResult | BuildFailure:
    try:
        return build(request)
    except Exception as error:  # a value, as from a worker of the cluster
        return BuildFailure(BuildFailureKind.CRASH, " ".join(f"{type(error).__name__}: {error}".split()))
