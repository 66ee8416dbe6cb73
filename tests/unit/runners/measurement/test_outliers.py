"""Which times are named as outliers."""

from chorale.runners.measurement.precision import find_outliers


def test_a_time_far_outside_is_named_by_its_repetition() -> None:
    assert find_outliers([1.0, 1.1, 9.0, 1.2, 1.3, 1.1, 0.001]) == (2, 6)


def test_equal_times_have_none_and_any_other_is_one() -> None:
    assert find_outliers([1.0] * 8) == ()
    assert find_outliers([1.0] * 8 + [1.001]) == (8,)
