"""The sockets behind the ports of a rank: one to each rank that they lead to, one from each whose ports lead here."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence

_HELLO_BYTES = 4


class PortListener:
    """Waits for the ranks whose ports lead to this one, on a socket with a name of this machine."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._socket.listen(512)

    def close(self) -> None:
        self._socket.close()

    def accept(self, sources: Collection[int], token: bytes, ranks: int, deadline: float) -> list[int]:
        """Return the descriptor of the stream from each rank, -1 where there is none.

        Whoever does not begin with `token` is not of this job and turned away. TimeoutError at `deadline`.
        """
        streams, missing = [-1] * ranks, set(sources)
        while missing:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            stream, _ = self._socket.accept()
            source = _greeted(stream, token, deadline)
            if source not in missing:
                stream.close()
                continue
            missing.remove(source)
            stream.setblocking(True)
            streams[source] = stream.detach()
        return streams


def _greeted(stream: socket.socket, token: bytes, deadline: float) -> int | None:
    """Return the rank that begins so, None for a stranger."""
    stream.settimeout(max(0.001, deadline - time.monotonic()))
    length = len(token) + _HELLO_BYTES
    hello = stream.recv(length, socket.MSG_WAITALL)
    return int.from_bytes(hello[-_HELLO_BYTES:], "little") if hello[: len(token)] == token else None


def connect_ports(names: Sequence[str], targets: Collection[int], token: bytes, rank: int) -> list[int]:
    """Return the descriptor of the stream to each rank, -1 where no port leads there. All listen already."""
    streams = [-1] * len(names)
    for target in sorted(targets):
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(f"\0{names[target]}")
        stream.sendall(token + rank.to_bytes(_HELLO_BYTES, "little"))
        streams[target] = stream.detach()
    return streams
