"""What a rank computes beside a collective."""

from __future__ import annotations

import threading
import time

import numpy as np

MATRIX_SIDE = 128


class ComputeLoad:
    """Computes on request, in a thread of its own.

    Products of whole numbers: no linear algebra library with threads of its own takes part, and the interpreter is
    free while they are computed.
    """

    def __init__(self) -> None:
        self._matrix = np.arange(MATRIX_SIDE * MATRIX_SIDE, dtype=np.int64).reshape(MATRIX_SIDE, MATRIX_SIDE) % 7
        self._thread: threading.Thread | None = None
        self._end_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether products that were asked for may not be computed yet."""
        return self._thread is not None

    def start(self, matrix_products: int) -> None:
        """Begin to compute; nothing for none. One load at a time."""
        if matrix_products > 0:
            self._thread = threading.Thread(target=self._compute, args=(matrix_products,), daemon=True)
            self._thread.start()

    def wait(self) -> float:
        """Return when the last load was done, as time of `time.monotonic`; wait until it is. 0 before the first one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._end_s

    def _compute(self, products: int) -> None:
        result = np.empty_like(self._matrix)
        for _ in range(products):
            np.matmul(self._matrix, self._matrix, out=result)
        self._end_s = time.monotonic()
