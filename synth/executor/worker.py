"""The worker processes of `ProcessExecutor`: what runs inside one, and how the parent starts, calls and ends it."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any


@dataclass(frozen=True, slots=True)
class SharedValue:
    """Message to a worker: the shared value of all later calls. The worker does not reply."""

    value: Any


@dataclass(frozen=True, slots=True)
class TaskCall:
    """Message to a worker: reply with the CallOutcome of `function(shared, task)`."""

    function: Callable[[Any, Any], Any]
    task: Any


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Reply of a worker: what the function returned, or the exception it raised."""

    value: Any = None
    error: BaseException | None = None


def serve(connection: Connection) -> None:
    """Serve calls until the parent closes its end or dies. Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shared: Any = None
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        content = _unpickled(message)
        if isinstance(content, SharedValue):
            shared = content.value
            continue
        reply = _reply(content, shared)
        try:
            connection.send_bytes(reply)
        except OSError:
            return


def pickled(value: Any) -> bytes:
    """Return `value` as bytes for the other end of a connection that both processes of this program hold."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickled(message: bytes) -> SharedValue | TaskCall | CallOutcome:
    try:
        content: SharedValue | TaskCall = pickle.loads(message)  # noqa: S301 (from our own parent process)
    except Exception as error:
        return CallOutcome(error=error)
    return content


def _reply(content: TaskCall | CallOutcome, shared: Any) -> bytes:
    outcome = _run(content, shared) if isinstance(content, TaskCall) else content
    try:
        reply = pickled(outcome)
        if outcome.error is not None:
            pickle.loads(reply)  # noqa: S301 (pickled above; some exceptions can be pickled but not rebuilt)
    except Exception as error:
        reply = pickled(CallOutcome(error=TypeError(f"the outcome of a task cannot be pickled: {error}")))
    return reply


def _run(call: TaskCall, shared: Any) -> CallOutcome:
    try:
        return CallOutcome(call.function(shared, call.task))
    except BaseException as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return CallOutcome(error=error)


class WorkerLostError(Exception):
    """The process has died."""


class WorkerProcess:
    """A process that runs `serve`. Send it a call only when it has replied to all earlier ones, so that neither side
    blocks.

    `preload` names a module that its tasks need; the first worker of a program loads it for all.
    """

    def __init__(self, preload: str) -> None:
        context = _context(preload)
        self.connection, far_end = context.Pipe()
        self._process = context.Process(target=serve, args=(far_end,), daemon=True)
        with _interrupts_held():
            self._process.start()
        far_end.close()  # now the worker alone holds it, and its death is seen here as the end of the stream

    def send(self, message: bytes) -> None:
        """Send a pickled message. Raises WorkerLostError."""
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise WorkerLostError(self._cause_of_death()) from None

    def receive(self) -> bytes:
        """Return the next pickled reply. Raises WorkerLostError."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerLostError(self._cause_of_death()) from None

    def end(self) -> None:
        """Kill the process, if it lives, and wait until it is gone."""
        self.connection.close()
        self._process.kill()
        self._process.join()

    def _cause_of_death(self) -> str:
        self._process.join(timeout=1)
        code = self._process.exitcode
        if code is None:
            return "it closed its connection"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _context(preload: str) -> ForkServerContext | SpawnContext:
    """Return how processes start: forked from a clean server that has loaded `preload` already, where there is one.

    A plain fork would copy locks that other threads hold.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, preload])
    return context


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back ctrl-C in this thread: a process started meanwhile never sees it, not even before it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
