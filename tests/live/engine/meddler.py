"""Somebody between two ranks, who passes bytes on and meddles with those of one direction."""

import random
import select
import socket
import threading
import time
from collections.abc import Callable

KINDS = ("flip", "drop", "insert", "repeat", "cut", "stall", "garbage", "nothing")


class Meddler:
    """Listens like rank 0, passes on to the real one, and meddles once `after` bytes went that way.

    kind: flip a bit, drop a byte, insert some, repeat some, cut the connection, stall for good, only garbage from then
    on, or nothing
    """

    def __init__(self, rank_0: str, kind: str, after: int, seed: int) -> None:
        self._rank_0, self._kind, self._after = rank_0, kind, after
        self._random = random.Random(seed)
        self._passed, self._has_meddled, self._is_over = 0, False, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._is_over = True
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        self._listener.settimeout(0.05)
        while not self._is_over:
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            host, _, port = self._rank_0.removeprefix("tcp:").rpartition(":")
            try:
                with caller, socket.create_connection((host, int(port))) as target:
                    self._pass_on(caller, target)
            except OSError:
                continue  # one of the two hung up, which is what is tested

    def _pass_on(self, caller: socket.socket, target: socket.socket) -> None:
        while not self._is_over:
            for source in select.select([caller, target], [], [], 0.05)[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source is caller:
                    data = self._meddle(data)
                    target.sendall(data)
                    if self._kind == "cut" and self._has_meddled:
                        return
                else:
                    caller.sendall(data)
            if self._kind == "stall" and self._has_meddled:
                self._until_over()

    def _until_over(self) -> None:
        while not self._is_over:
            time.sleep(0.01)

    def _meddle(self, data: bytes) -> bytes:
        at = self._after - self._passed
        self._passed += len(data)
        if self._has_meddled:
            return self._random.randbytes(len(data)) if self._kind == "garbage" else data
        if not 0 <= at < len(data) or self._kind == "nothing":
            return data
        self._has_meddled = True
        return data[:at] + self._changes()[self._kind](data[at:])

    def _changes(self) -> dict[str, Callable[[bytes], bytes]]:
        return {
            "flip": lambda data: bytes([data[0] ^ 1 << self._random.randrange(8)]) + data[1:],
            "drop": lambda data: data[1:],
            "insert": lambda data: self._random.randbytes(self._random.randrange(1, 9)) + data,
            "repeat": lambda data: data[: self._random.randrange(1, 65)] + data,
            "cut": lambda data: b"",
            "stall": lambda data: b"",
            "garbage": lambda data: self._random.randbytes(len(data)),
        }
