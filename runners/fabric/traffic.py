"""Keeps connections busy until it is killed: the probe starts it on every rank. Standard library only.

Arguments: own address, number of connections to expect, addresses to send to. It prints `ready` when all are connected.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time

_BLOCK = bytes(2**16)
_PATIENCE_S = 20.0
_PORT = 7000


def main(address: str, expected: str, *targets: str) -> None:
    """Connect to all targets, be connected to, then send and receive without end."""
    listening = socket.create_server((address, _PORT), backlog=int(expected))
    listening.settimeout(_PATIENCE_S)
    sending = [_connection(target) for target in targets]
    receiving = [listening.accept()[0] for _ in range(int(expected))]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _stream(sending, receiving)


def _connection(target: str) -> socket.socket:
    """Return a connection to a target that may not listen yet."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((target, _PORT), timeout=_PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _stream(sending: list[socket.socket], receiving: list[socket.socket]) -> None:
    into = bytearray(2**18)
    with selectors.DefaultSelector() as ready:
        for stream in sending:
            stream.setblocking(False)
            ready.register(stream, selectors.EVENT_WRITE, stream)
        for stream in receiving:
            stream.setblocking(False)
            ready.register(stream, selectors.EVENT_READ, stream)
        while True:
            for key, events in ready.select():
                if events & selectors.EVENT_WRITE:
                    key.data.send(_BLOCK)
                else:
                    key.data.recv_into(into)


if __name__ == "__main__":
    main(*sys.argv[1:])
