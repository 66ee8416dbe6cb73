"""Something to compute beside a run, as training has: products of matrices in a thread of the rank's own process."""

from __future__ import annotations

import socket
import threading

import numpy as np

MATRIX_SIDE = 128


class ComputeLoad:
    """Computes on request and makes itself readable when it is done, so that a loop over sockets can wait for it.

    Products of whole numbers: no linear algebra library with threads of its own takes part, and the interpreter is
    free while they are computed.
    """

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._matrix = np.arange(MATRIX_SIDE * MATRIX_SIDE, dtype=np.int64).reshape(MATRIX_SIDE, MATRIX_SIDE) % 7
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._here.fileno()

    @property
    def is_busy(self) -> bool:
        """Whether products that were asked for are not computed yet, as far as `settle` knows."""
        return self._thread is not None

    def start(self, matrix_products: int) -> None:
        """Begin to compute; nothing for none. One load at a time."""
        if matrix_products > 0:
            self._thread = threading.Thread(target=self._compute, args=(matrix_products,), daemon=True)
            self._thread.start()

    def settle(self) -> None:
        """Take note that the thread is done; to be called when this is readable."""
        self._here.recv(1)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Close what makes it readable; nothing may be under way."""
        self._here.close()
        self._there.close()

    def _compute(self, products: int) -> None:
        result = np.empty_like(self._matrix)
        for _ in range(products):
            np.matmul(self._matrix, self._matrix, out=result)
        self._there.send(b"\0")
