"""Processes beside the service that do what a request asks before it is answered, within limits of time and memory."""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable
from chorale.tuner.service.access import NotFound
from chorale.tuner.service.jobs.turns import Turns

Value = TypeVar("Value")

HEADER = struct.Struct("<Q")
MAX_REPLY_BYTES = 2**30
CHILD = "chorale.tuner.service.jobs.planning_child"
ERRORS: dict[str, type[ChoraleError]] = {
    kind.__name__: kind for kind in (InvalidInput, CheckFailed, Unavailable, NotFound)
}
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

    seconds, memory_bytes: of a call; above them its process ends and the call raises InvalidInput. Owners take turns.
    """

    def __init__(self, processes: int, seconds: float, memory_bytes: int) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._turns = Turns(processes)
        self._idle: list[_Child] = []
        self._closed = False
        self._lock = threading.Lock()

    def call(self, owner: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Return what `function` returns; see `Planning` and the class."""
        with self._turns.turn(owner):
            child = self._take()
            try:
                kind, value = child.ask((function.__module__, function.__qualname__, arguments), self._seconds)
            except TimeoutError:
                child.kill()
                raise self._too_costly(f"more than {self._seconds:g} s") from None
            except (OSError, EOFError):  # it died, as processes do that get no memory in native code
                child.kill()
                raise self._too_costly("its process ended") from None
            settled: Value = self._settled(child, kind, value)
            return settled

    def _settled(self, child: _Child, kind: str, value: Any) -> Any:
        if kind == "memory":
            child.kill()
            raise self._too_costly("more memory")
        with self._lock:
            closed = self._closed
            if not closed:
                self._idle.append(child)
        if closed:
            child.kill()
        if kind == "value":
            return value
        if kind in ERRORS:
            raise ERRORS[kind](*value)
        raise RuntimeError(f"planning ended by {value}")

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Child(self._memory_bytes)

    def _too_costly(self, value: str) -> InvalidInput:
        limit = f"{self._seconds:g} s and {self._memory_bytes / 2**30:.1f} GiB"
        return InvalidInput(f"a request must be planned within {limit}", value, "choose a smaller network")

    def close(self) -> None:
        """End all processes; calls under way end by their limits."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for child in idle:
            child.kill()


class _Child:
    """One process; it reads calls from a pipe and writes replies to another."""

    def __init__(self, memory_bytes: int) -> None:
        environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            [sys.executable, "-m", CHILD, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def ask(self, call: tuple[str, str, tuple[Any, ...]], seconds: float) -> tuple[str, Any]:
        """Return the kind of the reply and its value. TimeoutError after `seconds`, EOFError where it died."""
        deadline_s = time.monotonic() + seconds
        content = pickle.dumps(call)
        assert self._process.stdin is not None  # for mypy
        self._process.stdin.write(HEADER.pack(len(content)) + content)
        self._process.stdin.flush()
        (length,) = HEADER.unpack(self._read(HEADER.size, deadline_s))
        if length > MAX_REPLY_BYTES:
            raise EOFError
        kind, value = pickle.loads(self._read(length, deadline_s))  # noqa: S301  # of our own process
        return kind, value

    def _read(self, length: int, deadline_s: float) -> bytes:
        assert self._process.stdout is not None  # for mypy
        descriptor, content = self._process.stdout.fileno(), bytearray()
        while len(content) < length:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise TimeoutError
            part = os.read(descriptor, min(length - len(content), 2**20))
            if not part:
                raise EOFError
            content += part
        return bytes(content)

    def kill(self) -> None:
        """End the process and wait for its end."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was not written to it is lost with it
                    continue
        self._process.wait()
