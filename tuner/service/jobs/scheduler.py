"""The scheduler: takes orders, queues them fairly by owner, has them computed, keeps what comes of them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from runners.ray_jobs import Ended, EndKind
from synth.errors import CheckFailed, ChoraleError
from tuner.service.access import Caller, NotFound, TooManyRequests
from tuner.service.jobs.job_store import Job, JobState, JobStore
from tuner.service.jobs.limits import JobLimits
from tuner.service.jobs.plan import Order, order_of
from tuner.service.jobs.tasks import Result, compute

_log = logging.getLogger("chorale.service")

POLL_S = 0.1


class TaskBackend(Protocol):
    """Where tasks are computed; see `runners.ray_jobs.RayJobs`. One thread uses it."""

    @property
    def cpus(self) -> int: ...

    @property
    def largest_memory_bytes(self) -> int: ...

    def start(self, key: str, computation: Callable[..., Any], argument: Any, memory_bytes: int) -> None: ...

    def cancel(self, key: str) -> None: ...

    def progress(self) -> Mapping[str, tuple[int, int]]: ...

    def ended(self, timeout_s: float) -> Sequence[Ended]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Running:
    """A computation and the jobs that share it; without jobs, it is being stopped."""

    order: Order
    jobs: list[Job]


class JobScheduler:
    """Jobs of all owners over one store and one set of backend. Thread-safe; a thread of its own does the work.

    Among owners that have jobs waiting, the one with the fewest running goes next, and of those the one that was
    served longest ago; among an owner's jobs the highest priority, then the oldest. Jobs that ask for the same
    share one computation. What was queued or running when the service stopped is queued again at its start.
    """

    def __init__(
        self,
        store: JobStore,
        backend: TaskBackend,
        limits: JobLimits,
        unix_s: Callable[[], float],
        slots: int | None = None,
    ) -> None:
        self.store = store
        self.limits = limits
        self._backend = backend
        self._slots = slots or max(1, backend.cpus)
        self._unix_s = unix_s
        self._lock = threading.RLock()
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, _Running] = {}  # by key
        self._orders: dict[str, Order] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._cancelled: set[str] = set()
        self._served: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scheduler", daemon=True)
        self._restore()

    def start(self) -> None:
        """Begin to work on the queue."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what is queued or running goes on at the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._backend.close()
        self.store.close()

    def submit(self, order: Order, caller: Caller, priority: int) -> Job:
        """Return the job for `order`: done at once where its result is known.

        Raises TooManyRequests where the caller has as many unfinished jobs as the token allows.
        """
        now_s = self._unix_s()
        job = Job(
            uuid.uuid4().hex, caller.name, order.kind, order.request, order.key, priority, order.memory_bytes, now_s
        )
        if self.store.has_result(order.key):
            job = replace(job, state=JobState.DONE, started_s=now_s, finished_s=now_s, cached="yes")
            self.store.save_job(job)
            return job
        with self._lock:
            self._require_room(caller)
            self.store.save_job(job)
            self._orders[job.id] = order
            self._waiting[job.id] = job
        return job

    def job(self, job_id: str, caller: Caller) -> Job:
        """Return a job of `caller`, as it is now; NotFound for what is not there or somebody else's."""
        job = self.store.job(job_id)
        if job is None or (job.owner != caller.name and not caller.sees_all):
            raise NotFound("a job must be there", job_id, "list your jobs at /v1/jobs")
        return self._now(job)

    def jobs(self, owner: str | None, states: Sequence[JobState], limit: int) -> list[Job]:
        """Return jobs as they are now, newest first, of one owner and in some states where given."""
        return [self._now(job) for job in self.store.jobs(owner, states, limit)]

    def cancel(self, job_id: str, caller: Caller) -> Job:
        """Take a job off the queue or stop it; CheckFailed if it is finished."""
        with self._lock:
            job = self.job(job_id, caller)
            if job.state.is_final:
                raise CheckFailed("a job must be queued or running to be cancelled", job.state, "leave it")
            self._waiting.pop(job_id, None)
            running = self._running.get(job.key)
            if running is not None and job.state == JobState.RUNNING:
                running.jobs = [other for other in running.jobs if other.id != job_id]
                if not running.jobs:
                    self._cancelled.add(job.key)
            return self._finish(job, JobState.CANCELLED)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many jobs wait and run."""
        with self._lock:
            return {"queued": len(self._waiting), "running": sum(len(one.jobs) for one in self._running.values())}

    @property
    def is_working(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def _now(self, job: Job) -> Job:
        return replace(job, progress=None if job.state.is_final else self._progress.get(job.key))

    def _require_room(self, caller: Caller) -> None:
        jobs = [*self._waiting.values(), *(job for one in self._running.values() for job in one.jobs)]
        unfinished = sum(job.owner == caller.name for job in jobs)
        if unfinished >= caller.max_jobs:
            rule = f"a token may have at most {caller.max_jobs} unfinished jobs"
            raise TooManyRequests(rule, unfinished, "wait for some to end, or cancel them")

    def _restore(self) -> None:
        for job in self.store.unfinished():
            try:
                self._orders[job.id] = order_of(job.kind, job.request, self.limits, self.store)
            except ChoraleError as error:
                self._finish(job, JobState.FAILED, error=_error("refused", error))
                continue
            self._waiting[job.id] = replace(job, state=JobState.QUEUED, started_s=None)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:
                _log.exception("the scheduler goes on after an error")
                self._stop.wait(1.0)

    def _turn(self) -> None:
        with self._lock:
            cancelled, self._cancelled = self._cancelled, set()
        for key in cancelled:
            self._backend.cancel(key)
        while self._start_next():
            pass
        if not self._running:
            self._stop.wait(POLL_S)
            return
        for ended in self._backend.ended(POLL_S):
            self._settle(ended)
        self._progress |= self._backend.progress()

    def _start_next(self) -> bool:
        """Start the job whose turn it is, or settle it; False if there is none."""
        with self._lock:
            job = self._next()
            if job is None:
                return False
            order = self._orders.pop(job.id)
            del self._waiting[job.id]
            self._served[job.owner] = self._unix_s()
            if self.store.has_result(job.key):
                self._finish(job, JobState.DONE, cached="yes")
                return True
            job = replace(job, state=JobState.RUNNING, started_s=self._unix_s())
            self.store.save_job(job)
            if job.key in self._running:
                self._running[job.key].jobs.append(job)
                return True
            self._running[job.key] = _Running(order, [job])
        self._begin(order)
        return True

    def _begin(self, order: Order) -> None:
        most = self._backend.largest_memory_bytes
        try:
            if order.memory_bytes > most:
                value = f"{order.memory_bytes} bytes, the largest node has {most}"
                rule = "a job must fit into the memory of a node"
                raise CheckFailed(rule, value, "choose a smaller network, or add a larger node")
            task = order.task(self.store)
        except ChoraleError as error:
            self._settle(Ended(order.key, EndKind.REFUSED, error))
            return
        self._backend.start(order.key, compute, task, order.memory_bytes)

    def _next(self) -> Job | None:
        """Return the waiting job whose turn it is; None if there is none that may start."""
        free = len(self._running) < self._slots
        jobs = [job for job in self._waiting.values() if self._may_start(job, free)]
        running = Counter(job.owner for one in self._running.values() for job in one.jobs)

        def turn(job: Job) -> tuple[float, ...]:
            return (running[job.owner], self._served.get(job.owner, 0.0), -job.priority, job.created_s)

        return min(jobs, key=turn, default=None)

    def _may_start(self, job: Job, free: bool) -> bool:
        """Whether there is a slot for `job`, or a computation that it can share; one that is being stopped is not."""
        shared = self._running.get(job.key)
        return free if shared is None else bool(shared.jobs)

    def _settle(self, ended: Ended) -> None:
        with self._lock:
            running = self._running[ended.key]
            if ended.kind == EndKind.DONE:
                result: Result = ended.value
                ended = self._kept(running.order, result, ended)
            for job in running.jobs:
                if ended.kind == EndKind.DONE:
                    self._finish(job, JobState.DONE, cached=result.cached)
                elif ended.kind == EndKind.CANCELLED:
                    self._finish(job, JobState.CANCELLED)
                else:
                    self._finish(job, JobState.FAILED, error=_error(ended.kind.value, ended.value))
            del self._running[ended.key]
            self._progress.pop(ended.key, None)

    def _kept(self, order: Order, result: Result, ended: Ended) -> Ended:
        """Keep the result; what cannot be kept (full disk) has failed, and can be asked for again."""
        try:
            self.store.save_result(ended.key, order.kind, order.shape, result.document, result.files)
        except ChoraleError as error:
            return Ended(ended.key, EndKind.REFUSED, error)
        return ended

    def _finish(self, job: Job, state: JobState, cached: str = "no", error: dict[str, str] | None = None) -> Job:
        done = replace(job, state=state, finished_s=self._unix_s(), cached=cached, error=error)
        self.store.save_job(done)
        self._orders.pop(job.id, None)
        return done


def _error(kind: str, error: object) -> dict[str, str]:
    """Return what a client reads of a failure; texts of unexpected errors stay in the log."""
    if isinstance(error, ChoraleError):
        return {"kind": kind, "rule": error.rule, "value": str(error.value), "way_out": error.way_out}
    _log.error("a computation ended as %s: %r", kind, error)
    rule, way_out = "a computation must come to its end", "ask again; if it fails again, report it"
    if kind == EndKind.MEMORY:
        rule, way_out = "a computation must fit into memory", "choose a smaller network"
    return {"kind": kind, "rule": rule, "value": type(error).__name__, "way_out": way_out}
