"""A real two-node Ray cluster on one machine: half of it dies, the answer is the same."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.two_nodes import TASKS

ROOT = Path(__file__).parents[2]


def run_script(name: str, folder: Path, timeout_s: float, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder in a process of its own; return the document that it prints last."""
    command = [sys.executable, "-m", f"tests.integration.{name}", str(folder), *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_dies_in_the_middle_changes_no_answer(tmp_path):
    found = run_script("two_nodes", tmp_path, 110)
    assert found["nodes_before"] == 2
    assert found["killed_at"] == [8]
    assert found["squares"] == [task * task for task in range(TASKS)]
    assert found["attempts"] > TASKS  # tasks of the dead node were done again
    assert found["left_connected"]  # closing the executor left the cluster that it joined
