"""MPI's own algorithms, chosen one by one as baselines: each gives right results, and is the one that was named."""

from collections.abc import Iterator

import pytest

from chorale.runners.api.base import FailureKind, library_result
from chorale.runners.mpi.algorithms import mpi_algorithms
from chorale.runners.mpi.runner import MpiRunner
from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.spec import parse_topology
from tests.conformance.runner_kit import RING, failed, measured, request_of
from tests.live.support import needs_mpi
from tests.synthesis import schedule_for

pytestmark = [needs_mpi, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runner() -> Iterator[MpiRunner]:
    with MpiRunner(where="loopback") as runner:
        yield runner


@pytest.mark.parametrize(
    "name", [name if name == "allreduce" else pytest.param(name, marks=pytest.mark.slow) for name in STANDARD]
)
def test_every_algorithm_gives_right_results(name: CollectiveName, runner: MpiRunner) -> None:
    algorithms = mpi_algorithms()[name.value]
    assert len(algorithms) >= 3
    wanted = ("mpi", *algorithms)
    program = lower(schedule_for(name, parse_topology("ring:4")), LoweringOptions("oneccl-xml"))
    request = request_of(program, size_bytes=3 * 2**14, library=wanted)
    results = measured(runner.submit(request)).results
    for each in wanted:
        assert all(result.correct for result in results[library_result(each)]), each


def test_unknown_ones_are_refused_with_the_list(runner: MpiRunner) -> None:
    failure = failed(runner.submit(request_of(RING, library=("mpi:none",))), FailureKind.REJECTED)
    assert "no algorithm of its own named mpi:none" in failure.message
    assert all(name in failure.message for name in mpi_algorithms()["allreduce"])
    assert runner.library("allreduce") == ("mpi",)
