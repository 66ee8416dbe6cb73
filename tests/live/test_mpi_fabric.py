"""The MPI runner on emulated networks: the pace of the links, a rank and a link that fail in the middle."""

import os
import signal
from collections.abc import Iterator

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.fabric.fabric import EmulatedFabric, processes_in
from chorale.runners.mpi.runner import MpiRunner
from tests.conformance import live_kit
from tests.conformance.example_programs import with_deadlock
from tests.conformance.live_kit import submit_and_meanwhile
from tests.conformance.runner_kit import RING, failed, measured, request_of
from tests.live.support import fabric_of, needs_mpi, takes_as_long_as_the_links_do, turn_links_of_rank_0
from tests.waiting import until

pytestmark = needs_mpi

NAME = f"mpi-{os.getpid()}"


@pytest.fixture(scope="module")
def ring() -> Iterator[EmulatedFabric]:
    with fabric_of(NAME, "THE MPI RUNNER") as fabric:
        yield fabric


@pytest.mark.alone
@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_programs_and_mpi_take_as_long_as_the_links_do(ring: EmulatedFabric, transport: str) -> None:
    with MpiRunner(NAME, transport=transport) as runner:
        takes_as_long_as_the_links_do(runner, "mpi")
    until(lambda: not processes_in(ring.networks()), 5.0)


def test_a_killed_rank_is_named_and_the_next_run_works(ring: EmulatedFabric) -> None:
    live_kit.a_killed_rank_is_a_crash_that_names_it(lambda: MpiRunner(NAME))
    until(lambda: not processes_in(ring.networks()), 5.0)


@pytest.mark.slow
def test_a_rank_that_stalls_is_named_beside_the_blocks_of_another(ring: EmulatedFabric) -> None:
    endless = request_of(with_deadlock(RING, 1), timeout_s=4.0)
    with MpiRunner(NAME) as runner:
        outcome = submit_and_meanwhile(runner, endless, lambda pids: os.kill(pids[2], signal.SIGSTOP))
        failure = failed(outcome, FailureKind.TIMEOUT)
        assert failure.rank == 2
        assert "rank 2 does not answer" in failure.message
        assert {rank for rank, _, _ in failure.blocked} == {1}
        measured(runner.submit(request_of(RING)))
    until(lambda: not processes_in(ring.networks()), 5.0)


def test_links_that_go_down_are_a_timeout_and_nothing_stays(ring: EmulatedFabric) -> None:
    # One run takes 2 s, so the links go down in the middle of it; at its end, nobody would wait for a message any more.
    slow = request_of(RING, size_bytes=2**24, repeats=1000, timeout_s=4.0)
    with MpiRunner(NAME) as runner:
        outcome = submit_and_meanwhile(runner, slow, lambda _: turn_links_of_rank_0(ring, "down"))
        failure = failed(outcome, FailureKind.TIMEOUT)
        assert failure.blocked  # which ranks can still say so depends on what was in transit
        until(lambda: not processes_in(ring.networks()), 5.0)
