"""Quantiles of Student's t against SciPy's, and what they are at the edges."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from chorale.tuner.statistics.student import student_quantile


@given(st.floats(1e-8, 0.499), st.floats(0.5, 200))
def test_quantiles_are_those_of_scipy(error: float, freedom: float) -> None:
    assert student_quantile(error, freedom) == pytest.approx(-stdtrit(freedom, error), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 30, 1000])
@pytest.mark.parametrize("error", [1e-12, 1e-4, 0.025, 0.4])
def test_quantiles_far_out_and_of_much_freedom(error: float, freedom: float) -> None:
    assert student_quantile(error, freedom) == pytest.approx(-stdtrit(freedom, error), rel=1e-9)


def test_the_edges() -> None:
    assert student_quantile(0.05, 0.0) == inf
    assert student_quantile(0.5, 3.0) == 0.0
