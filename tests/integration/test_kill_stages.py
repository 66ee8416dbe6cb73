"""SIGKILL at every stage between a measurement and its registration: nothing is lost, nothing is there twice."""

import signal
from pathlib import Path

import pytest

from tests.integration.kill_stages import STAGES
from tests.integration.test_two_nodes import run_script

SOME = ("after the first line", "before a trial is saved", "after a run is made")
TRIALS = 6


def check(folder: Path, names: list[str]) -> None:
    found = run_script("kill_stages", folder, 580, *names)
    assert list(found) == names
    for name, after in found.items():
        assert after["ended"] == -signal.SIGKILL, name
        assert after["kept"], name
        assert len(set(after["trials"])) == len(after["trials"]) == TRIALS, name
        assert after["states"] == ["complete"], name
        assert sorted(after["runs"]) == sorted(after["trials"]), name
        assert after["parents"] == 1, name
        assert after["open_runs"] == [], name
        assert set(after["versions"].values()) == {"1"}, name
        assert after["speedups"] == [2.0, 2.0], name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_launch_that_is_killed_goes_on(tmp_path: Path) -> None:
    check(tmp_path, list(SOME))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_launch_that_is_killed_at_any_stage_goes_on(tmp_path: Path) -> None:
    check(tmp_path, [name for name in STAGES if name not in SOME])
