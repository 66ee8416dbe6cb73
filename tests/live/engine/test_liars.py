"""Connections on which bytes are changed, lost, added or held back: a right result or an error in time."""

import pytest

from tests.live.engine.liars import random_trials


def check(count: int, seed: int) -> None:
    found = random_trials(count, seed)
    assert not [ends for ends in found if {"WRONG", "LATE", ""} & set(ends)], found
    assert found["nothing", "OK", "OK"] == count // 8
    assert not any(kind in ("cut", "stall") and "OK" in (first, second) for kind, first, second in found), found
    assert any(first == "GARBAGE" for _, first, _ in found)


def test_no_meddling_leads_to_a_wrong_result() -> None:
    check(48, 5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_meddling_leads_to_a_wrong_result_in_many_trials() -> None:
    check(1600, 6)
