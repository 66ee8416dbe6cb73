"""The adaptive driver against a runner whose times are drawn, on a clock that only it turns."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest, SizeMeasurement
from chorale.runners.measurement.driver import (
    AdaptiveMeasurement,
    StopReason,
    measure_once,
    measure_until,
    model_of_run,
)
from chorale.runners.measurement.precision import Goal, analyse
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allreduce

SMALL, LARGE = 4096, 65536
PROGRAMS = {"own": ring_allreduce(range(4)), "reference": ring_allreduce((3, 2, 1, 0))}
REQUEST = RunRequest(parse_topology("ring:4"), PROGRAMS, (SMALL, LARGE), repeats=5)

Noise = Callable[[np.random.Generator, int], float]


@dataclass
class DrawnRunner:
    """Programs take 2 s and 1 s times a noise that depends on the size; every request starts up for a second."""

    noise: Noise
    fails_at: int = 99
    now_s: float = 0.0
    requests: list[RunRequest] = field(default_factory=list)
    name: str = "drawn"

    def submit(self, request: RunRequest) -> Outcome:
        self.requests.append(request)
        if len(self.requests) == self.fails_at:
            return RunFailure(FailureKind.TIMEOUT, "hung")
        random = np.random.default_rng(request.seed)
        results: dict[str, list[SizeMeasurement]] = {name: [] for name in request.programs}
        self.now_s += 1
        for size in request.sizes_bytes:
            for name, pace in zip(results, (2.0, 1.0), strict=False):
                times = tuple(pace * self.noise(random, size) for _ in range(request.repeats))
                results[name].append(SizeMeasurement(size, size, times, correct=True))
                self.now_s += sum(times)
        return Measurement(self.name, {name: tuple(sizes) for name, sizes in results.items()}, {"load_average": 1.0})

    def library(self, collective: str) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass

    def clock_s(self) -> float:
        return self.now_s


def _driven(runner: DrawnRunner, goal: Goal, request: RunRequest = REQUEST) -> AdaptiveMeasurement:
    found = measure_until(runner, request, goal, runner.clock_s)
    assert isinstance(found, AdaptiveMeasurement)
    return found


def _calm(random: np.random.Generator, size: int) -> float:
    return float(random.normal(1, 0.001))


def _noisy_when_small(random: np.random.Generator, size: int) -> float:
    return float(random.lognormal(sigma=0.1 if size == SMALL else 0.001))


def test_one_request_is_enough_where_times_are_alike() -> None:
    runner = DrawnRunner(_calm)
    driven = _driven(runner, Goal(0.02, "reference"))
    (request,) = runner.requests
    assert request.repeats == 6
    assert driven.stop_reasons == (StopReason.PRECISE, StopReason.PRECISE)
    assert driven.measurement.environment == {"load_average": 1.0, "requests": 1}


def test_only_the_size_that_needs_it_is_repeated_until_its_interval_is_narrow() -> None:
    runner = DrawnRunner(_noisy_when_small)
    driven = _driven(runner, Goal(0.04, "reference", max_repeats=1000, max_seconds=1e6))
    first, *others = runner.requests
    assert first.sizes_bytes == (SMALL, LARGE)
    assert others
    assert all(request.sizes_bytes == (SMALL,) for request in others)
    assert len({request.seed for request in runner.requests}) == len(runner.requests)
    small, large = driven.measurement.results["own"]
    assert len(small.times_s) == sum(request.repeats for request in runner.requests)
    assert len(large.times_s) == first.repeats
    found, _ = analyse(driven.measurement, "own", "reference")
    assert found.ratio is not None
    assert found.ratio.half_width <= 0.04
    assert found.ratio.low < 2 < found.ratio.high
    assert driven.stop_reasons == (StopReason.PRECISE, StopReason.PRECISE)


def test_intervals_that_were_waited_for_enclose_the_true_ratio_as_often_as_they_say() -> None:
    def spiky(random: np.random.Generator, size: int) -> float:
        return float(random.lognormal(sigma=0.06) * (4 if random.random() < 0.05 else 1))

    goal, enclosed = Goal(0.04, "reference", max_repeats=2000, max_seconds=1e9), 0
    for number in range(60):
        request = replace(REQUEST, sizes_bytes=(SMALL,), seed=1000 * number)
        (found,) = analyse(_driven(DrawnRunner(spiky), goal, request).measurement, "own", "reference")
        assert found.ratio is not None
        enclosed += found.ratio.low <= 2 <= found.ratio.high
    assert enclosed >= 52  # the seeds are fixed; 57 are to be expected


def test_requests_grow_so_that_starting_up_does_not_cost_more_than_measuring() -> None:
    runner = DrawnRunner(_noisy_when_small)
    _driven(runner, Goal(0.005, "reference", max_repeats=2000, max_seconds=1e6))
    so_far = 0
    for request in runner.requests[:-1]:
        assert so_far == 0 or so_far / 2 <= request.repeats <= so_far
        so_far += request.repeats
    assert len(runner.requests) <= 16


def test_the_budget_of_repetitions_ends_it_exactly() -> None:
    runner = DrawnRunner(_noisy_when_small)
    driven = _driven(runner, Goal(0.0001, "reference", max_repeats=25, max_seconds=1e6))
    assert len(driven.measurement.results["own"][0].times_s) == 25
    assert driven.stop_reasons == (StopReason.REPEATS, StopReason.REPEATS)


def test_the_budget_of_seconds_is_kept() -> None:
    runner = DrawnRunner(_noisy_when_small)
    driven = _driven(runner, Goal(0.0001, "reference", max_repeats=10**6, max_seconds=500.0))
    assert driven.stop_reasons == (StopReason.SECONDS, StopReason.SECONDS)
    assert 300 < runner.now_s <= 510  # paces are predicted from the request before


def test_a_small_budget_of_repetitions_holds_for_the_first_request() -> None:
    runner = DrawnRunner(_calm)
    driven = _driven(runner, Goal(0.5, "reference", max_repeats=3, max_seconds=1e6))
    assert [request.repeats for request in runner.requests] == [3]
    assert driven.stop_reasons == (StopReason.REPEATS, StopReason.REPEATS)


def test_without_a_reference_the_times_themselves_become_precise() -> None:
    runner = DrawnRunner(_noisy_when_small)
    request = replace(REQUEST, programs={"own": PROGRAMS["own"]})
    driven = _driven(runner, Goal(0.05, max_repeats=1000, max_seconds=1e6), request)
    found, _ = analyse(driven.measurement, "own")
    assert found.ratio is None
    assert found.times.half_width <= 0.05


def test_a_failure_of_a_later_request_is_the_answer() -> None:
    runner = DrawnRunner(_noisy_when_small, fails_at=3)
    outcome = measure_until(runner, REQUEST, Goal(0.001, "reference", max_seconds=1e6), runner.clock_s)
    assert outcome == RunFailure(FailureKind.TIMEOUT, "hung")


def test_an_unknown_reference_is_refused_before_anything_runs() -> None:
    runner = DrawnRunner(_calm)
    with pytest.raises(InvalidInput, match="a reference must be among what is measured; got other"):
        measure_until(runner, REQUEST, Goal(0.02, "other"), runner.clock_s)
    assert not runner.requests


def test_a_fixed_number_of_repetitions_is_one_request() -> None:
    runner = DrawnRunner(_noisy_when_small)
    driven = measure_once(runner, REQUEST)
    assert isinstance(driven, AdaptiveMeasurement)
    assert runner.requests == [REQUEST]
    assert driven.stop_reasons == (StopReason.FIXED, StopReason.FIXED)


def test_where_launches_have_modes_of_their_own_the_interval_is_of_launches() -> None:
    """Of each launch all repetitions share a mode; as if independent, they would cover two thirds of the time."""

    class Launches(DrawnRunner):
        def submit(self, request: RunRequest) -> Outcome:
            outcome = super().submit(request)
            assert isinstance(outcome, Measurement)
            random = np.random.default_rng(request.seed + 10**6)
            slower = {name: random.choice([1.0, 1.2], size=len(request.sizes_bytes)) for name in outcome.results}
            results = {
                name: tuple(
                    replace(one, times_s=tuple(time * factor for time in one.times_s))
                    for one, factor in zip(sizes, slower[name], strict=True)
                )
                for name, sizes in outcome.results.items()
            }
            return replace(outcome, results=results)

    goal, enclosed = Goal(0.04, "reference", max_repeats=200, max_seconds=1e9, launches=6), 0
    for number in range(60):
        runner = Launches(_calm)
        request = replace(REQUEST, sizes_bytes=(SMALL,), seed=1000 * number)
        driven = _driven(runner, goal, request)
        assert len(runner.requests) >= 6
        (found,) = analyse(driven.measurement, "own", "reference", per_launch=driven.per_launch)
        assert found.ratio is not None
        assert found.ratio.samples == len(runner.requests)
        enclosed += found.ratio.low <= 2 <= found.ratio.high
    assert enclosed >= 55


@pytest.mark.parametrize(("spec", "fastest"), [("ring:4", 1), ("a100:2", 300)])
def test_the_fastest_link_of_a_run_has_the_rate_that_it_says(spec: str, fastest: int) -> None:
    topology = parse_topology(spec)
    network = model_of_run(topology, 50)
    assert network is not None
    assert network.unit_bytes_per_s(topology) * fastest == 50e6 / 8
    assert model_of_run(topology, None) is None
