"""Retries by kind of failure, and what fits which needs."""

from __future__ import annotations

import pytest

from runners.api import FailureKind, Measurement, RunFailure
from runners.needs import Needs
from runners.retries import LIMITS, Retries


@pytest.mark.parametrize("kind", list(FailureKind))
def test_each_kind_has_its_limit_for_each_order(kind: FailureKind) -> None:
    retries = Retries()
    for order in ("a", "b"):
        tries = [retries.again(order, RunFailure(kind, "no"), elsewhere=True) for _ in range(5)]
        assert tries == [True] * LIMITS.get(kind, 0) + [False] * (5 - LIMITS.get(kind, 0))


def test_facts_about_the_program_are_never_tried_again() -> None:
    assert not {FailureKind.WRONG_RESULT, FailureKind.REJECTED} & set(LIMITS)


def test_a_hang_is_tried_again_only_elsewhere() -> None:
    hang = RunFailure(FailureKind.TIMEOUT, "hung")
    assert not Retries().again("a", hang, elsewhere=False)
    assert Retries().again("a", hang, elsewhere=True)


def test_a_measurement_is_accepted() -> None:
    assert not Retries().again("a", Measurement("fake", {}), elsewhere=True)


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        (Needs(), True),
        (Needs(cpus=4), True),
        (Needs(cpus=4.5), False),
        (Needs(gpus=1), False),
        (Needs(resources={"fabric": 1}), True),
        (Needs(resources={"fabric": 2}), False),
        (Needs(labels={"rack": "7"}), True),
        (Needs(labels={"rack": "8"}), False),
        (Needs(labels={"row": "7"}), False),
    ],
)
def test_a_node_fits_if_it_has_everything(needs: Needs, fits: bool) -> None:
    assert needs.fit({"CPU": 4, "fabric": 1}, {"rack": "7"}) == fits
