"""Damaged files for every parser: each is taken or refused, in bounded time and memory."""

import pytest

from tests.fuzz.__main__ import run_case
from tests.fuzz.parsers import PARSERS, case


@pytest.mark.parametrize("name", PARSERS)
def test_samples_are_taken_and_some_damage_is_taken_or_refused(name: str) -> None:
    samples = PARSERS[name].samples()
    assert [run_case(name, sample) for sample in samples] == ["taken"] * len(samples)
    cases = [case(name, 7, number) for number in range(25)]
    assert cases == [case(name, 7, number) for number in range(25)]
    outcomes = [run_case(name, content) for content in cases]
    assert set(outcomes) <= {"taken", "refused"}, [(n, what) for n, what in enumerate(outcomes) if len(what) > 7]
    assert "refused" in [*outcomes, run_case(name, b"\x00")] or name in ("journal", "launch-log")
