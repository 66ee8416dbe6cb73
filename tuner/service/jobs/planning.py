"""Processes that compute what a request needs before it is answered: in turns, within limits."""

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

from chorale.runners.process_launch.memory import LOOK_S, resident_bytes
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.tuner.service.access import TooManyRequests

MOST_WAITING = 8


class Turns:
    """At most `slots` holders at the same time. Thread-safe.

    Among waiting owners, the one with the fewest holders goes next, then the one that was served longest ago or never;
    requests of an owner keep their order. most_waiting: of one owner; more are refused immediately
    """

    def __init__(self, slots: int, most_waiting: int = MOST_WAITING) -> None:
        self._free = slots
        self._most_waiting = most_waiting
        self._waiting: dict[str, deque[threading.Event]] = {}  # by owner
        self._served: dict[str, int] = {}  # by owner: number of the last turn; owners are as many as there are tokens
        self._turn = 0
        self._holders: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, owner: str) -> Iterator[None]:
        """Wait for a turn of `owner` and hold it during the block; TooManyRequests if too many wait already."""
        granted = self._enter(owner)
        granted.wait()  # bounded: every holder has a time limit, and an owner's turn comes after one of each other
        try:
            yield
        finally:
            self._leave(owner)

    def _enter(self, owner: str) -> threading.Event:
        granted = threading.Event()
        with self._lock:
            queue = self._waiting.setdefault(owner, deque())
            if len(queue) >= self._most_waiting:
                rule = f"a token may have at most {self._most_waiting} requests waiting to be planned"
                raise TooManyRequests(rule, "more", "wait for some to be answered")
            queue.append(granted)
            self._grant()
        return granted

    def _leave(self, owner: str) -> None:
        with self._lock:
            self._holders[owner] -= 1
            if not self._holders[owner]:
                del self._holders[owner]
            self._free += 1
            self._grant()

    def _grant(self) -> None:
        """Give free slots to the next owners."""
        while self._free and self._waiting:
            owner = min(self._waiting, key=lambda name: (self._holders[name], self._served.get(name, 0)))
            queue = self._waiting[owner]
            queue.popleft().set()
            if not queue:
                del self._waiting[owner]
            self._turn += 1
            self._served[owner] = self._turn
            self._free -= 1
            self._holders[owner] += 1


Value = TypeVar("Value")

IMPORTED_BYTES = 2**29
"""More than a process uses that has imported everything and does nothing."""
IDLE_S = 300.0
"""A process without calls ends after this time, even if its service was killed."""
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Planning(Protocol):
    """Calls functions for requests."""

    def call(self, owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call `function`, of a module of this package, with `arguments`; return its result or raise its error."""
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

    seconds, memory_bytes: limits of a call; if it exceeds them, its process is killed and the call raises InvalidInput.
    Owners take turns. Each process is a separate pool, so that killing one affects no other call.
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
                with self._lock:
                    is_usable = is_usable and not self._closed
                    if is_usable:
                        self._idle.append(pool)
                if not is_usable:
                    pool.shutdown(wait=False, kill_workers=True)
            return value

    def close(self) -> None:
        """End all processes; running calls end by their limits."""
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

    def _too_costly(self, value: str) -> InvalidInput:
        limit = f"{self._seconds:g} s and {self._memory_bytes / 2**30:.1f} GiB"
        return _TooCostly(f"a request must be planned within {limit}", value, "choose a smaller network")


class _TooCostly(InvalidInput):
    """A call went beyond its limits."""
