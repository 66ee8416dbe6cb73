"""Control messages between the runner, its launcher and its nodes: length-prefixed JSON, nothing executable."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 2**30


class FramedSocket:
    """One end of a control socket. `deadline` is a time of `time.monotonic()`; passing it raises TimeoutError."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        return self._stream.fileno()

    def send(self, document: Message, deadline: float | None = None) -> None:
        """Write `document`. Raises OSError when the other end is gone."""
        body = json.dumps(document, separators=(",", ":")).encode()
        self._limit(deadline)
        self._stream.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, deadline: float | None = None) -> Message | None:
        """Return the next document, None when the other end is gone."""
        head = self._read(_LENGTH.size, deadline)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > _MAX_BYTES:
            raise ConnectionError(f"control message of {length} bytes")
        body = self._read(length, deadline)
        return None if body is None else dict(json.loads(body))

    def close(self) -> None:
        self._stream.close()

    def _read(self, length: int, deadline: float | None) -> bytes | None:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            self._limit(deadline)
            try:
                count = self._stream.recv_into(view)
            except ConnectionResetError:
                return None
            if count == 0:
                return None
            view = view[count:]
        return bytes(content)

    def _limit(self, deadline: float | None) -> None:
        if deadline is None:
            self._stream.settimeout(None)
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._stream.settimeout(remaining)
