"""Times exchanges between an emulated network's ranks over plain TCP.

`python -m chorale.runners.fabric.exchanges` is one process that acts for all ranks: it opens sockets in all nodes'
networks. The process reads JSON: `ranks` (namespaces and address of each), `streams` (source and target of each) and
`exchanges` (for each: seconds of silence before it, and bytes by stream number). It runs the exchanges and prints JSON:
start and end of each stream in each exchange, in seconds on the monotonic clock (from before the first byte is sent
until the last is received).
"""

import json
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from chorale.runners.fabric.namespaces import enter_namespaces

_PORT = 7000
_CONNECT_LIMIT_S = 20.0
_BLOCK = bytes(1 << 16)
_FIRST_BYTES = 1 << 15  # small, so that all streams start within a short time

Ends = tuple[socket.socket, socket.socket]
"""(Sending end, receiving end) of a stream."""


def connected(ranks: Sequence[Mapping[str, Any]], streams: Sequence[tuple[int, int]]) -> list[Ends]:
    """Connect all streams and return their ends. No two streams may have the same source and target."""
    listeners = []
    for rank in ranks:
        enter_namespaces(rank["namespaces"])
        listeners.append(socket.create_server((rank["address"], _PORT), backlog=len(streams)))
        listeners[-1].settimeout(_CONNECT_LIMIT_S)
    ends: list[Ends] = []
    for source, target in streams:
        enter_namespaces(ranks[source]["namespaces"])
        sending = socket.create_connection((ranks[target]["address"], _PORT), _CONNECT_LIMIT_S)
        receiving, _ = listeners[target].accept()
        for end in (sending, receiving):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        ends.append((sending, receiving))
    return ends


def timed(ends: Sequence[Ends], sizes_bytes: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Send the given number of bytes on each stream; return (start, end) of each stream in seconds.

    sizes_bytes: stream number (as a string) -> bytes to send
    """
    to_send, to_receive = dict(sizes_bytes), dict(sizes_bytes)
    starts_s: dict[str, float] = {}
    spans_s: dict[str, tuple[float, float]] = {}
    buffer = bytearray(_BLOCK)
    with selectors.DefaultSelector() as ready:
        for number, size_bytes in sizes_bytes.items():
            sending, receiving = ends[int(number)]
            ready.register(receiving, selectors.EVENT_READ, number)
            starts_s[number] = time.monotonic()
            to_send[number] -= sending.send(_BLOCK[: min(size_bytes, _FIRST_BYTES)])
            if to_send[number]:
                ready.register(sending, selectors.EVENT_WRITE, number)
        while len(spans_s) < len(sizes_bytes):
            for key, _ in ready.select():
                number, end = key.data, ends[int(key.data)][key.events == selectors.EVENT_READ]
                if key.events == selectors.EVENT_WRITE:
                    to_send[number] -= end.send(memoryview(_BLOCK)[: to_send[number]])
                    if not to_send[number]:
                        ready.unregister(end)
                    continue
                count = end.recv_into(buffer, min(to_receive[number], len(buffer)))
                if count == 0:
                    raise ConnectionError("a connection broke")
                to_receive[number] -= count
                if not to_receive[number]:
                    spans_s[number] = starts_s[number], time.monotonic()
                    ready.unregister(end)
    return spans_s


def main() -> None:
    task: dict[str, Any] = json.load(sys.stdin)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with suppress(PermissionError):  # measure the links, not other load on the machine
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    ends = connected(task["ranks"], task["streams"])
    spans_s = []
    for idle_s, sizes_bytes in task["exchanges"]:
        time.sleep(idle_s)
        spans_s.append(timed(ends, sizes_bytes))
    sys.stdout.write(json.dumps(spans_s))


if __name__ == "__main__":
    main()
