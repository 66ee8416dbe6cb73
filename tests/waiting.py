"""Waiting for what happens elsewhere, with a bound."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], limit_s: float = 30.0) -> None:
    """Look every few hundredths of a second whether it holds; fail at the limit."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, f"nothing within {limit_s:g} s"
        time.sleep(0.02)
