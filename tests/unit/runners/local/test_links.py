"""Pacing against a clock that the test moves, and frames through a real socket pair."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from chorale.runners.local.links import (
    HEADER,
    NEVER,
    QUANTUM_BYTES,
    FrameForwarder,
    IncomingLink,
    LinkClosed,
    OutgoingLink,
)

RATE = 1e-6  # seconds per byte


class Recorder:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.frames: list[bytearray] = []
        self.complete = 0

    def buffer(self, length: int) -> memoryview:
        self.frames.append(bytearray(length))
        return memoryview(self.frames[-1])

    def filled(self) -> None:
        self.complete += 1

    @property
    def content(self) -> bytes:
        return b"".join(self.frames[: self.complete])


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    with near, far:
        yield near, far


def _paced(stream: socket.socket) -> OutgoingLink:
    link = OutgoingLink(stream)
    link.seconds_per_byte = RATE
    return link


def _message(length: int, seed: int = 0) -> memoryview:
    return memoryview(bytes((seed + 7 * position) % 251 for position in range(length)))


def test_nothing_arrives_before_the_link_could_have_carried_it(pair: tuple[socket.socket, socket.socket]) -> None:
    link, sink = _paced(pair[0]), Recorder()
    receiver = IncomingLink(pair[1], {3: sink})
    link.enqueue(3, _message(1000), now=5.0)
    link.pump(5.000999)
    receiver.receive()
    assert sink.complete == 0
    assert link.due == pytest.approx(5.001)
    link.pump(5.001)
    receiver.receive()
    assert sink.content == _message(1000)
    assert link.due == NEVER


def test_a_late_sender_catches_up_with_the_clock_of_the_link(pair: tuple[socket.socket, socket.socket]) -> None:
    link = _paced(pair[0])
    for _ in range(4):
        link.enqueue(0, _message(1000), now=0.0)
    link.pump(0.0035)  # woken once, when three of four messages are over
    assert link.due == pytest.approx(0.004)


def test_an_idle_link_saves_no_time_up(pair: tuple[socket.socket, socket.socket]) -> None:
    link = _paced(pair[0])
    link.enqueue(0, _message(1000), now=0.0)
    link.pump(10.0)
    link.enqueue(0, _message(1000), now=10.0)
    assert link.due == pytest.approx(10.001)


def test_connections_take_turns_frame_by_frame(pair: tuple[socket.socket, socket.socket]) -> None:
    link, sinks = _paced(pair[0]), {1: Recorder(), 2: Recorder()}
    receiver = IncomingLink(pair[1], sinks)
    link.enqueue(1, _message(3 * QUANTUM_BYTES), now=0.0)
    link.enqueue(2, _message(QUANTUM_BYTES // 2), now=0.0)
    link.pump(1.6 * QUANTUM_BYTES * RATE)
    receiver.receive()
    assert (sinks[1].complete, sinks[2].complete) == (1, 1)
    link.pump(1.0)
    receiver.receive()
    assert sinks[1].content == _message(3 * QUANTUM_BYTES)
    assert sinks[2].content == _message(QUANTUM_BYTES // 2)


def test_a_full_socket_blocks_and_loses_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    link, sink = _paced(pair[0]), Recorder()
    receiver = IncomingLink(pair[1], {0: sink})
    message = _message(2**21)
    link.enqueue(0, message, now=0.0)
    link.pump(1000.0)
    assert link.is_blocked
    assert link.due == NEVER
    while link.is_blocked:
        receiver.receive()
        link.flush()
        link.pump(1000.0)
    receiver.receive()
    assert sink.content == message


def test_frames_may_arrive_in_any_pieces(pair: tuple[socket.socket, socket.socket]) -> None:
    sinks = {0: Recorder(), 9: Recorder()}
    receiver = IncomingLink(pair[1], sinks)
    stream = b"".join(
        HEADER.pack(connection, length) + bytes(_message(length, connection))
        for connection, length in ((9, 5), (0, 1), (9, 40))
    )
    for position in range(len(stream)):
        pair[0].send(stream[position : position + 1])
        receiver.receive()
    assert sinks[9].content == bytes(_message(5, 9)) + bytes(_message(40, 9))
    assert sinks[0].content == bytes(_message(1))


def test_forwarding_charges_the_next_link(pair: tuple[socket.socket, socket.socket]) -> None:
    link = _paced(pair[0])
    forward = FrameForwarder(4, link, lambda: 2.0)
    forward.buffer(500)[:] = bytes(_message(500))
    forward.filled()
    assert link.due == pytest.approx(2.0005)
    link.pump(3.0)
    assert pair[1].recv(2000) == HEADER.pack(4, 500) + bytes(_message(500))


def test_a_closed_link_is_noticed_at_both_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    link, receiver = _paced(pair[0]), IncomingLink(pair[0], {})
    pair[1].close()
    with pytest.raises(LinkClosed):
        receiver.receive()
    link.enqueue(0, _message(10), now=0.0)
    with pytest.raises(LinkClosed):
        link.pump(1.0)
