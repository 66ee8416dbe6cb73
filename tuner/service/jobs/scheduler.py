"""The job scheduler: accepts job specifications, queues them fairly across owners, runs them and stores the results."""

import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.runners.ray.tasks import RayTaskBackend, TaskFailure, TaskFailureKind
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.service.access import Caller, NotFound, TooManyRequests, redacted
from chorale.tuner.service.jobs.job_specs import AnyJobSpec, CollectiveSpec, PriceSpec, ProgramSpec
from chorale.tuner.service.jobs.job_store import FINAL_STATES, ErrorFacts, Job, JobState, JobStore, Progress
from chorale.tuner.service.jobs.planning import Planning
from chorale.tuner.service.jobs.tasks import JobPlanner, JobTask, TaskResult, run_task

_log = logging.getLogger("chorale.service")

POLL_S = 0.1


@dataclass(slots=True)
class _Computation:
    """A computation and the jobs that wait for it. It is stopped if all jobs are cancelled or it takes too long."""

    kind: str
    jobs: list[Job]
    started_s: float
    is_late: bool = False


class JobScheduler:
    """Runs the jobs of all owners on one backend, and stores the jobs and their results. Thread-safe.

    The next job belongs to the owner with the fewest running jobs; in a tie, to the owner whose most recent job
    started longest ago. Among an owner's jobs, the one with the highest priority is next, or the oldest if several have
    this priority. Jobs with the same key share one computation. Jobs that were queued or running when the service
    stopped are queued again when it starts, and planned again before they run.

    limit_s: a computation that takes longer than this is stopped, and its jobs fail
    """

    def __init__(
        self,
        store: JobStore,
        planner: JobPlanner,
        backend: RayTaskBackend,
        unix_s: Callable[[], float],
        slots: int | None = None,
        limit_s: float = math.inf,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._planner = planner
        self._backend = backend
        self._slots = slots or max(1, backend.cpus)
        self._unix_s = unix_s
        self._limit_s = limit_s
        self._monotonic_s = monotonic_s
        self._lock = threading.RLock()
        unfinished = reversed(store.jobs(states=(JobState.QUEUED, JobState.RUNNING)))  # the oldest first
        again = {"state": JobState.QUEUED, "started_s": None}
        self._waiting = {job.id: job.model_copy(update=again) for job in unfinished}
        self._unplanned = set(self._waiting)  # ids of jobs that were queued before a restart
        self._running: dict[str, _Computation] = {}  # key of the result -> computation
        self._progress: dict[str, Progress] = {}
        self._cancelled: set[str] = set()
        self._last_started_s: dict[str, float] = {}  # owner -> time of the last start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="job-scheduler", daemon=True)

    @property
    def planning(self) -> Planning:
        """Return the processes in which jobs are checked, and in which slow requests are answered."""
        return self._planner.networks.planning

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the scheduler. Queued and running jobs are queued again at its next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._backend.close()
        self.planning.close()
        self.store.close()

    def submit(self, spec: AnyJobSpec, caller: Caller) -> Job:
        """Create and return a job for `spec`. The job is already done if its result is stored.

        Raises InvalidInput if the job is impossible, and TooManyRequests if the caller already has the maximum number
        of unfinished jobs that the token allows.
        """
        (key, memory_bytes), now_s = self._planner.plan(spec, caller.name), self._unix_s()
        facts: Any = {"key": key, "memory_bytes": memory_bytes, "created_s": now_s}
        job = Job(id=uuid.uuid4().hex, owner=caller.name, request=spec, **facts)
        if self.store.result_texts(key) is not None:
            return self._finish(job, JobState.DONE, cached="yes", started_s=now_s, finished_s=now_s)
        with self._lock:
            unfinished = sum(job.owner == caller.name for job in (*self._waiting.values(), *self._running_jobs()))
            if unfinished >= caller.max_jobs:
                rule = f"a token may have at most {caller.max_jobs} unfinished jobs"
                raise TooManyRequests(rule, unfinished, "wait for some to end, or cancel them")
            self.store.save_job(job)
            self._waiting[job.id] = job
        return job

    def job(self, job_id: str, caller: Caller) -> Job:
        """Return the current state of a job of `caller`. Raises NotFound if it does not exist or is another user's."""
        job = self.store.job(job_id)
        if job is None or (job.owner != caller.name and not caller.sees_all):
            raise NotFound("you have no job {}", job_id, "list your jobs at /v1/jobs")
        return self._now(job)

    def job_texts(self, owner: str | None, states: Sequence[JobState], limit: int) -> list[str]:
        """Return jobs as JSON texts, newest first. For jobs that have ended, these are the stored texts."""
        return [
            text if state in FINAL_STATES else self._now(Job.model_validate_json(text)).model_dump_json()
            for state, text in self.store.job_texts(owner, states, limit)
        ]

    def cancel(self, job_id: str, caller: Caller) -> Job:
        """Remove a job from the queue or stop it. Raises CheckFailed if it has finished."""
        with self._lock:
            job = self.job(job_id, caller)
            if job.state in FINAL_STATES:
                rule, way_out = (
                    "only queued or running jobs can be cancelled, this one is {}",
                    "there is nothing to cancel",
                )
                raise CheckFailed(rule, job.state, way_out)
            self._waiting.pop(job_id, None)
            running = self._running.get(job.key)
            if running is not None and job.state == JobState.RUNNING:
                running.jobs = [other for other in running.jobs if other.id != job_id]
                if not running.jobs:
                    self._cancelled.add(job.key)
            return self._finish(job, JobState.CANCELLED)

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the numbers of queued and running jobs. No lock is taken, so health checks never wait for the disk."""
        running = tuple(self._running.values())  # an atomic copy, because the thread may change the dictionary
        return {"queued": len(self._waiting), "running": sum(len(computation.jobs) for computation in running)}

    @property
    def is_working(self) -> bool:
        return self._thread.is_alive()

    def _now(self, job: Job) -> Job:
        progress = None if job.state in FINAL_STATES else self._progress.get(job.key)
        return job.model_copy(update={"progress": progress})

    def _running_jobs(self) -> list[Job]:
        return [job for computation in self._running.values() for job in computation.jobs]

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:
                _log.exception("the scheduler continues after an error")
                self._stop.wait(1.0)

    def _turn(self) -> None:
        with self._lock:
            stopped, self._cancelled = self._cancelled, set()
            for key, computation in self._running.items():
                if not computation.is_late and self._monotonic_s() - computation.started_s > self._limit_s:
                    computation.is_late = True
                    stopped.add(key)
        for key in stopped:
            self._backend.cancel(key)
        while self._start_next():
            pass
        if not self._running:
            self._stop.wait(POLL_S)
            return
        for key, completion in self._backend.ended(POLL_S).items():
            self._settle(key, completion.value)
        self._progress |= {
            key: Progress(done=done, total=total) for key, (done, total) in self._backend.progress().items()
        }

    def _start_next(self) -> bool:
        """Start the next job or, if its result is already stored, finish it. Return False if no job can start."""
        with self._lock:
            job = self._next()
            if job is None:
                return False
            del self._waiting[job.id]
            self._last_started_s[job.owner] = self._monotonic_s()
            if self.store.result_texts(job.key) is not None:
                self._finish(job, JobState.DONE, cached="yes")
                return True
            job = job.model_copy(update={"state": JobState.RUNNING, "started_s": self._unix_s()})
            self.store.save_job(job)
            if job.key in self._running:
                self._running[job.key].jobs.append(job)
                return True
            self._running[job.key] = _Computation(job.kind, [job], self._monotonic_s())
        self._begin(job)
        return True

    def _begin(self, job: Job) -> None:
        """Start the computation of `job`. A job that was queued before a restart is planned again first."""
        spec = job.spec
        try:
            if job.memory_bytes > self._backend.largest_memory_bytes:
                value = f"{job.memory_bytes} bytes, the largest node has {self._backend.largest_memory_bytes}"
                rule = "a job must fit into the memory of a node"
                raise CheckFailed(rule, value, "choose a smaller network, or add a larger node")
            if job.id in self._unplanned:
                self._planner.plan(spec, f"queue of {job.owner}")
            task = JobTask(
                spec,
                topology=self._planner.networks.cached(spec.topology) if isinstance(spec, CollectiveSpec) else None,
                schedule=self.store.schedule(spec.result) if isinstance(spec, ProgramSpec | PriceSpec) else None,
            )
        except ChoraleError as error:
            self._settle(job.key, TaskFailure(TaskFailureKind.REFUSED, error))
            return
        except Exception as error:  # a bug must only fail this job, and must not block a slot forever
            self._settle(job.key, TaskFailure(TaskFailureKind.CRASH, error))
            return
        self._backend.start(job.key, run_task, task, job.memory_bytes)

    def _next(self) -> Job | None:
        free = len(self._running) < self._slots

        def may_start(job: Job) -> bool:  # it needs a free slot, or a computation to share that is not being stopped
            shared = self._running.get(job.key)
            return free if shared is None else bool(shared.jobs)

        jobs = filter(may_start, self._waiting.values())
        running = Counter(job.owner for job in self._running_jobs())

        def turn(job: Job) -> tuple[float, ...]:
            return (running[job.owner], self._last_started_s.get(job.owner, 0.0), -job.priority, job.created_s)

        return min(jobs, key=turn, default=None)

    def _settle(self, key: str, value: TaskResult | TaskFailure) -> None:
        """Store the result of the ended computation `key`, and finish all jobs that share it."""
        with self._lock:
            computation = self._running[key]
            if not isinstance(value, TaskFailure):
                try:
                    self.store.save_result(key, computation.kind, value.document, value.files)
                except (ChoraleError, ValueError) as error:  # a full disk, or a number that JSON cannot represent
                    is_known = isinstance(error, ChoraleError)
                    value = TaskFailure(TaskFailureKind.REFUSED if is_known else TaskFailureKind.CRASH, error)
            for job in computation.jobs:
                if not isinstance(value, TaskFailure):
                    self._finish(job, JobState.DONE)
                elif value.kind == TaskFailureKind.CANCELLED and computation.is_late:
                    rule, way_out = (
                        f"a job must end within {self._limit_s:g} s",
                        "choose a smaller network or another method",
                    )
                    facts = ErrorFacts(kind="time", rule=rule, value="more", way_out=way_out)
                    self._finish(job, JobState.FAILED, error=facts)
                elif value.kind == TaskFailureKind.CANCELLED:
                    self._finish(job, JobState.CANCELLED)
                else:
                    self._finish(job, JobState.FAILED, error=_error_facts(value))
            del self._running[key]
            self._progress.pop(key, None)

    def _finish(self, job: Job, state: JobState, **fields: Any) -> Job:
        finished = job.model_copy(update={"state": state, "finished_s": self._unix_s(), **fields})
        self.store.save_job(finished)
        return finished


def _error_facts(failure: TaskFailure) -> ErrorFacts:
    """Return what clients may learn about a failure. Messages of unexpected errors are only written to the log."""
    kind, error = failure.kind, failure.error
    if isinstance(error, ChoraleError):
        value, way_out = redacted(str(error.value)), redacted(error.way_out)
        return ErrorFacts(kind=kind.value, rule=error.problem, value=value, way_out=way_out)
    _log.error("a computation ended as %s: %r", kind, error)
    rule, way_out = "the computation failed", "submit the job again; if it fails again, report it"
    if kind == TaskFailureKind.MEMORY:
        rule, way_out = "the computation ran out of memory", "choose a smaller network"
    return ErrorFacts(kind=kind.value, rule=rule, value=type(error).__name__, way_out=way_out)
