"""Computing beside a run: the time is that of both, results stay right, and runners that cannot say so."""

import time
from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, RunFailure, RunRequest
from chorale.runners.local.rank import ComputeLoad
from chorale.runners.local.runner import LocalRunner
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allreduce

REQUEST = RunRequest(parse_topology("ring:3"), {"ring": ring_allreduce(range(3))}, (4096, 65536), repeats=3)
PRODUCTS = 50


def seconds_alone(products: int) -> float:
    load = ComputeLoad()
    began_s = time.monotonic()
    load.start(products)
    assert load.is_busy
    end_s = load.wait()
    assert not load.is_busy
    assert began_s < end_s <= time.monotonic()
    return end_s - began_s


def test_a_load_ends_by_itself_and_can_be_started_again() -> None:
    assert seconds_alone(1) < seconds_alone(100)


def test_no_products_are_no_load() -> None:
    load = ComputeLoad()
    load.start(0)
    assert not load.is_busy
    assert load.wait() == 0


def test_the_time_is_that_of_both() -> None:
    """A rank cannot be faster than its products alone; three ranks on two cores are slower."""
    least_s = min(seconds_alone(PRODUCTS) for _ in range(5)) / 2
    with LocalRunner(100, probe=False) as runner:
        free = runner.submit(REQUEST)
        beside = runner.submit(replace(REQUEST, matrix_products=PRODUCTS))
        again = runner.submit(REQUEST)
    assert isinstance(free, Measurement)
    assert isinstance(beside, Measurement)
    assert isinstance(again, Measurement)
    for size, loaded in zip(free.results["ring"], beside.results["ring"], strict=True):
        assert loaded.min_s > max(size.min_s, least_s)


@pytest.mark.parametrize("products", [1, -1])
def test_runners_that_cannot_compute_refuse(products: int) -> None:
    outcome = SimulatedRunner(NetworkModel.of(link_gbps=1)).submit(replace(REQUEST, matrix_products=products))
    assert isinstance(outcome, RunFailure)
    assert outcome.kind == FailureKind.REJECTED
    assert "cannot compute beside a run" in outcome.message
