"""Defines the `Work` objects that asynchronous calls return, and the queue that executes program runs."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from chorale.job.torch.transport import StreamOrder


class ProgramWork(dist.Work):  # type: ignore[misc]
    """The `Work` that torch returns to the caller for one run of a program. Its future yields the output tensors.

    On an accelerator, `wait` makes the caller's stream wait for the run, and returns once the run is enqueued.
    """

    def __init__(self, results: Any, order: StreamOrder | None = None) -> None:
        """Create the `Work`. `results` becomes the value of its future; `order` is None for tensors in CPU memory."""
        super().__init__()
        self._results = results
        self._order = order
        self._future = torch.futures.Future(devices=[order.device] if order and order.has_streams else None)
        self._done = threading.Event()
        self._error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """Mark the work as ended, with an error if one is given, and wake up all waiting threads. Call this once."""
        self._error = error
        self._done.set()
        if error is None:
            self._future.set_result(self._results)
        else:
            self._future.set_exception(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the output is complete. Raises the run's error, or RuntimeError after `timeout`."""
        limit_s = timeout.total_seconds() if timeout else 0.0
        if not self._done.wait(limit_s if limit_s > 0 else None):
            raise RuntimeError(f"chorale: a collective was not complete after {limit_s} s")
        if self._error is not None:
            raise self._error
        if self._order is not None:
            self._order.join()
        return True

    def get_future(self) -> Any:
        """Return the future of the output tensors.

        If a Python future ends with an exception, C++ code (for example DDP's reducer) mistakes the exception for the
        tensors and crashes. So the returned future comes from a callback: C++ does recognise errors of callbacks.
        """
        return self._future.then(lambda done: done.value())

    def is_completed(self) -> bool:
        return self._done.is_set() and (self._order is None or self._order.is_over())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        """Return the output tensors, which are complete after `wait`."""
        return self._results

    def synchronize(self) -> None:
        self.wait()


class SeveralWorks(dist.Work):  # type: ignore[misc]
    """Combines several `Work` objects into one, for coalesced calls."""

    def __init__(self, works: Sequence[Any], results: Any) -> None:
        super().__init__()
        self._works, self._results = works, results

        def collected(futures: Any) -> Any:
            for future in futures.value():
                future.wait()
            return results

        self._future = torch.futures.collect_all([work.get_future() for work in works]).then(collected)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all works. Raises the first error."""
        for work in self._works:
            work.wait(timeout) if timeout else work.wait()
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def result(self) -> Any:
        return self._results

    def synchronize(self) -> None:
        self.wait()


class WorkQueue:
    """Executes jobs in order: in its own thread, or directly if the caller waits and nothing is queued.

    A job that another job submits (in a callback of its future) runs immediately, because waiting in the queue would
    deadlock. When Python exits, it waits for the thread.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._turn = threading.RLock()
        self._worker = 0
        self._pending = 0
        self._count = threading.Lock()

    def do(self, job: Callable[[], None], wait: bool) -> None:
        """Run `job`, which must not raise: immediately if `wait` is set and nothing is queued, else in the queue."""
        with self._count:
            at_once = self._worker == threading.get_ident() or (wait and self._pending == 0)
            self._pending += 1
            if not at_once:
                self._pool.submit(self._run, job)
        if at_once:
            self._run(job)

    @property
    def is_idle(self) -> bool:
        """Return whether no job is queued or running. Always true in a job: jobs that it submits run immediately."""
        return self._pending == 0 or self._worker == threading.get_ident()

    def end(self) -> None:
        """Execute all queued jobs, then end the thread. Safe to call twice."""
        self._pool.shutdown(wait=True)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            with self._turn:
                outer, self._worker = self._worker, threading.get_ident()
                try:
                    job()
                finally:
                    self._worker = outer
        finally:
            with self._count:
                self._pending -= 1
