"""A detached launch while workers, nodes, the launch itself and MLflow are killed: see `soak`."""

from pathlib import Path
from typing import Any

import pytest

from chorale.tuner.launch.detached import DetachedLaunch
from tests.integration.test_two_nodes import run_script


def check(found: dict[str, Any], points: int) -> None:
    assert found["points"] == found["saved"] == found["tracked"] == points
    assert found["states"] == {"complete": points}
    assert found["saved_once"]
    assert found["tracked_once"]
    assert found["tracking_problem"] is None
    assert found["same_measurements"]
    assert found["same_answer"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_storm_changes_nothing(tmp_path: Path) -> None:
    found = run_script("soak", tmp_path, 280, "--trials", "50", "--faults", "5", "--seed", "3")
    check(found, 50)
    assert sum(found["faults"].values()) >= 3


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_long_storm_changes_nothing(tmp_path: Path) -> None:
    found = run_script("soak", tmp_path, 1700, "--trials", "500", "--faults", "30")
    check(found, 500)
    assert {"node", DetachedLaunch.__name__, "MLflow server"} <= set(found["faults"])
