"""How programs are measured: the adaptive driver on a clock of its own, what links allow, and rungs of a race."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, Race, RunFailure, RunRequest, SizeMeasurement
from chorale.runners.measurement.driver import (
    AdaptiveMeasurement,
    StopReason,
    link_limit,
    measure_once,
    measure_until,
    model_of_run,
)
from chorale.runners.measurement.precision import Goal, analyse
from chorale.runners.workers.campaign_worker import measure_in_rungs, sizes_in_race
from chorale.synth.collective import ALLGATHER, ALLREDUCE, custom_collective
from chorale.synth.custom_collective import CustomCollective, RequiredChunk
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allreduce
from tests.fakes import FakeRunner, fail_with

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


def test_others_measure_between_two_requests_and_waiting_for_them_costs_no_budget() -> None:
    runner = DrawnRunner(_noisy_when_small)
    turns: list[int] = []

    @contextmanager
    def turn() -> Iterator[None]:
        runner.now_s += 1000.0
        before = len(runner.requests)
        yield
        turns.append(len(runner.requests) - before)

    goal = Goal(0.0001, "reference", max_repeats=10**6, max_seconds=500.0)
    measure_until(runner, REQUEST, goal, runner.clock_s, turn)
    assert len(turns) > 2
    assert set(turns) == {1}
    assert 300 < runner.now_s - 1000 * len(turns) <= 510


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
    with pytest.raises(InvalidInput, match="the reference 'other' is not measured"):
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


HYPERCUBE = parse_topology("hypercube:3")


def test_each_rank_of_a_cube_gets_what_it_lacks_over_three_links() -> None:
    """7/8 of the vector through three links of 100 Mbit/s: 7/24 of 8e-8 s for each byte; an allreduce takes twice."""
    for collective, shares in ((ALLGATHER, 7 / 24), (ALLREDUCE, 7 / 12)):
        limit = link_limit(HYPERCUBE, collective, {"link_mbps": 100.0})
        assert limit is not None
        assert limit.seconds_per_byte == pytest.approx(shares * 8e-8)
        assert limit.efficiency(2 * limit.least_s(1 << 20), 1 << 20) == pytest.approx(0.5)


def test_the_rate_is_of_the_fastest_link_where_bandwidths_have_a_unit() -> None:
    fast, slow = (link_limit(parse_topology("a100:2"), ALLGATHER, {"link_mbps": rate}) for rate in (200, 100))
    assert fast is not None
    assert slow is not None
    assert slow.seconds_per_byte == pytest.approx(2 * fast.seconds_per_byte)


def test_without_a_rate_there_is_no_limit() -> None:
    assert link_limit(HYPERCUBE, ALLGATHER, {}) is None
    assert link_limit(HYPERCUBE, ALLGATHER, {"link_mbps": None}) is None


def test_a_collective_of_ones_own_has_no_limit() -> None:
    moved = custom_collective(CustomCollective("move", 8, 1, 1, (RequiredChunk(0, 0, ((1, 0),)),)))
    assert link_limit(HYPERCUBE, moved, {"link_mbps": 100.0}) is None


class Paced(FakeRunner):
    """A runner that says that its links have 1 Mbit/s, and whose times are `factor` of what these allow."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def submit(self, request: RunRequest) -> Measurement:
        outcome = super().submit(request)
        assert isinstance(outcome, Measurement)
        environment = {"link_mbps": 1}
        collective = next(iter(request.programs.values())).collective
        limit = link_limit(request.topology, collective, environment)
        assert limit is not None
        results = {
            name: tuple(
                replace(size, times_s=(self._factor * limit.least_s(size.size_bytes),) * request.repeats)
                for size in sizes
            )
            for name, sizes in outcome.results.items()
        }
        return replace(outcome, results=results, environment=environment)


@pytest.mark.parametrize("measure", [measure_in_rungs, measure_once])
def test_what_is_faster_than_the_links_is_a_failure_that_says_so(measure: object) -> None:
    assert callable(measure)
    refused = measure(Paced(0.9), REQUEST)
    assert isinstance(refused, RunFailure)
    assert refused.kind is FailureKind.IMPOSSIBLE
    assert "less than the" in refused.message
    assert "links of 1 Mbit/s allow" in refused.message
    assert not isinstance(measure(Paced(1.0), REQUEST), RunFailure)


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
