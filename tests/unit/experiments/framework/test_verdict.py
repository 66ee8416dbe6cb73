"""Printed numbers beside ours."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.experiments.framework.experiment import Interval, digits_of, judge


def test_a_printed_number_stands_for_what_rounds_to_it():
    assert digits_of("1.020") == Interval(Fraction(2039, 2000), Fraction(2041, 2000))
    assert digits_of("8.12e-4") == Interval(Fraction("8.115e-4"), Fraction("8.125e-4"))
    assert digits_of("5") == Interval(Fraction(9, 2), Fraction(11, 2))


@given(st.fractions(0, 10), st.integers(0, 5))
def test_every_number_matches_its_own_rounding(value, digits):
    rounded = round(value, digits)
    text = f"{float(rounded):.{digits}f}"
    assert judge(text, Interval.exactly(value)) == "match"
    assert judge(text, Interval.exactly(value), smaller_is_better=False) == "match"


@pytest.mark.parametrize(
    ("ours", "limit", "smaller_is_better", "verdict"),
    [
        ((3, 3), None, True, "match"),
        ((2, 2), None, True, "better"),
        ((4, 4), None, True, "worse"),
        ((4, 4), 3, True, "worse"),
        ((4, 4), 4, True, "impossible"),
        ((2, 2), None, False, "worse"),
        ((2, 2), 2, False, "impossible"),
        ((4, 4), 4, False, "better"),
        ((2, 4), 4, False, "match"),
    ],
)
def test_verdicts(ours, limit, smaller_is_better, verdict):
    assert judge("3", Interval(Fraction(ours[0]), Fraction(ours[1])), limit, smaller_is_better) == verdict
