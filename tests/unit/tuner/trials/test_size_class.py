"""Size classes cover every size once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chorale.tuner.trials.tuning_table import SizeClass


@given(st.integers(1, 2**40))
def test_every_size_lies_in_its_class(size_bytes: int) -> None:
    size_class = SizeClass.of(size_bytes)
    assert size_class.min_bytes <= size_bytes <= size_class.max_bytes
    assert size_class.max_bytes + 1 == SizeClass(size_class.exponent + 1).min_bytes


def test_a_class_is_shown_by_its_smallest_size() -> None:
    assert str(SizeClass.of(2**20)) == "1MiB"
    assert str(SizeClass.of(2**21 - 1)) == "1MiB"
    assert SizeClass.of(2**20).distance(SizeClass.of(2**14)) == 6
