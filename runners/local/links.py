"""The two ends of a directed link: a sender paced in virtual time and a receiver that fills buffers in place.

A frame is an 8-byte header (connection id, payload length) and at most 16 KiB of payload; frames of the
connections that share a link take turns. Only payload counts against the rate.
"""

from __future__ import annotations

import math
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Protocol

HEADER = struct.Struct("<II")
QUANTUM_BYTES = 16 * 1024
NEVER = math.inf


class LinkClosed(Exception):  # noqa: N818 - how a run ends, not a mistake
    """The node at the other end of a link is gone."""


class FrameSink(Protocol):
    """Where the payload of a connection's frames goes at one node."""

    def buffer(self, length: int) -> memoryview:
        """Return `length` writable bytes for the next frame."""
        ...

    def filled(self) -> None:
        """Take notice that the bytes of the last `buffer` have arrived."""
        ...


class OutgoingLink:
    """Sends frames no earlier than a link of the given rate would have delivered their last byte.

    The link is a clock: a frame starts when the one before it ends, or when its message was handed over if
    that is later, and is written to the socket when it ends. A process that wakes up late catches up, because
    the hardware it stands for would not have waited; nothing is ever delivered early.
    """

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.seconds_per_byte = 0.0
        self.due = NEVER  # when the frame in transmission ends
        self._free_at = 0.0
        self._turns: deque[int] = deque()  # connections with something to send, the next one first
        self._messages: dict[int, deque[tuple[memoryview, float]]] = {}
        self._unsent: list[memoryview] = []

    @property
    def is_blocked(self) -> bool:
        """Whether a frame waits for room in the socket."""
        return bool(self._unsent)

    def enqueue(self, connection: int, payload: memoryview, now: float) -> None:
        """Hand over a message; its bytes must not change until it has left."""
        queue = self._messages.setdefault(connection, deque())
        if not queue:
            self._turns.append(connection)
        queue.append((payload, now))
        if self.due == NEVER and not self._unsent:
            self._transmit_next()

    def pump(self, now: float) -> None:
        """Write every frame that has ended by `now`, as far as the socket takes them."""
        while not self._unsent and self.due <= now:
            self._free_at = self.due
            self._unsent = self._take_frame()
            self.flush()

    def flush(self) -> None:
        """Write what is left of the current frame; then the next one is in transmission."""
        try:
            sent = self.stream.sendmsg(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise LinkClosed from error
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if self._unsent:
            self._unsent[0] = self._unsent[0][sent:]
            self.due = NEVER
        else:
            self._transmit_next()

    def _transmit_next(self) -> None:
        if not self._turns:
            self.due = NEVER
            return
        payload, ready = self._messages[self._turns[0]][0]
        length = min(len(payload), QUANTUM_BYTES)
        self.due = max(self._free_at, ready) + length * self.seconds_per_byte

    def _take_frame(self) -> list[memoryview]:
        connection = self._turns.popleft()
        queue = self._messages[connection]
        payload, ready = queue.popleft()
        frame, rest = payload[:QUANTUM_BYTES], payload[QUANTUM_BYTES:]
        if rest:
            queue.appendleft((rest, ready))
        if queue:
            self._turns.append(connection)
        return [memoryview(HEADER.pack(connection, len(frame))), frame]


class IncomingLink:
    """Reads frames into the buffers of their sinks, payload and next header in one system call."""

    def __init__(self, stream: socket.socket, sinks: Mapping[int, FrameSink]) -> None:
        self.stream = stream
        self._sinks = sinks
        self._header = memoryview(bytearray(HEADER.size))
        self._header_filled = 0
        self._payload = memoryview(bytearray())  # what is still to be read of the current frame
        self._sink: FrameSink | None = None

    def receive(self) -> None:
        """Read what has arrived."""
        wanted = count = 0
        while count == wanted:
            buffers = [self._payload, self._header[self._header_filled :]]
            wanted = len(buffers[0]) + len(buffers[1])
            try:
                count = self.stream.recvmsg_into(buffers)[0]
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkClosed from error
            if count == 0:
                raise LinkClosed
            self._advance(count)

    def _advance(self, count: int) -> None:
        of_payload = min(count, len(self._payload))
        self._payload = self._payload[of_payload:]
        self._header_filled += count - of_payload
        if not self._payload and self._sink is not None:
            sink, self._sink = self._sink, None
            sink.filled()
        if self._header_filled == HEADER.size:
            connection, length = HEADER.unpack(self._header)
            self._header_filled = 0
            self._sink = self._sinks[connection]
            self._payload = self._sink.buffer(length)


class FrameForwarder:
    """Passes the frames of a connection on to the next link of its path."""

    def __init__(self, connection: int, link: OutgoingLink, clock: MonotonicClock) -> None:
        self._connection = connection
        self._link = link
        self._clock = clock
        self._frame = memoryview(bytearray())

    def buffer(self, length: int) -> memoryview:
        self._frame = memoryview(bytearray(length))
        return self._frame

    def filled(self) -> None:
        self._link.enqueue(self._connection, self._frame, self._clock())


class MonotonicClock(Protocol):
    """A monotonic clock in seconds, the same one in every process of the machine."""

    def __call__(self) -> float: ...
