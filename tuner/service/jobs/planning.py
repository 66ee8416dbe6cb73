"""Runs slow parts of requests in separate processes, which have limits and are shared fairly among tokens."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

from chorale.runners.process_launch.processes import LOOK_S, resident_bytes
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.shadowing import outside_working_folder
from chorale.tuner.service.access import TooManyRequests

MOST_WAITING = 8
IMPORTED_BYTES = 2**29
"""Maximum memory of a process after all imports, in bytes. A process that uses more after a call is not reused."""
IDLE_S = 300.0
"""Seconds after which an idle process ends, even if its service was killed."""
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Value = TypeVar("Value")


class Planning:
    """Calls functions in this process, without limits. For tests, and for services whose callers can all be trusted."""

    def call(self, _owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call `function`, which must be importable, with `arguments`. Return its result or raise its error."""
        return function(*arguments)

    def close(self) -> None:
        """End all processes. Safe to call twice."""


class PlanningProcesses(Planning):
    """Calls functions in at most `processes` processes, each of which handles one call at a time. Thread-safe.

    seconds, memory_bytes: limits for a call. If a call exceeds one, its process is killed and InvalidInput is raised.
    Other calls are not affected.
    """

    def __init__(self, processes: int, seconds: float, memory_bytes: int) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._free = processes
        self._waiting: list[str] = []  # the owners of waiting calls
        self._running: set[str] = set()  # the owners of running calls
        self._turns: Counter[str] = Counter()  # owner -> number of the owner's last call
        self._changed = threading.Condition()
        self._idle: list[ProcessPoolExecutor] = []
        self._closed = False
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, owner: str) -> Iterator[None]:
        """Wait for a free process and reserve it for the `with` block.

        A free process goes to the owner whose previous call began longest ago. Only one call of each owner runs at a
        time, so no owner has to wait for all the calls of another one. Raises TooManyRequests if `MOST_WAITING` calls
        of the owner are waiting.
        """

        def is_next() -> bool:
            ready = [waiting for waiting in self._waiting if waiting not in self._running]
            return self._free > 0 and owner in ready and owner == min(ready, key=self._turns.__getitem__)

        with self._changed:
            if self._waiting.count(owner) >= MOST_WAITING:
                rule = f"a token may have at most {MOST_WAITING} requests waiting to be planned"
                raise TooManyRequests(rule, "more", "wait for some to be answered")
            self._waiting.append(owner)
            self._changed.wait_for(is_next)
            self._waiting.remove(owner)
            self._running.add(owner)
            self._free -= 1
            self._turns[owner] = max(self._turns.values(), default=0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(owner)
                self._free += 1
                self._changed.notify_all()

    def call(self, owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call `function` in one of the processes, within the limits, and return its result or raise its error."""
        with self.turn(owner):
            with self._lock:
                pool = self._idle.pop() if self._idle else None
            with outside_working_folder():  # the pool may start loky's resource tracker
                pool = pool or ProcessPoolExecutor(1, timeout=IDLE_S, env=dict.fromkeys(_ONE_THREAD, "1"))
            is_usable = False
            try:
                deadline_s = time.monotonic() + self._seconds
                with outside_working_folder():
                    started = pool.submit(os.getpid)
                pid = self._within_limits(started, deadline_s, None)
                value: Value = self._within_limits(pool.submit(function, *arguments), deadline_s, pid)
                is_usable = resident_bytes(pid) < IMPORTED_BYTES
            except (BrokenProcessPool, MemoryError):
                raise self._too_costly("its process ran out of memory") from None
            except ChoraleError as error:
                is_usable = not isinstance(error, _TooCostly)
                raise
            finally:
                with self._lock:
                    is_usable = is_usable and not self._closed
                    if is_usable:
                        self._idle.append(pool)
                if not is_usable:
                    pool.shutdown(wait=False, kill_workers=True)
            return value

    def close(self) -> None:
        """End all idle processes. Running calls go on until they finish or reach a limit."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for pool in idle:
            pool.shutdown(wait=False, kill_workers=True)

    def _within_limits(self, future: Future[Value], deadline_s: float, pid: int | None) -> Value:
        while not wait([future], min(LOOK_S, max(deadline_s - time.monotonic(), 0))).done:
            if time.monotonic() >= deadline_s:
                raise self._too_costly(f"more than {self._seconds:g} s")
            if pid is not None and resident_bytes(pid) > IMPORTED_BYTES + self._memory_bytes:
                raise self._too_costly("more memory")
        return future.result()

    def _too_costly(self, value: str) -> InvalidInput:
        limit = f"{self._seconds:g} s and {self._memory_bytes / 2**30:.1f} GiB"
        return _TooCostly(f"a request must be planned within {limit}", value, "choose a smaller network")


class _TooCostly(InvalidInput):
    """Raised if a call exceeds its time or memory limit."""
