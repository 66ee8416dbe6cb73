"""Races: who is measured on, who is not, and that nothing measured is lost."""

from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Race, RunFailure, RunRequest
from chorale.runners.workers.campaign_worker import measure_in_rungs, sizes_in_race
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


def test_only_the_sizes_at_which_a_program_keeps_up_go_on() -> None:
    own = replace(race(1e-6), ratios=(1e-6,) * (SIZES - 1) + (1e6,))
    runner = FakeRunner()
    outcome = measure_in_rungs(runner, replace(REQUEST, repeats=5, race=own))
    assert isinstance(outcome, Measurement)
    assert [request.sizes_bytes for request in runner.requests] == [REQUEST.sizes_bytes, REQUEST.sizes_bytes[-1:]]
    for sizes in outcome.results.values():
        assert [len(size.times_s) for size in sizes] == [2] * (SIZES - 1) + [5]
        assert [size.requested_bytes for size in sizes] == list(REQUEST.sizes_bytes)


def test_one_repetition_that_keeps_up_is_enough() -> None:
    """Twice as slow as the reference but once: the load that hit one of them alone does not decide."""
    measured = FakeRunner().submit(replace(REQUEST, repeats=3))
    assert isinstance(measured, Measurement)
    slow = tuple(
        replace(size, times_s=tuple(2 * time for time in size.times_s)) for size in measured.results[REFERENCE]
    )
    lucky = tuple(replace(size, times_s=(size.times_s[0] / 2, *size.times_s[1:])) for size in slow)
    own = race(1.5)
    everywhere = list(range(SIZES))
    assert sizes_in_race(replace(measured, results={**measured.results, NAME: slow}), own) == []
    assert sizes_in_race(replace(measured, results={**measured.results, NAME: lucky}), own) == everywhere


@pytest.mark.parametrize(("factor", "keeps_up"), [(0.5, True), (2.0, False)])
def test_without_a_reference_beside_it_counts_what_one_took_before(factor: float, keeps_up: bool) -> None:
    measured = FakeRunner().submit(replace(REQUEST, programs={NAME: REQUEST.programs[NAME]}))
    assert isinstance(measured, Measurement)
    before = tuple(min(size.times_s) / factor for size in measured.results[NAME])
    assert sizes_in_race(measured, replace(race(1.0), reference_s=before)) == (list(range(SIZES)) if keeps_up else [])


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_part_that_fails_is_the_answer(fails_at: int) -> None:
    def fault(request: RunRequest) -> RunFailure | None:
        return fail_with(FailureKind.CRASH)(request) if len(runner.requests) == fails_at else None

    runner = FakeRunner(fault)
    outcome = measure_in_rungs(runner, replace(REQUEST, repeats=5, race=race(1e6)))
    assert isinstance(outcome, RunFailure)
