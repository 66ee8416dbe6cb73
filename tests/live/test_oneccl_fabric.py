"""The oneCCL runner on emulated networks: the pace of the links, a link that goes down."""

import os
from collections.abc import Iterator

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.fabric.fabric import EmulatedFabric, processes_in
from chorale.runners.oneccl.runner import OneCclRunner
from tests.conformance.example_programs import ring_allreduce
from tests.conformance.live_kit import submit_and_meanwhile
from tests.conformance.runner_kit import RING, failed, request_of
from tests.live.support import fabric_of, needs_oneccl, takes_as_long_as_the_links_do, turn_links_of_rank_0

pytestmark = needs_oneccl

NAME = f"oneccl-{os.getpid()}"


@pytest.fixture
def ring() -> Iterator[EmulatedFabric]:
    with fabric_of(NAME, "THE ONECCL RUNNER") as fabric:
        yield fabric


@pytest.mark.alone
def test_programs_and_library_take_as_long_as_the_links_do(ring: EmulatedFabric) -> None:
    with OneCclRunner(NAME) as runner:
        takes_as_long_as_the_links_do(runner, "ring")
    assert not processes_in(ring.networks())


@pytest.mark.slow
def test_a_link_that_goes_down_is_a_timeout(ring: EmulatedFabric) -> None:
    request = request_of(RING, size_bytes=2**20, repeats=1000, timeout_s=4.0)
    with OneCclRunner(NAME) as runner:
        outcome = submit_and_meanwhile(runner, request, lambda _: turn_links_of_rank_0(ring, "down"))
    failure = failed(outcome, FailureKind.TIMEOUT)
    assert "wait" in failure.message
    assert not processes_in(ring.networks())


def test_without_a_fabric_or_a_cluster_it_is_unavailable() -> None:
    with OneCclRunner() as runner:
        outcome = runner.submit(request_of(ring_allreduce(range(11)), "circulant:11,2,3"))
    failure = failed(outcome, FailureKind.UNAVAILABLE)
    assert "none for circulant:11,2,3; run: chorale fabric up circulant:11,2,3" in failure.message
