"""Races: who is measured on, who is not, and that nothing measured is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Race, RunFailure, RunRequest
from chorale.runners.measurement.driver import is_eliminated, measure_in_rungs
from tests.fakes import FakeRunner, fail_with
from tests.unit.runners.measurement.test_driver import REQUEST

SIZES = len(REQUEST.sizes_bytes)
[NAME, REFERENCE] = list(REQUEST.programs)[:2]


def race(ratio: float) -> Race:
    return Race(NAME, (REFERENCE,), (ratio,) * SIZES, first_repeats=2)


@pytest.mark.parametrize(("ratio", "requests", "repeats"), [(1e-6, 1, 2), (1e6, 2, 5)])
def test_only_who_may_still_win_is_measured_on(ratio: float, requests: int, repeats: int) -> None:
    runner = FakeRunner()
    outcome = measure_in_rungs(runner, replace(REQUEST, repeats=5, race=race(ratio)))
    assert isinstance(outcome, Measurement)
    assert len(runner.requests) == requests
    assert {len(size.times_s) for sizes in outcome.results.values() for size in sizes} == {repeats}
    assert len({request.seed for request in runner.requests}) == requests


def test_without_a_race_or_with_few_repetitions_there_is_one_request() -> None:
    for request in (replace(REQUEST, repeats=5), replace(REQUEST, repeats=2, race=race(1e-6))):
        runner = FakeRunner()
        assert isinstance(measure_in_rungs(runner, request), Measurement)
        assert len(runner.requests) == 1


def test_being_good_at_one_size_is_enough() -> None:
    measured = FakeRunner().submit(REQUEST)
    assert isinstance(measured, Measurement)
    assert is_eliminated(measured, race(1e-6))
    assert not is_eliminated(measured, replace(race(1e-6), ratios=(1e-6,) * (SIZES - 1) + (1e6,)))


def test_one_repetition_that_keeps_up_is_enough() -> None:
    """Twice as slow as the reference but once: the load that hit one of them alone does not decide."""
    measured = FakeRunner().submit(replace(REQUEST, repeats=3))
    assert isinstance(measured, Measurement)
    slow = tuple(
        replace(size, times_s=tuple(2 * time for time in size.times_s)) for size in measured.results[REFERENCE]
    )
    lucky = tuple(replace(size, times_s=(size.times_s[0] / 2, *size.times_s[1:])) for size in slow)
    own = race(1.5)
    assert is_eliminated(replace(measured, results={**measured.results, NAME: slow}), own)
    assert not is_eliminated(replace(measured, results={**measured.results, NAME: lucky}), own)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_part_that_fails_is_the_answer(fails_at: int) -> None:
    def fault(request: RunRequest) -> RunFailure | None:
        return fail_with(FailureKind.CRASH)(request) if len(runner.requests) == fails_at else None

    runner = FakeRunner(fault)
    outcome = measure_in_rungs(runner, replace(REQUEST, repeats=5, race=race(1e6)))
    assert isinstance(outcome, RunFailure)
