"""MPI's own algorithms, chosen one by one as baselines: each gives right results, and is the one that was named."""

from collections.abc import Iterator

import pytest

from chorale.runners.api.base import FailureKind, library_result
from chorale.runners.mpi.algorithms import mpi_algorithms
from chorale.runners.mpi.runner import MpiRunner
from chorale.synth.collective import STANDARD, Collective, CollectiveName
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.conformance.runner_kit import RING, failed, measured, request_of
from tests.live.support import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runner() -> Iterator[MpiRunner]:
    with MpiRunner(where="loopback") as runner:
        yield runner


def program_for(name: CollectiveName) -> Program:
    """Return a program beside which the algorithms are measured."""
    ring, options = parse_topology("ring:4"), LoweringOptions("oneccl-xml")
    if name is CollectiveName.ALLTOALL:
        return lower(verify(alltoall_schedule(ring, 2)), options)
    rooted = name in (CollectiveName.BROADCAST, CollectiveName.REDUCE)
    goal = Collective(name, 1 if rooted else None)
    return lower(synthesize("forest" if rooted else "ring", ring, goal, None, SerialExecutor()), options)


@pytest.mark.parametrize(
    "name", [name if name == "allreduce" else pytest.param(name, marks=pytest.mark.slow) for name in STANDARD]
)
def test_every_algorithm_gives_right_results(name: CollectiveName, runner: MpiRunner) -> None:
    algorithms = mpi_algorithms()[name.value]
    assert len(algorithms) >= 3
    wanted = ("mpi", *algorithms)
    request = request_of(program_for(name), size_bytes=65536, library=wanted)
    results = measured(runner.submit(request)).results
    for each in wanted:
        assert all(result.correct for result in results[library_result(each)]), each


def test_unknown_ones_are_refused_with_the_list(runner: MpiRunner) -> None:
    failure = failed(runner.submit(request_of(RING, library=("mpi:none",))), FailureKind.REJECTED)
    assert "no algorithm of its own named mpi:none" in failure.message
    assert all(name in failure.message for name in mpi_algorithms()["allreduce"])
    assert runner.library("allreduce") == ("mpi",)
