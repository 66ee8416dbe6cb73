"""Each fault of the guide's table, while a job trains on an emulated fabric, with all parts as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.support import require_fabrics

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

_LIMIT_S = 550


def _scenario(tmp_path: Path, fault: str, topology: str) -> dict[str, Any]:
    require_fabrics(f"scenario-{os.getpid()}", f"the fault {fault}")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    command = [sys.executable, "-m", "tests.live.watch.faults", "--fault", fault, "--topology", topology]
    environment = {**os.environ, "CHORALE_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _run(tmp_path: Path, fault: str, topology: str) -> dict[str, Any]:
    document = _scenario(tmp_path, fault, topology)
    assert (document["wrong_sums"], document["steps_lost"]) == (0, 0)
    assert 0 < document["detected_s"] < document["published_s"] <= document["first_step_s"]
    return document


@pytest.mark.parametrize(("fault", "topology"), [("cut", "torus:3x3"), ("flap", "hypercube:3")])
def test_links(tmp_path: Path, fault: str, topology: str) -> None:
    _run(tmp_path, fault, topology)


def test_a_rank_is_lost_and_comes_back(tmp_path: Path) -> None:
    document = _run(tmp_path, "node", "hypercube:3")
    assert document["job_failed_s"] < document["first_step_s"]
    assert document["back"]["first_step_s"] > document["back"]["published_s"]


def test_the_watch_is_killed_and_publishes_nothing_twice(tmp_path: Path) -> None:
    assert _run(tmp_path, "watch", "hypercube:3")["published_twice"] == 0
