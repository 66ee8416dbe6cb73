"""What links allow, and that nothing faster is believed."""

from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, RunFailure, RunRequest
from chorale.runners.measurement.driver import link_limit, measure_once
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.runners.workers.campaign_worker import measure_in_rungs
from chorale.synth.collective import ALLGATHER, ALLREDUCE, custom_collective
from chorale.synth.custom_collective import CustomCollective, RequiredChunk
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.spec import parse_topology
from tests.fakes import FakeRunner
from tests.unit.runners.measurement.test_driver import REQUEST

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


def test_the_simulated_runner_keeps_to_the_limit_of_its_links() -> None:
    runner = SimulatedRunner(NetworkModel.of(link_gbps="1/10"))
    outcome = measure_in_rungs(runner, REQUEST)
    assert isinstance(outcome, Measurement)
