"""The node that runs a launch is killed, then its whole cluster: see `launch_node`."""

from pathlib import Path

import pytest

from tests.integration.test_two_nodes import run_script


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds_locked", [0, 20])
def test_a_launch_survives_its_own_node_and_is_resumed_after_its_cluster(tmp_path: Path, seconds_locked: int) -> None:
    found = run_script("launch_node", tmp_path, 580, str(seconds_locked))
    assert found["began_on_second"]
    assert found["launches_killed"] == 1
    assert found["moved"]
    assert found["launch"] == 1
    points = found["points"]
    assert points // 2 <= found["saved_before_resume"] < points
    assert found["kept"]
    assert found["saved"] == points
    assert found["saved_once"]
    assert found["states"] == {"complete": points}
    assert found["tracked_once"]
    assert found["tracking_problem"] is None
    assert found["same_measurements"]
    assert found["same_answer"]
