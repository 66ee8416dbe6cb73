"""Durations as people read them."""

from __future__ import annotations


def format_ms(seconds: float) -> str:
    """Return milliseconds with three digits, and whole ones from a thousand on: `0.0123 ms`, `41.2 ms`, `7170 ms`."""
    return f"{_digits(seconds * 1e3)} ms"


def format_us(seconds: float) -> str:
    """Return microseconds with four digits, and whole ones from ten thousand on: `12.34 us`, `71700 us`."""
    value = seconds * 1e6
    return f"{value:.0f} us" if value >= 9999.5 else f"{value:.4g} us"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"
