"""Asks the clock of another process over a stream, or over whatever carries a question and its answer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from chorale.runners.measurement.clock_offset import ClockSample

ROUNDS = 20

_ANSWER = struct.Struct("<dd")

Clock = Callable[[], float]
"""A monotonic clock in seconds."""


def clock_samples(
    exchange: Callable[[], tuple[float, float]], clock_s: Clock, rounds: int = ROUNDS
) -> list[ClockSample]:
    """Return `rounds` samples; `ask` returns when the other process got the question and when it answered."""
    samples = []
    for _ in range(rounds):
        asked_s = clock_s()
        received_s, answered_s = exchange()
        samples.append(ClockSample(asked_s, received_s, answered_s, clock_s()))
    return samples


def request_clock(stream: socket.socket) -> tuple[float, float]:
    """Ask the process that serves `answer_stream` at the other end; ConnectionError when it is gone."""
    stream.sendall(b"?")
    answer = b""
    while len(answer) < _ANSWER.size:
        part = stream.recv(_ANSWER.size - len(answer))
        if not part:
            raise ConnectionError("the other clock is gone")
        answer += part
    received_s, answered_s = _ANSWER.unpack(answer)
    return received_s, answered_s


def serve_clock(stream: socket.socket, clock_s: Clock) -> None:
    """Answer every question until the other end shuts its side down."""
    while stream.recv(1):
        received_s = clock_s()
        stream.sendall(_ANSWER.pack(received_s, clock_s()))
