"""The emulated network: the pace of its links, turns, bounds and who is let in, over real sockets."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from chorale.runners.local.ranks import native_code

pytestmark = pytest.mark.alone  # paces of links are measured

HELLO = struct.Struct("<8s16siiii")
FRAME_BYTES = 16 * 1024
SLOW_FRAME_BYTES = 2 * 1024  # of links so slow that a frame would take more than a millisecond
NS_PER_BYTE = 1000.0  # 1 MB/s
LIMIT_S = 20.0


class NetworkProcess:
    """A network of `links` (nanoseconds per byte) with `paths` (src, dst, channel, links)."""

    def __init__(self, links: Sequence[float], paths: Sequence[tuple[int, ...]]) -> None:
        self.name = f"chorale-test-{os.getpid()}-{time.monotonic_ns()}"
        self.control, far = socket.socketpair()
        self.sockets = [self.control]
        self.control.settimeout(LIMIT_S)
        command = [str(native_code()[1]), str(far.fileno()), self.name]
        self.process = subprocess.Popen(command, pass_fds=[far.fileno()])
        far.close()
        assert self.control.recv(100) == b"ready\n"
        lines = [f"link {n} {pace}" for n, pace in enumerate(links)]
        self.command(*lines, *("path " + " ".join(map(str, path)) for path in paths))

    def command(self, *lines: str) -> None:
        self.control.sendall("".join(f"{line}\n" for line in (*lines, "done")).encode())
        assert self.control.recv(100) == b"done\n"

    def greet(self, src: int, dst: int, channel: int = 0, text: bytes = b"chorale1") -> socket.socket:
        stream = self.connect()
        stream.sendall(HELLO.pack(text, bytes(16), src, dst, channel, 0))
        return stream

    def connect(self) -> socket.socket:
        stream = socket.socket(socket.AF_UNIX)
        self.sockets.append(stream)
        stream.settimeout(LIMIT_S)
        stream.connect("\0" + self.name)
        return stream

    def join(self, src: int, dst: int, channel: int = 0) -> tuple[socket.socket, socket.socket]:
        ends = self.greet(src, dst, channel), self.greet(dst, src, channel)
        assert [end.recv(8) for end in ends] == [b"welcome1"] * 2
        return ends

    def close(self) -> None:
        for stream in self.sockets:
            stream.close()
        self.process.wait(LIMIT_S)


@pytest.fixture
def network() -> Iterator[NetworkProcess]:
    """Ranks 0 and 1 with a link each way, rank 2 behind another link, two channels from 0 to 1."""
    paths = [(0, 1, 0, 0), (1, 0, 0, 1), (0, 1, 1, 0), (0, 2, 0, 0, 2)]
    with closing(NetworkProcess([NS_PER_BYTE] * 3, paths)) as opened:
        yield opened


def _message(length: int) -> bytes:
    return (bytes(7 * position % 251 for position in range(251)) * (length // 251 + 1))[:length]


def _receive(stream: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length and (more := stream.recv(length - len(received))):
        received += more
    return bytes(received)


def _seconds(sender: socket.socket, receiver: socket.socket, length: int) -> float:
    """Return the seconds that a message of `length` bytes takes, which must come as it is."""
    message = _message(length)
    start_s = time.monotonic()
    sender.sendall(message)
    assert _receive(receiver, length) == message
    return time.monotonic() - start_s


@pytest.mark.parametrize("length", [1, 1000, FRAME_BYTES, FRAME_BYTES + 1, 150_000])
def test_nothing_arrives_before_the_link_could_have_carried_it(network: NetworkProcess, length: int) -> None:
    low, high = network.join(0, 1)
    for sender, receiver in ((low, high), (high, low)):
        least_s = length * NS_PER_BYTE * 1e-9
        assert least_s <= min(_seconds(sender, receiver, length) for _ in range(3)) < 1.5 * least_s + 0.05


def test_an_idle_link_saves_no_time_up_and_a_new_pace_holds_from_the_next_frame(network: NetworkProcess) -> None:
    sender, receiver = network.join(0, 1)
    for _ in range(3):
        time.sleep(0.1)
        assert _seconds(sender, receiver, 50_000) >= 0.05
    network.command("link 0 3000")
    assert _seconds(sender, receiver, 30_000) >= 0.09


def test_a_late_network_catches_up_with_the_clocks_of_its_links(network: NetworkProcess) -> None:
    sender, receiver = network.join(0, 1)

    def seconds_with_a_pause() -> float:
        start_s = time.monotonic()
        sender.sendall(bytes(200_000))
        time.sleep(0.03)
        network.process.send_signal(signal.SIGSTOP)
        time.sleep(0.12)
        network.process.send_signal(signal.SIGCONT)
        _receive(receiver, 200_000)
        return time.monotonic() - start_s

    assert 0.2 <= min(seconds_with_a_pause() for _ in range(5)) < 0.3


def test_connections_take_turns_frame_by_frame(network: NetworkProcess) -> None:
    busy, small = network.join(0, 1), network.join(0, 1, channel=1)
    start_s = time.monotonic()
    busy[0].sendall(bytes(12 * FRAME_BYTES))
    small[0].sendall(_message(FRAME_BYTES))
    assert _receive(small[1], FRAME_BYTES) == _message(FRAME_BYTES)
    small_s = time.monotonic() - start_s
    _receive(busy[1], 12 * FRAME_BYTES)
    both_s = time.monotonic() - start_s
    assert both_s >= 13 * FRAME_BYTES * NS_PER_BYTE * 1e-9
    assert small_s < both_s - 6 * FRAME_BYTES * NS_PER_BYTE * 1e-9


def test_a_receiver_that_does_not_read_stops_the_sender_and_loses_nothing(network: NetworkProcess) -> None:
    network.command("link 0 0")
    sender, receiver = network.join(0, 1)
    message = _message(2**22)
    sender.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(message):
            sent += sender.send(message[sent : sent + FRAME_BYTES])
    assert FRAME_BYTES < sent < 2**21
    assert _receive(receiver, sent) == message[:sent]
    sender.settimeout(LIMIT_S)
    sender.sendall(message[sent : sent + 1000])
    assert _receive(receiver, 1000) == message[sent : sent + 1000]


def test_every_link_of_a_path_takes_its_time(network: NetworkProcess) -> None:
    sender, receiver = network.join(0, 2)
    frame_s, message_s = SLOW_FRAME_BYTES * NS_PER_BYTE * 1e-9, FRAME_BYTES * NS_PER_BYTE * 1e-9
    assert 2 * frame_s <= min(_seconds(sender, receiver, SLOW_FRAME_BYTES) for _ in range(3)) < message_s
    # Frames overtake no other, but the second link carries one while the first carries the next.
    shortest_s = min(_seconds(sender, receiver, 8 * FRAME_BYTES) for _ in range(3))
    assert 8 * message_s + frame_s <= shortest_s < 13 * message_s


def test_who_leaves_is_noticed_when_all_that_it_sent_has_come_and_who_started_it_ends_it(
    network: NetworkProcess,
) -> None:
    sender, receiver = network.join(0, 1)
    sender.sendall(_message(100_000))
    sender.close()
    assert _receive(receiver, 100_001) == _message(100_000)
    receiver.close()
    assert network.process.poll() is None
    network.join(0, 1, channel=1)
    network.control.close()
    assert network.process.wait(5.0) == 0


def test_ranks_wait_for_each_other_and_who_comes_again_takes_its_own_place(network: NetworkProcess) -> None:
    first = network.greet(0, 1)
    first.settimeout(0.2)
    with pytest.raises(TimeoutError):
        first.recv(8)
    again, other = network.greet(0, 1), network.greet(1, 0)
    assert (first.recv(8), again.recv(8), other.recv(8)) == (b"", b"welcome1", b"welcome1")


def test_strangers_and_who_says_nothing_are_turned_away_and_disturb_nobody(network: NetworkProcess) -> None:
    start_s, silent = time.monotonic(), network.connect()
    network.join(0, 1, channel=1)
    strangers = [
        network.greet(0, 1, text=b"GET / HT"),
        network.greet(0, 1, channel=1),  # is connected already
        network.greet(0, 1, channel=2),  # no path
        network.greet(0, 0),
        network.greet(-(2**31), 2**31 - 1),
    ]
    assert [stranger.recv(8) for stranger in strangers] == [b""] * len(strangers)
    sender, receiver = network.join(0, 1)
    _seconds(sender, receiver, 1000)
    assert silent.recv(1) == b""
    assert time.monotonic() - start_s > 1


@pytest.mark.parametrize("line", ["nonsense", "link 9 1", "link 0 -1", "path 0 1 0", "path 0 1 0 77", "path 1 1 0 0"])
def test_a_senseless_command_is_an_error(network: NetworkProcess, line: str) -> None:
    network.control.sendall(f"{line}\n".encode())
    assert network.control.recv(1000).startswith(b"error ")
    assert network.process.wait(5.0) == 1


def test_bytes_without_a_path_are_an_error(network: NetworkProcess) -> None:
    _, high = network.join(0, 2)
    high.sendall(b"x")
    assert network.control.recv(1000) == b"error rank 2 sent to rank 0 where no path is known\n"
