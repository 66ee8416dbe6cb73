"""Guesses before anything is measured: what is made, what is simulated, and in which order it comes."""

import pytest

from chorale.runners.api.base import Measurement, RunRequest
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildResult
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.launch.priors import leaders, screened_candidates
from chorale.tuner.trials.records import Candidate
from tests.campaigns import small_campaign, space_of
from tests.fakes import FakeRunner, InlineWorkers

A, B, C = Candidate("a"), Candidate("b"), Candidate("c")


def campaign(**screening: int | float) -> Campaign:
    search = {"methods": ["ring", "bfb", "expand"], "chunks": [None, 1, 2], "channels": [1, 2]}
    return small_campaign(search=search, topology="hypercube:3", sizes=["64B", "16MiB"], screening=screening)


def guessed(wanted: Campaign) -> list[Candidate]:
    workers = InlineWorkers(FakeRunner())
    found = screened_candidates(wanted, load_topology(wanted.topology), space_of(wanted), workers)
    assert workers.runner.requests == []  # nothing is measured
    return list(found.first)


def test_the_best_of_each_size_comes_before_the_second_best() -> None:
    guesses = {A: (1.0, 9.0), B: (2.0, 2.0), C: (3.0, 1.0)}
    assert leaders(guesses, 9) == [C, A, B]
    assert leaders(guesses, 1) == [C]
    assert leaders({}, 3) == []


@pytest.mark.parametrize("simulated", [0, 4])
def test_the_best_are_found_and_what_cannot_be_made_is_left_out(simulated: int) -> None:
    found = guessed(campaign(candidates=100, simulated=simulated))
    assert found[0].method == "bfb"
    assert 0 < len(found) <= 4
    assert all(candidate.method != "expand" for candidate in found)


def test_simulated_times_decide_among_those_that_cost_the_same() -> None:
    """Channels cost nothing in the exact model; simulated, the order is that of the runner itself."""
    wanted = campaign(candidates=100, simulated=100, alpha_us=5)
    topology = load_topology(wanted.topology)
    first = guessed(wanted)[0]
    runner = SimulatedRunner(NetworkModel.of(alpha_us=5, link_latency_us="0.1", hop_us="0.3", link_gbps=1))
    times = {}
    for point in space_of(wanted).points:
        built = build(RequestBuilder(wanted, topology).build(point))
        if isinstance(built, BuildResult):
            outcome = runner.submit(RunRequest(topology, {"one": built.program}, (2**24,), repeats=1))
            assert isinstance(outcome, Measurement)
            times[point] = outcome.results["one"][0].median_s
    assert times[first] == min(times.values())
