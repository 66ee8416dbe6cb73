"""The Executor on a pool of processes on this machine."""

from __future__ import annotations

import logging
import pickle
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar

from chorale.synth.errors import Unavailable
from chorale.synth.executor.base import OnResult, Progress
from chorale.synth.executor.worker import CallOutcome, SharedValue, TaskCall, WorkerLostError, WorkerProcess, pickled

Result = TypeVar("Result")

MAX_ATTEMPTS = 4
_POLL_S = 0.5
"""How long one wait for workers takes at most: a Ctrl-C just before it does not end it, and is handled afterwards."""

_log = logging.getLogger("chorale.executor")


class ProcessExecutor:
    """Maps over `workers` processes, which start when a map has work for them and live until `close`.

    `shared` is pickled once per map and sent once to each worker that takes part. A worker that dies is replaced
    and its task is done again, at most `MAX_ATTEMPTS` times. After an exception or KeyboardInterrupt the workers
    are killed, busy or not, and the next map starts new ones. Should the program itself be killed, its workers
    finish the task at hand and end. Not thread-safe.

    Every worker has a pipe of its own and at most one task, so that the death of a worker, also in the middle
    of a message, breaks nothing but its own pipe (the standard library's pool waits for ever in that case).
    """

    name = "processes"

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._workers: list[WorkerProcess] = []
        self._closed = False

    def map(
        self,
        function: Callable[[Any, Any], Result],
        tasks: Sequence[Any],
        shared: Any = None,
        progress: Progress | None = None,
        on_result: OnResult | None = None,
    ) -> list[Result]:
        """Return `[function(shared, task) for task in tasks]`; see `Executor` for the contract."""
        if self._closed:
            raise RuntimeError("a closed executor cannot map")
        try:
            return _Map(self._workers, self._max_workers, function, tasks, shared).run(progress, on_result)
        except BaseException:
            self._end_workers()
            raise

    def close(self) -> None:
        """End the workers."""
        self._closed = True
        self._end_workers()

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Map:
    """The state of one call of `map`: tasks waiting, tasks in flight by worker, results."""

    def __init__(
        self,
        workers: list[WorkerProcess],
        max_workers: int,
        function: Callable[[Any, Any], Any],
        tasks: Sequence[Any],
        shared: Any,
    ) -> None:
        self.workers = workers
        self.max_workers = min(max_workers, len(tasks))
        self.function = function
        self.tasks = tasks
        self.shared = pickled(SharedValue(shared)) if tasks else b""
        self.informed: set[WorkerProcess] = set()
        self.waiting = deque(range(len(tasks)))
        self.flights: dict[WorkerProcess, int] = {}
        self.attempts: Counter[int] = Counter()
        self.results: dict[int, Any] = {}

    def run(self, progress: Progress | None, on_result: OnResult | None) -> list[Any]:
        while len(self.results) < len(self.tasks):
            self._dispatch()
            readable = wait([worker.connection for worker in self.flights], _POLL_S)
            for worker in [worker for worker in self.flights if worker.connection in readable]:
                number = self._settle(worker)
                if number is not None and on_result is not None:
                    on_result(number, self.results[number])
                if number is not None and progress is not None:
                    progress(len(self.results), len(self.tasks))
        return [self.results[number] for number in range(len(self.tasks))]

    def _dispatch(self) -> None:
        idle = [worker for worker in self.workers if worker not in self.flights]
        while self.waiting and len(self.flights) < self.max_workers:
            worker = idle.pop() if idle else self._start_worker()
            number = self.waiting.popleft()
            self.flights[worker] = number
            call = pickled(TaskCall(self.function, self.tasks[number]))
            try:
                if worker not in self.informed:
                    worker.send(self.shared)
                    self.informed.add(worker)
                worker.send(call)
            except WorkerLostError as error:
                self._requeue(worker, error)

    def _start_worker(self) -> WorkerProcess:
        worker = WorkerProcess(preload=self.function.__module__)
        self.workers.append(worker)
        return worker

    def _settle(self, worker: WorkerProcess) -> int | None:
        """Receive the reply of `worker` and return the number of its task; None if the worker died instead."""
        try:
            reply = worker.receive()
        except WorkerLostError as error:
            self._requeue(worker, error)
            return None
        outcome: CallOutcome = pickle.loads(reply)  # noqa: S301 (from our own child process)
        if outcome.error is not None:
            raise outcome.error
        number = self.flights.pop(worker)
        self.results[number] = outcome.value
        return number

    def _requeue(self, worker: WorkerProcess, error: WorkerLostError) -> None:
        """Put the task of a dead worker back in front, unless it was tried often enough."""
        number = self.flights.pop(worker)
        self.workers.remove(worker)
        worker.end()
        self.attempts[number] += 1
        if self.attempts[number] >= MAX_ATTEMPTS:
            rule = f"a worker must survive its task within {MAX_ATTEMPTS} attempts"
            raise Unavailable(rule, error, "look for a lack of memory, or use fewer workers") from error
        _log.warning("a worker process died (%s); a new one does its task again", error)
        self.waiting.appendleft(number)
