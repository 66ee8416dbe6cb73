"""Waiting for what happens elsewhere, with a bound; ports where something may be awaited."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack


def until(holds: Callable[[], object], limit_s: float = 30.0, otherwise: Callable[[], object] | None = None) -> None:
    """Look every few hundredths of a second whether it holds; fail at the limit, with what `otherwise` says."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, otherwise() if otherwise else f"nothing within {limit_s:g} s"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    return free_ports(1)[0]
