"""A real two-node Ray cluster on one machine: half of it dies, the answer is the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.two_nodes import TASKS


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_dies_in_the_middle_changes_no_answer(tmp_path):
    command = [sys.executable, "-m", "tests.integration.two_nodes", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes_before"] == 2
    assert found["killed_at"] == [8]
    assert found["squares"] == [task * task for task in range(TASKS)]
    assert found["attempts"] > TASKS  # tasks of the dead node were done again
    assert found["left_connected"]  # closing the executor left the cluster that it joined
