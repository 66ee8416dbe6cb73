"""Turns of owners at something of which there is little: nobody waits for all requests of somebody else."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from chorale.tuner.service.access import TooManyRequests

MOST_WAITING = 8


class Turns:
    """At most `slots` holders at once. Thread-safe.

    Among owners that wait, the one with the fewest holders goes next, then the one that was served longest ago, or
    never; the requests of an owner go in their order. most_waiting: of one owner; more are refused at once.
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
        """Give free slots to those whose turn it is."""
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
