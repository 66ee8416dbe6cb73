"""Durations as people read them: never an exponent."""

import pytest

from chorale.runners.api.units import format_ms, format_us


@pytest.mark.parametrize(
    ("seconds", "milliseconds", "microseconds"),
    [
        (1.234e-5, "0.0123 ms", "12.34 us"),
        (0.0412, "41.2 ms", "41200 us"),
        (0.99949, "999 ms", "999490 us"),
        (0.9996, "1000 ms", "999600 us"),
        (7.17, "7170 ms", "7170000 us"),
        (0.0099991, "10 ms", "9999 us"),
    ],
)
def test_no_exponents(seconds, milliseconds, microseconds):
    assert (format_ms(seconds), format_us(seconds)) == (milliseconds, microseconds)
