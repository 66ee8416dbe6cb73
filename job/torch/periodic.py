"""A thread that does something again and again, and keeps no process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

_LOOK_S = 0.1


class PeriodicThread:
    """Calls `turn` every `period_s` until it returns False, `close` is called, or the main thread has ended.

    A thread that Python waits for at exit, but none of a pool: for those it waits while the main thread still lives.
    """

    def __init__(self, name: str, period_s: float, turn: Callable[[], bool]) -> None:
        self._period_s, self._turn = period_s, turn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def is_over(self) -> bool:
        """Return whether it is to end, for turns that take long."""
        return self._stop.is_set() or not threading.main_thread().is_alive()

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.is_over() and self._turn():
            next_s = monotonic() + self._period_s
            while not self.is_over() and monotonic() < next_s:
                self._stop.wait(min(_LOOK_S, self._period_s))
