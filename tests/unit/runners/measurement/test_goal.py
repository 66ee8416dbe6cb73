"""How people write a precision and a budget."""

import pytest

from chorale.runners.measurement.precision import MAX_REPEATS, MAX_SECONDS, parse_budget, parse_precision
from chorale.synth.errors import InvalidInput


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), (" 0.5 % ", 0.005), ("1", 1.0)])
def test_a_precision_is_a_share_or_a_percentage(text: str, share: float) -> None:
    assert parse_precision(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "2", "0", "-1%", "nan", "two", "101%", "1e-2"])
def test_other_precisions_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="a precision must be between"):
        parse_precision(text)


@pytest.mark.parametrize(
    ("text", "budget"),
    [("200", (200, MAX_SECONDS)), ("90s", (MAX_REPEATS, 90.0)), ("200, 0.5s", (200, 0.5)), ("9s,7", (7, 9.0))],
)
def test_a_budget_is_repetitions_seconds_or_both(text: str, budget: tuple[int, float]) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0s", "1.5", "-3", "3m", "1,,2", "inf"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="a budget must be"):
        parse_budget(text)
