"""Retries by kind of failure, and what fits which needs."""

from __future__ import annotations

import pytest

from chorale.runners.api.base import FailureKind, Measurement, ResourceRequest, RunFailure
from chorale.runners.ray.retries import MAX_RETRIES, RetryPolicy


@pytest.mark.parametrize("kind", list(FailureKind))
def test_each_kind_has_its_limit_for_each_order(kind: FailureKind) -> None:
    retries = RetryPolicy()
    for order in ("a", "b"):
        tries = [retries.should_retry(order, RunFailure(kind, "no"), lambda: True) for _ in range(5)]
        assert tries == [True] * MAX_RETRIES.get(kind, 0) + [False] * (5 - MAX_RETRIES.get(kind, 0))


def test_facts_about_the_program_are_never_tried_again() -> None:
    assert not {FailureKind.WRONG_RESULT, FailureKind.REJECTED} & set(MAX_RETRIES)


def test_a_hang_is_tried_again_only_elsewhere() -> None:
    hang = RunFailure(FailureKind.TIMEOUT, "hung")
    assert not RetryPolicy().should_retry("a", hang, lambda: False)
    assert RetryPolicy().should_retry("a", hang, lambda: True)


def test_a_measurement_is_accepted() -> None:
    assert not RetryPolicy().should_retry("a", Measurement("fake", {}), lambda: True)


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        (ResourceRequest(), True),
        (ResourceRequest(cpus=4), True),
        (ResourceRequest(cpus=4.5), False),
        (ResourceRequest(gpus=1), False),
        (ResourceRequest(resources={"fabric": 1}), True),
        (ResourceRequest(resources={"fabric": 2}), False),
        (ResourceRequest(labels={"rack": "7"}), True),
        (ResourceRequest(labels={"rack": "8"}), False),
        (ResourceRequest(labels={"row": "7"}), False),
    ],
)
def test_a_node_fits_if_it_has_everything(needs: ResourceRequest, fits: bool) -> None:
    assert needs.fits({"CPU": 4, "fabric": 1}, {"rack": "7"}) == fits
