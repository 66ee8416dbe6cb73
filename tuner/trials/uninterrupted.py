"""Work that ctrl-C and SIGTERM must not cut in two: a line that is written and then forgotten is written again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that end a launch wait until the block has ended. In other threads than the first none arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    for late in came[:1]:
        signal.raise_signal(late)
