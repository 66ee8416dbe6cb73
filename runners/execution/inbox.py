"""The receiving end of a connection: messages in order, each of the length its instruction expects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from chorale.runners.data import Vector


class Inbox:
    """Collects frames into whole messages and calls `arrived` once for each.

    A message that comes while its `r` instruction is waiting goes straight into place; any other is buffered.
    """

    def __init__(self, lengths: Sequence[int], dtype: DTypeLike, arrived: Callable[[], None]) -> None:
        self._lengths = deque(lengths)  # elements of the messages still to begin
        self._dtype = dtype
        self._itemsize = np.dtype(dtype).itemsize
        self._arrived = arrived
        self._ready: deque[Vector] = deque()
        self._message: Vector | None = None
        self._rest = memoryview(bytearray())
        self._place: Vector | None = None

    @property
    def has_message(self) -> bool:
        return bool(self._ready)

    @property
    def next_bytes(self) -> int | None:
        """The length of the next message that has not begun to arrive, None after the last one."""
        return self._lengths[0] * self._itemsize if self._lengths else None

    def set_destination(self, destination: Vector) -> None:
        """Let the next message go to `place`, if it has not begun to arrive."""
        if self._message is None and not self._ready:
            self._place = destination

    def take(self) -> Vector:
        """Return the next whole message; its memory belongs to the caller, or is the place that was offered."""
        return self._ready.popleft()

    def buffer(self, length: int) -> memoryview:
        if self._message is None:
            elements = self._lengths.popleft()
            self._message = np.empty(elements, self._dtype) if self._place is None else self._place
            self._place = None
            self._rest = self._message.view(np.uint8).data  # not every element type has a buffer of its own
        part, self._rest = self._rest[:length], self._rest[length:]
        return part

    def filled(self) -> None:
        if self._message is not None and not self._rest:
            self._ready.append(self._message)
            self._message = None
            self._arrived()
