"""Slopes and probabilities of orders against SciPy's, and against counting all orders of a few values."""

from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import kendalltau, theilslopes

from chorale.runners.measurement.trend import MAX_EXACT, median_slope, probability_of_order

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: round(number, 3))


@given(st.lists(NUMBERS, min_size=3, max_size=50) | st.lists(st.integers(0, 4), min_size=3, max_size=50))
def test_the_numbers_are_those_of_scipy(values):
    assume(min(values) < max(values))
    places = range(len(values))
    assert median_slope(values) == pytest.approx(theilslopes(values, places).slope, rel=1e-12)
    assert probability_of_order(values) == pytest.approx(kendalltau(places, values).pvalue, rel=1e-9)


@pytest.mark.parametrize("count", [MAX_EXACT, MAX_EXACT + 1, 200])
@pytest.mark.parametrize("out_of_order", [0, 1, 2])
def test_rising_values_are_as_scipy_says_on_both_sides_of_the_limit(count, out_of_order):
    values = list(range(count))
    values.insert(out_of_order, values.pop(0))
    assert probability_of_order(values) == pytest.approx(kendalltau(range(count), values).pvalue, rel=1e-9, abs=1e-300)


@given(st.permutations(range(6)))
def test_a_probability_is_the_share_of_orders_with_a_tau_as_large(values):
    def tau(order):
        return sum((b > a) - (b < a) for i, a in enumerate(order) for b in order[i + 1 :])

    orders = list(permutations(range(6)))
    as_large = sum(abs(tau(order)) >= abs(tau(values)) for order in orders)
    assert probability_of_order(values) == pytest.approx(as_large / len(orders))
