"""Which nodes of a cluster no longer answer: Ray itself declares a node that is cut off dead after a minute or more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from chorale.runners.ray.watch import PING_S, SILENCE_LIMIT_S, head_answers

_AT_ONCE = 16
_END_LIMIT_S = 60.0

Probe = Callable[[str, float], bool]
"""Whether somebody answers at HOST:PORT within a time; `head_answers`."""


class SilentNodes:
    """Asks the raylets of nodes now and then, from a thread that ends with this process or with `close`."""

    def __init__(self, probe: Probe = head_answers, limit_s: float = SILENCE_LIMIT_S, ping_s: float = PING_S) -> None:
        self._probe = probe
        self._limit_s = limit_s
        self._ping_s = ping_s
        self._addresses: Mapping[str, str] = {}
        self._answered_s: dict[str, float] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, addresses: Mapping[str, str]) -> None:
        """Ask these nodes from now on: the HOST:PORT of each raylet, by the id of its node.

        One that was not asked for a while may have been silent before, which says nothing of now.
        """
        now_s = time.monotonic()
        self._answered_s.update((node, now_s) for node in addresses if node not in self._addresses)
        self._addresses = dict(addresses)
        if self._thread is None and addresses:
            self._thread = threading.Thread(target=self._ask, name="chorale-silent-nodes", daemon=True)
            self._thread.start()

    @property
    def now(self) -> frozenset[str]:
        """The ids of the nodes that have not answered for the limit; each has answered, or been asked, before."""
        late_s = time.monotonic() - self._limit_s
        answered = dict(self._answered_s)
        return frozenset(node for node in self._addresses if answered.get(node, late_s) < late_s)

    def close(self) -> None:
        """Ask no more. Safe to call twice."""
        self._closed.set()

    def _ask(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="chorale-silent-nodes") as threads:
            while True:
                addresses, began_s = dict(self._addresses), time.monotonic()
                for node in addresses:
                    self._answered_s.setdefault(node, began_s)
                try:
                    answers = threads.map(lambda address: self._probe(address, self._ping_s), addresses.values())
                except RuntimeError:
                    if not _process_ends():
                        raise
                    return
                for node, answered in zip(addresses, answers, strict=True):
                    if answered:
                        self._answered_s[node] = time.monotonic()
                if self._closed.wait(self._ping_s):
                    return


def _process_ends() -> bool:
    """Whether executors take nothing more since the process ends: its main thread waits for them, then it is over."""
    threading.main_thread().join(_END_LIMIT_S)
    return not threading.main_thread().is_alive()
