"""Processes beside the service that do what a request asks before it is answered, within limits of time and memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

from chorale.runners.process_launch.memory import LOOK_S, resident_bytes
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.tuner.service.jobs.turns import Turns

Value = TypeVar("Value")

IMPORTED_BYTES = 2**29
"""More than a process uses that has imported everything and does nothing."""
IDLE_S = 300.0
"""After that a process without calls ends: also one whose service was killed."""
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Planning(Protocol):
    """Calls functions for requests."""

    def call(self, owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Return what `function`, of a module of this package, returns for `arguments`; raise what it raises."""
        ...

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        ...


class InlinePlanning:
    """Planning in this process, without limits: for tests, and for who trusts all requests."""

    def call(self, _owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Return what `function` returns."""
        return function(*arguments)

    def close(self) -> None:
        """Do nothing."""


class PlanningProcesses:
    """Planning in at most `processes` processes, each for one call at a time. Thread-safe.

    seconds, memory_bytes: of a call; above them its process is killed and the call raises InvalidInput. Owners take
    turns. Each process is a pool of its own, so that killing one costs no other call.
    """

    def __init__(self, processes: int, seconds: float, memory_bytes: int) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._turns = Turns(processes)
        self._idle: list[ProcessPoolExecutor] = []
        self._closed = False
        self._lock = threading.Lock()

    def call(self, owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Return what `function` returns; see `Planning` and the class."""
        with self._turns.turn(owner):
            pool = self._take()
            is_usable = False
            try:
                deadline_s = time.monotonic() + self._seconds
                pid = self._within_limits(pool.submit(os.getpid), deadline_s, None)
                value: Value = self._within_limits(pool.submit(function, *arguments), deadline_s, pid)
                is_usable = resident_bytes(pid) < IMPORTED_BYTES
            except (BrokenProcessPool, MemoryError):
                raise self._too_costly("its process ended for want of memory") from None
            except ChoraleError as error:
                is_usable = not isinstance(error, _TooCostly)
                raise
            finally:
                self._give_back(pool, is_usable)
            return value

    def close(self) -> None:
        """End all processes; calls under way end by their limits."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for pool in idle:
            pool.shutdown(wait=False, kill_workers=True)

    def _within_limits(self, future: Future[Value], deadline_s: float, pid: int | None) -> Value:
        """Return the value of `future`, which the process `pid` computes."""
        while not wait([future], min(LOOK_S, max(deadline_s - time.monotonic(), 0))).done:
            if time.monotonic() >= deadline_s:
                raise self._too_costly(f"more than {self._seconds:g} s")
            if pid is not None and resident_bytes(pid) > IMPORTED_BYTES + self._memory_bytes:
                raise self._too_costly("more memory")
        return future.result()

    def _take(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return ProcessPoolExecutor(1, timeout=IDLE_S, env=dict.fromkeys(_ONE_THREAD, "1"))

    def _give_back(self, pool: ProcessPoolExecutor, is_usable: bool) -> None:
        with self._lock:
            is_usable = is_usable and not self._closed
            if is_usable:
                self._idle.append(pool)
        if not is_usable:
            pool.shutdown(wait=False, kill_workers=True)

    def _too_costly(self, value: str) -> InvalidInput:
        limit = f"{self._seconds:g} s and {self._memory_bytes / 2**30:.1f} GiB"
        return _TooCostly(f"a request must be planned within {limit}", value, "choose a smaller network")


class _TooCostly(InvalidInput):
    """A call went beyond its limits."""
