"""Runs tasks in worker processes. For each worker process, a thread of the calling process waits for its results."""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, TypeVar

from chorale.synth.errors import Unavailable
from chorale.synth.executor.base import MapExecutor
from chorale.synth.shadowing import outside_working_folder

Result = TypeVar("Result")
Function = Callable[[Any, Any], Result]

MAX_ATTEMPTS = 4
_POLL_S = 0.5
"""Longest single wait for workers, in seconds. If Ctrl-C arrives just before a wait, it is handled after the wait."""

_log = logging.getLogger("chorale.executor")
_starts = threading.Lock()


def pickled(value: Any) -> bytes:
    """Pickle `value` to send it through a pipe between two processes of this program."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def serve(connection: Connection) -> None:
    """Answer calls in a worker process until the parent closes its end of the connection or dies.

    All messages are pickled. The first message contains the parent's environment variables. Then ("share", value) sets
    the shared value, and ("call", function, task) is answered with (result, error). At the end, the shared value's
    `close` method is called if it has one. Ctrl-C is ignored here, because the parent handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shared: Any = None
    outcome: tuple[Any, BaseException | None]
    try:
        os.environ.update(pickle.loads(connection.recv_bytes()))  # noqa: S301 (from our own parent process)
        while True:
            message = connection.recv_bytes()
            try:
                kind, *content = pickle.loads(message)  # noqa: S301 (as above)
                if kind == "share":
                    (shared,) = content
                    continue
                function, task = content
                outcome = function(shared, task), None
            except BaseException as error:
                error.add_note(f"in a worker process:\n{traceback.format_exc()}")
                outcome = None, error
            try:
                reply = pickled(outcome)
                if outcome[1] is not None:
                    pickle.loads(reply)  # noqa: S301 (pickled above; some exceptions can be pickled but not rebuilt)
            except Exception as error:
                reply = pickled((None, TypeError(f"the outcome of a task cannot be pickled: {error}")))
            connection.send_bytes(reply)
    except (EOFError, OSError):
        if hasattr(shared, "close"):
            shared.close()


class WorkerLostError(Exception):
    """Raised when a worker process has died."""


class WorkerProcess:
    """Starts, calls and ends one worker process, which runs `serve`.

    On Linux, the process is forked from a fork server that has only imported this module and `preload`; elsewhere, it
    is spawned. A plain fork would copy locks that other threads hold. Each process has its own pipe, so if a process
    dies, even in the middle of a message, the other processes are not affected.
    """

    def __init__(self, preload: str) -> None:
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload([__name__, preload])
        self._connection, far_end = context.Pipe()
        self._process = context.Process(target=serve, args=(far_end,), daemon=True)
        with _starting():
            self._process.start()
        far_end.close()  # now only the worker has this end open, so the parent reads an end of file if the worker dies
        self._shared: bytes | None = None
        self._is_busy = False
        self._send(pickled(dict(os.environ)))

    def call(self, function: Function[Result], shared: bytes, task: Any, limit_s: float | None = None) -> Result:
        """Return `function(shared, task)` as computed by the process, or raise the exception that it raises.

        shared: a result of `shared_message`; it is not sent again if the previous call used the same one

        Raises WorkerLostError if the process dies, and TimeoutError if it does not answer within `limit_s` seconds.
        """
        call = pickled(("call", function, task))
        if shared is not self._shared:
            self._send(shared)
            self._shared = shared
        self._is_busy = True
        self._send(call)
        try:
            reply = self._connection.recv_bytes() if self._connection.poll(limit_s) else None
        except (EOFError, OSError):
            raise WorkerLostError(self._cause_of_death()) from None
        self._is_busy = False
        if reply is None:
            raise TimeoutError(f"no answer within {limit_s:.0f} s")
        result: Result
        result, error = pickle.loads(reply)  # noqa: S301 (from our own child process)
        if error is not None:
            raise error
        return result

    def interrupt(self) -> None:
        """Kill the process if it is busy, so that the pending `call` raises WorkerLostError."""
        if self._is_busy:
            self._process.kill()

    def end(self, patience_s: float = 0.0) -> None:
        """End the process and wait for its exit. An idle process has `patience_s` seconds to close its shared value."""
        self._connection.close()
        self._process.join(0.0 if self._is_busy else patience_s)
        self._process.kill()
        self._process.join()

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise WorkerLostError(self._cause_of_death()) from None

    def _cause_of_death(self) -> str:
        self._process.join(timeout=1)
        code = self._process.exitcode
        if code is None:
            return "it closed its connection"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


@contextmanager
def _starting() -> Iterator[None]:
    """While the context is active, new processes ignore Ctrl-C and do not run the main program again."""
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with outside_working_folder():
            yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessPool:
    """A pool of up to `size` worker processes, each with its own thread. A process starts when there is work for it.

    A process that dies is replaced and its call is repeated, with at most `MAX_ATTEMPTS` attempts. Functions must
    therefore be pure, or at least tolerate a second call.
    """

    def __init__(self, size: int, preload: str) -> None:
        self._preload = preload
        self.threads = ThreadPoolExecutor(size, thread_name_prefix="chorale-worker")
        self._own = threading.local()
        self._processes: set[WorkerProcess] = set()
        self._is_closed = False

    def submit(self, function: Function[Result], shared: bytes, task: Any) -> Future[Result]:
        """Return the future of `self.call(function, shared, task)`, which runs in a thread of the pool."""
        return self.threads.submit(self.call, function, shared, task)

    def call(self, function: Function[Result], shared: bytes, task: Any, limit_s: float | None = None) -> Result:
        """Return `function(shared, task)`, computed by the current thread's process. Must be called in a pool thread.

        shared: a result of `shared_message`; it is sent to each process once

        Raises the function's exception, Unavailable if the process died in every attempt, and TimeoutError if there is
        no answer within `limit_s` seconds; the process is then killed.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._process().call(function, shared, task, limit_s)
            except TimeoutError:
                self._drop_process()
                raise
            except WorkerLostError as error:
                self._drop_process()
                if self._is_closed:
                    raise
                if attempt == MAX_ATTEMPTS:
                    rule = f"a worker must survive its task within {MAX_ATTEMPTS} attempts"
                    raise Unavailable(rule, error, "look for a lack of memory, or use fewer workers") from error
                _log.warning("a worker process died (%s); a new one repeats its task", error)
        raise AssertionError

    def close(self, patience_s: float = 0.0) -> None:
        """Cancel all work and end the processes (see `WorkerProcess.end`). Calling this twice is allowed."""
        self._is_closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        with _starts:
            for process in self._processes:
                process.interrupt()
        self.threads.shutdown()
        for process in self._processes:
            process.end(patience_s)
        self._processes.clear()

    def _process(self) -> WorkerProcess:
        process: WorkerProcess | None = getattr(self._own, "process", None)
        if process is None:
            with _starts:
                if self._is_closed:
                    raise WorkerLostError("the pool is closed")
                process = self._own.process = WorkerProcess(self._preload)
                self._processes.add(process)
        return process

    def _drop_process(self) -> None:
        process: WorkerProcess | None = getattr(self._own, "process", None)
        if process is not None and not self._is_closed:
            self._own.process = None
            self._processes.discard(process)
            process.end()


def shared_message(value: Any) -> bytes:
    """Return the pickled message that makes `value` the first argument of all following calls to a worker."""
    return pickled(("share", value))


class ProcessExecutor(MapExecutor):
    """Runs tasks on up to `workers` processes, which start when there is work for them and live until `close`.

    `shared` is pickled once per map and sent once to each participating worker. After an exception or
    KeyboardInterrupt, all workers are killed, and the next map starts new ones. If the program itself is killed, its
    workers finish their current task and then end. Not thread-safe.
    """

    name = "processes"

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self._pool: ProcessPool | None = None

    def finished(
        self, function: Callable[[Any, Any], Result], tasks: Sequence[Any], shared: Any
    ) -> Generator[tuple[int, Result], None, None]:
        if not tasks:
            return
        pool = self._pool = self._pool or ProcessPool(self._workers, function.__module__)
        message = shared_message(shared)
        calls = ((pool.submit(function, message, task), number) for number, task in enumerate(tasks))
        try:
            pending = dict(islice(calls, 2 * self._workers))
            while pending:
                for future in wait(pending, _POLL_S, FIRST_COMPLETED).done:
                    number, result = pending.pop(future), future.result()
                    pending |= dict(islice(calls, 1))
                    yield number, result
        except BaseException:
            self._end_workers()
            raise

    def close(self) -> None:
        super().close()
        self._end_workers()

    def _end_workers(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
