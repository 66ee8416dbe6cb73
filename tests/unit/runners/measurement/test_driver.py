"""What links allow, and the rungs of a race."""

from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Race, RunFailure, RunRequest
from chorale.runners.measurement.driver import believable, link_limit, model_of_run
from chorale.runners.workers.campaign_worker import measure_in_rungs, sizes_in_race
from chorale.synth.collective import ALLGATHER, ALLREDUCE, CustomCollective, RequiredChunk, custom_collective
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allreduce
from tests.conformance.runner_kit import failed, measured
from tests.fakes import FakeRunner, fail_with

SMALL, LARGE = 4096, 65536
PROGRAMS = {"own": ring_allreduce(range(4)), "reference": ring_allreduce((3, 2, 1, 0))}
REQUEST = RunRequest(parse_topology("ring:4"), PROGRAMS, (SMALL, LARGE), repeats=5)


@pytest.mark.parametrize(("spec", "fastest"), [("ring:4", 1), ("a100:2", 300)])
def test_the_fastest_link_of_a_run_has_the_rate_that_it_says(spec: str, fastest: int) -> None:
    topology = parse_topology(spec)
    network = model_of_run(topology, 50)
    assert network is not None
    assert network.unit_bytes_per_s(topology) * fastest == 50e6 / 8
    assert model_of_run(topology, None) is None


HYPERCUBE = parse_topology("hypercube:3")


def test_each_rank_of_a_cube_gets_what_it_lacks_over_three_links_and_own_collectives_have_no_limit() -> None:
    """7/8 of the vector through three links of 100 Mbit/s: 7/24 of 8e-8 s for each byte; an allreduce takes twice."""
    for collective, shares in ((ALLGATHER, 7 / 24), (ALLREDUCE, 7 / 12)):
        limit = link_limit(HYPERCUBE, collective, {"link_mbps": 100.0})
        assert limit is not None
        assert limit.seconds_per_byte == pytest.approx(shares * 8e-8)
        assert limit.efficiency(2 * limit.least_s(1 << 20), 1 << 20) == pytest.approx(0.5)
    moved = custom_collective(CustomCollective("move", 8, 1, 1, (RequiredChunk(0, 0, ((1, 0),)),)))
    assert link_limit(HYPERCUBE, moved, {"link_mbps": 100.0}) is None


class Paced(FakeRunner):
    """A runner that says that its links have 1 Mbit/s, and whose times are `factor` of what these allow."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def submit(self, request: RunRequest) -> Measurement:
        outcome = measured(super().submit(request))
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


def test_what_is_faster_than_the_links_is_a_failure_that_says_so() -> None:
    refused = failed(measure_in_rungs(Paced(0.9), REQUEST), FailureKind.IMPOSSIBLE)
    assert "less than the" in refused.message
    assert "links of 1 Mbit/s allow" in refused.message
    assert believable(REQUEST, Paced(0.9).submit(REQUEST)) == refused
    measured(measure_in_rungs(Paced(1.0), REQUEST))


SIZES = len(REQUEST.sizes_bytes)
[NAME, REFERENCE] = list(REQUEST.programs)[:2]


def race(ratio: float) -> Race:
    return Race(NAME, (REFERENCE,), (ratio,) * SIZES, first_repeats=2)


@pytest.mark.parametrize(
    ("own", "repeats", "requests", "done"),
    [(race(1e-6), 5, 1, 2), (race(1e6), 5, 2, 5), (None, 5, 1, 5), (race(1e-6), 2, 1, 2)],
    ids=["has lost", "may win", "no race", "few repetitions"],
)
def test_only_who_may_still_win_is_measured_on(own: Race | None, repeats: int, requests: int, done: int) -> None:
    runner = FakeRunner()
    outcome = measured(measure_in_rungs(runner, replace(REQUEST, repeats=repeats, race=own)))
    assert len(runner.requests) == requests
    assert {len(size.times_s) for sizes in outcome.results.values() for size in sizes} == {done}
    assert len({request.seed for request in runner.requests}) == requests


def test_only_the_sizes_at_which_a_program_keeps_up_go_on() -> None:
    own = replace(race(1e-6), ratios=(1e-6,) * (SIZES - 1) + (1e6,))
    runner = FakeRunner()
    outcome = measured(measure_in_rungs(runner, replace(REQUEST, repeats=5, race=own)))
    assert [request.sizes_bytes for request in runner.requests] == [REQUEST.sizes_bytes, REQUEST.sizes_bytes[-1:]]
    for sizes in outcome.results.values():
        assert [len(size.times_s) for size in sizes] == [2] * (SIZES - 1) + [5]
        assert [size.requested_bytes for size in sizes] == list(REQUEST.sizes_bytes)


def test_one_repetition_that_keeps_up_is_enough() -> None:
    """Twice as slow as the reference but once: the load that hit one of them alone does not decide."""
    found = measured(FakeRunner().submit(replace(REQUEST, repeats=3)))
    slow = tuple(replace(size, times_s=tuple(2 * time for time in size.times_s)) for size in found.results[REFERENCE])
    lucky = tuple(replace(size, times_s=(size.times_s[0] / 2, *size.times_s[1:])) for size in slow)
    assert sizes_in_race(replace(found, results={**found.results, NAME: slow}), race(1.5)) == []
    assert sizes_in_race(replace(found, results={**found.results, NAME: lucky}), race(1.5)) == list(range(SIZES))


@pytest.mark.parametrize(("factor", "keeps_up"), [(0.5, True), (2.0, False)])
def test_without_a_reference_beside_it_counts_what_one_took_before(factor: float, keeps_up: bool) -> None:
    found = measured(FakeRunner().submit(replace(REQUEST, programs={NAME: REQUEST.programs[NAME]})))
    before = tuple(min(size.times_s) / factor for size in found.results[NAME])
    assert sizes_in_race(found, replace(race(1.0), reference_s=before)) == (list(range(SIZES)) if keeps_up else [])


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_part_that_fails_is_the_answer(fails_at: int) -> None:
    def fault(request: RunRequest) -> RunFailure | None:
        return fail_with(FailureKind.CRASH)(request) if len(runner.requests) == fails_at else None

    runner = FakeRunner(fault)
    failed(measure_in_rungs(runner, replace(REQUEST, repeats=5, race=race(1e6))), FailureKind.CRASH)
