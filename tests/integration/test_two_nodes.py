"""A real two-node Ray cluster on one machine: half of it dies, the answer is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.two_nodes import TASKS

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
def test_a_node_that_dies_in_the_middle_changes_no_answer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.two_nodes", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found["nodes_before"] == 2
    assert found["killed_at"] == [8]
    assert found["squares"] == [task * task for task in range(TASKS)]
    assert found["attempts"] > TASKS  # tasks of the dead node were done again
    assert found["left_connected"]  # closing the executor left the cluster that it joined
