"""A process that probes the links of an emulated fabric: `python -m chorale.runners.fabric.link_probe`.

It reads a line of JSON that says which links there are, then lines `[number, packets]`: send so many packets over the
link of that number now, in one go. It writes a line of JSON for each such probe: when it was sent, how long that took,
whether all packets arrived, and the times that the kernel gave to the first and the last, from which the rate of the
link follows whatever else it carries, since nothing comes between packets that are queued together. It ends when its
input ends. After a line `"carried"` it writes how many bytes each link has carried.

Every link has a socket of its own, bound to the link's device: a probe takes no detour. It needs the right to do so.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

_PORT = 29399
_HEADER = struct.Struct("!QIIHH")  # token of this run, link, number of the probe, index of the packet, packets
_TIMESTAMP = struct.Struct("@qq")
_SO_TIMESTAMPNS = 35
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LARGEST_PACKET_BYTES = 65_536
_MOST_QUEUED = 8
"""As many times the limit a probe may stand in a queue that moves."""
_LATENESS_FACTOR = 4
"""As many times as late as this process got a core of late a packet may be later: who carries it waits for one too."""
_LATENESS_S = 10.0
"""How long that is remembered."""
_TURN_S = 0.05
_SENT_COLUMN = 8
"""Of /proc/net/dev: the bytes that a device has sent."""
IP_UDP_BYTES = 28
"""Of headers in every packet."""


@dataclass(slots=True)
class _Probe:
    """One that is under way. sending_ns: between the calls that sent the first packet and the last"""

    link: int
    packets: int
    sent_ns: int
    sending_ns: int = 0
    arrivals_ns: dict[int, int] = field(default_factory=dict)


class Lateness:
    """How late this process gets a core: the longest of late, by turns that should come every `_TURN_S` at least."""

    def __init__(self) -> None:
        self._turns: deque[tuple[int, int]] = deque()
        self._last_ns: int | None = None

    def turn(self, now_ns: int) -> None:
        """Count a turn."""
        late_ns = 0 if self._last_ns is None else now_ns - self._last_ns - int(_TURN_S * 1e9)
        self._last_ns = now_ns
        while self._turns and self._turns[0][0] < now_ns - int(_LATENESS_S * 1e9):
            self._turns.popleft()
        while self._turns and self._turns[-1][1] <= late_ns:
            self._turns.pop()
        if late_ns > 0:
            self._turns.append((now_ns, late_ns))

    @property
    def longest_ns(self) -> int:
        """The longest of late."""
        return self._turns[0][1] if self._turns else 0


class LinkProber:
    """Sends probes and says how they arrived; one thread."""

    def __init__(self, task: dict[str, Any]) -> None:
        """task: `namespaces` of each node (files, a user's first if there is one), `links` as [src, dst, device,
        address of dst], `payload_bytes` of a packet, `limit_s` of silence after which one is lost"""
        self._links, self._limit_ns = task["links"], int(task["limit_s"] * 1e9)
        self._payload = bytes(task["payload_bytes"] - _HEADER.size)
        self._token = int.from_bytes(os.urandom(8), "big")
        self._under_way: dict[int, _Probe] = {}
        self._arrived_ns = [0] * len(self._links)
        self._count = 0
        self.lateness = Lateness()
        receivers, senders, counters = _sockets(task["namespaces"], self._links)
        self._receivers, self._senders, self._counters = receivers, senders, counters

    @property
    def receivers(self) -> Sequence[socket.socket]:
        """The sockets at which packets arrive."""
        return self._receivers

    def send(self, link: int, packets: int) -> dict[str, Any] | None:
        """Send a probe; return its outcome if it is lost at once, because the device is down."""
        number, self._count = self._count, self._count + 1
        probe = _Probe(link, packets, time.time_ns())
        payload = self._payload if packets > 1 else b""
        try:
            for index in range(packets):
                header = _HEADER.pack(self._token, link, number, index, packets)
                self._senders[link].sendto(header + payload, (self._links[link][3], _PORT))
        except OSError:
            return _outcome(probe)
        probe.sending_ns = time.time_ns() - probe.sent_ns
        self._under_way[number] = probe
        return None

    def receive(self, receiver: socket.socket) -> Iterator[dict[str, Any]]:
        """Yield the outcomes of probes that are complete by what has arrived at a socket."""
        while True:
            try:
                data, control, _, _ = receiver.recvmsg(_LARGEST_PACKET_BYTES, socket.CMSG_SPACE(_TIMESTAMP.size))
            except BlockingIOError:
                return
            if len(data) < _HEADER.size:
                continue
            token, _, number, index, packets = _HEADER.unpack_from(data)
            probe = self._under_way.get(number) if token == self._token else None
            if probe is None or index >= packets or not control:
                continue
            seconds, nanoseconds = _TIMESTAMP.unpack(control[0][2])
            arrived_ns = seconds * 1_000_000_000 + nanoseconds
            probe.arrivals_ns[index] = self._arrived_ns[probe.link] = arrived_ns
            if len(probe.arrivals_ns) == probe.packets:
                yield _outcome(self._under_way.pop(number))

    def carried(self) -> dict[str, Any]:
        """Return the bytes that each link has carried, as the devices count them that send over it."""
        of_node = [sent_bytes(_whole(counter)) for counter in self._counters]
        return {"carried": [of_node[src].get(device) for src, _, device, _ in self._links]}

    def overdue(self) -> Iterator[dict[str, Any]]:
        """Yield the outcomes of probes that are lost by now.

        As long as earlier ones still arrive, a probe is waited for longer: it stands in a queue that others filled. So
        it is where this process itself waits for a core, as those may that carry the probe.
        """
        now_ns = time.time_ns()
        limit_ns = self._limit_ns + _LATENESS_FACTOR * self.lateness.longest_ns
        for number, probe in list(self._under_way.items()):
            silent_ns = now_ns - max(probe.sent_ns, self._arrived_ns[probe.link])
            if silent_ns > limit_ns or now_ns - probe.sent_ns > _MOST_QUEUED * limit_ns:
                yield _outcome(self._under_way.pop(number))


def _outcome(probe: _Probe) -> dict[str, Any]:
    times = sorted(probe.arrivals_ns.values())
    has_arrived = len(times) == probe.packets
    return {
        "link": probe.link,
        "packets": probe.packets,
        "sent_ns": probe.sent_ns,
        "sending_ns": probe.sending_ns,
        "arrived": has_arrived,
        "first_ns": times[0] if has_arrived else None,
        "last_ns": times[-1] if has_arrived else None,
    }


def _sockets(
    namespaces: Sequence[Sequence[str]], links: Sequence[Sequence[Any]]
) -> tuple[list[socket.socket], list[socket.socket], list[int]]:
    """Return a socket that receives on each node, one that sends on each link, and a file with each node's counters.

    All of them stay in the networks in which they were opened.
    """
    receivers: list[socket.socket] = []
    counters: list[int] = []
    senders: dict[int, socket.socket] = {}
    if namespaces and len(namespaces[0]) > 1:
        _enter(namespaces[0][0], _CLONE_NEWUSER)
    for node, files in enumerate(namespaces):
        _enter(files[-1], _CLONE_NEWNET)
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        receiver.setblocking(False)
        receiver.bind(("0.0.0.0", _PORT))  # noqa: S104 - in the network of one emulated node
        receivers.append(receiver)
        counters.append(os.open("/proc/thread-self/net/dev", os.O_RDONLY))
        for number, (src, _, device, _) in enumerate(links):
            if src == node:
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
                senders[number] = sender
    return receivers, [senders[number] for number in range(len(links))], counters


def sent_bytes(text: str) -> dict[str, int]:
    """Return the bytes that each device has sent, by the text of /proc/net/dev."""
    rows = (line.split(":", 1) for line in text.split("\n") if ":" in line)
    return {name.strip(): int(numbers.split()[_SENT_COLUMN]) for name, numbers in rows}


def _whole(file: int) -> str:
    """Return all of a file of /proc, as it is now."""
    content = b""
    while part := os.pread(file, _LARGEST_PACKET_BYTES, len(content)):
        content += part
    return content.decode()


def _enter(path: str, kind: int) -> None:
    with open(path, "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), kind) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"the network of a node cannot be entered: {os.strerror(error)}")


def main() -> None:
    """Probe until the input ends."""
    commands = sys.stdin.buffer
    prober = LinkProber(json.loads(commands.readline()))
    _say({"ready": True})
    os.set_blocking(commands.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(commands, selectors.EVENT_READ)
        for receiver in prober.receivers:
            selector.register(receiver, selectors.EVENT_READ, receiver)
        text = b""
        while True:
            for key, _ in selector.select(timeout=_TURN_S):
                if key.data is None:
                    chunk = commands.read()
                    if chunk == b"":
                        return
                    text = _obey(prober, text + (chunk or b""))
                else:
                    _say(*prober.receive(key.data))
            prober.lateness.turn(time.monotonic_ns())
            _say(*prober.overdue())


def _obey(prober: LinkProber, text: bytes) -> bytes:
    """Send what the whole lines of `text` ask for; return the begin of a line after them."""
    *lines, begun = text.split(b"\n")
    for line in lines:
        command = json.loads(line)
        if command == "carried":
            _say(prober.carried())
            continue
        link, packets = command
        lost = prober.send(link, packets)
        if lost is not None:
            _say(lost)
    return begun


def _say(*documents: dict[str, Any]) -> None:
    output: BinaryIO = sys.stdout.buffer
    for document in documents:
        output.write(json.dumps(document).encode() + b"\n")
    if documents:
        output.flush()


if __name__ == "__main__":
    main()
