"""The MPI runner on processes of this machine and in a fabric: the kits of runners, MPI's own collectives.

`make setup` installs the extra `mpi`; without it these tests are skipped, and say so.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.mpi.runner import MpiRunner
from chorale.synth.collective import STANDARD
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.spec import parse_topology
from tests.command import python
from tests.conformance import live_kit, runner_kit
from tests.conformance.live_kit import descendants
from tests.conformance.runner_kit import RING, Lent, failed, measured, request_of
from tests.live.support import needs_mpi, params
from tests.synthesis import schedule_for

pytestmark = needs_mpi


def _runner(transport: str = "mpi") -> MpiRunner:
    return MpiRunner(where="loopback", transport=transport)


@pytest.fixture(scope="module")
def shared() -> Iterator[MpiRunner]:
    with _runner() as running:
        yield running


@pytest.fixture(scope="module")
def connected() -> Iterator[MpiRunner]:
    with _runner("tcp") as running:
        yield running


FAULTS = {live_kit.a_killed_rank_is_a_crash_that_names_it, *live_kit.CHECKS[-3:]}
"""Tried in each run; the others each time with ranks of our own, in test_local_runner.py."""
IN_EACH_RUN = (
    runner_kit.programs_are_measured_side_by_side_at_every_size,
    runner_kit.every_element_type_is_exact,
    runner_kit.sizes_that_chunks_do_not_divide_are_rounded_up_and_right,
    runner_kit.a_hang_is_a_timeout_that_names_the_blocks,
    runner_kit.another_topology_may_follow,
    runner_kit.traces_say_what_every_step_took,
)
BY_THEMSELVES = {runner_kit.every_element_type_is_exact, runner_kit.another_topology_may_follow}
"""Of engines that connect by themselves, tried in each run."""


@pytest.mark.parametrize("check", params(runner_kit.CHECKS_WITH_TRACES, IN_EACH_RUN))
def test_conformance(check: Callable[[runner_kit.Factory], None], shared: MpiRunner) -> None:
    check(_runner if check is runner_kit.closing_twice_is_harmless else lambda: Lent(shared))


@pytest.mark.parametrize("check", params(runner_kit.CHECKS, BY_THEMSELVES))
def test_conformance_where_engines_are_connected_by_themselves(
    check: Callable[[runner_kit.Factory], None], connected: MpiRunner
) -> None:
    check(lambda: Lent(connected))


@pytest.mark.parametrize("check", params(live_kit.CHECKS, FAULTS))
def test_faults_on_purpose(check: Callable[[live_kit.LiveFactory], None]) -> None:
    check(_runner)
    assert not descendants()


def test_a_killed_rank_is_named_where_engines_are_connected_by_themselves() -> None:
    live_kit.a_killed_rank_is_a_crash_that_names_it(lambda: _runner("tcp"))
    assert not descendants()


def test_mpis_own_collectives_are_right_and_measured_beside_programs(shared: MpiRunner) -> None:
    schedules = [schedule_for(name, parse_topology("ring:4")) for name in STANDARD]
    for program in (RING, *(lower(schedule, LoweringOptions("oneccl-xml")) for schedule in schedules)):
        assert shared.library(program.collective.name) == ("mpi",)
        for dtype in ("float32", "int32"):
            request = request_of(program, library=("mpi",), size_bytes=3 * 2**12, dtype=dtype)
            results = measured(shared.submit(request)).results
            assert list(results) == ["program", "library:mpi"]
            assert results["library:mpi"][0].size_bytes == results["program"][0].size_bytes
            assert len(results["library:mpi"][0].times_s) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mpi_has_no_sum_of_short_types(dtype: str, shared: MpiRunner) -> None:
    failure = failed(shared.submit(request_of(RING, library=("mpi",), dtype=dtype)), FailureKind.REJECTED)
    assert f"no sum of its own for {dtype}" in failure.message
    measured(shared.submit(request_of(runner_kit.ring_allgather(4, True), library=("mpi",), dtype=dtype)))


def test_an_mpiexec_that_is_not_that_of_mpi4py_is_named() -> None:
    """Such a one starts processes that each take themselves for the only rank, as one without any mpiexec does."""
    done = python("-m", "chorale.runners.mpi.rank", "4", code=1, timeout_s=60)
    assert "MPI reports 1 ranks instead of 4: use the mpiexec of" in done.stderr


@pytest.mark.parametrize("stopped", [None, 0], ids=["running", "one rank stopped"])
def test_nothing_outlives_the_process_that_ran_it(stopped: int | None, tmp_path: Path) -> None:
    make = 'from chorale.runners.mpi.runner import MpiRunner; runner = MpiRunner(where="loopback")'
    live_kit.nothing_outlives_its_owner(make, tmp_path, signal.SIGKILL, stopped)
    assert not list(tmp_path.iterdir())
