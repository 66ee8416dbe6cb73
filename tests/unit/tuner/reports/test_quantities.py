"""Numbers as people read them."""

import pytest

from chorale.tuner.reports.tables import seconds_text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.03, "4.03 s"), (2.88e-12, "2.88 ps"), (-0.083, "-83 ms"), (-1.12, "-1.12 s")]
)
def test_durations_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
