"""A worker process as its parent sees it: started, sent to, received from, ended."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, SpawnContext

from chorale.synth.executor.worker import serve


class WorkerLostError(Exception):
    """The process has died."""


class WorkerProcess:
    """A process that runs `serve`. Send it calls only while it has none to answer, so that neither side blocks.

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
            raise WorkerLostError(self._last_words()) from None

    def receive(self) -> bytes:
        """Return the next pickled answer. Raises WorkerLostError."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerLostError(self._last_words()) from None

    def end(self) -> None:
        """Kill the process, if it lives, and wait until it is gone."""
        self.connection.close()
        self._process.kill()
        self._process.join()

    def _last_words(self) -> str:
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
