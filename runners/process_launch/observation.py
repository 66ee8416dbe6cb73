"""Observes the memory that processes use."""

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.05
"""Seconds between two measurements of a process, which may exceed a limit by what it allocates in between."""
_PAGE_BYTES = resource.getpagesize()


def resident_bytes(pid: int | str = "self") -> int:
    """Return the private memory that a process uses, in bytes; 0 if it has ended.

    Only pages that were written count. A limit on address space (RLIMIT_DATA) would also count reserved memory that is
    never used, such as thread stacks and malloc arenas. How much is reserved depends on the machine's load, so small
    computations would fail at random.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


@contextmanager
def memory_guard(more_bytes: int, exceeded: Callable[[], None]) -> Iterator[None]:
    """Call `exceeded` in another thread if this process's memory grows by `more_bytes` during the block."""
    limit_bytes, over = resident_bytes() + more_bytes, threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            if resident_bytes() > limit_bytes:
                exceeded()
                return

    threading.Thread(target=look, name="memory-guard", daemon=True).start()
    try:
        yield
    finally:
        over.set()
