"""A real two-node Ray cluster on one machine: half of it dies, the answer is the same."""

import json

import pytest

from tests.command import python
from tests.integration.two_nodes import TASKS


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_dies_in_the_middle_changes_no_answer(tmp_path):
    found = json.loads(python("-m", "tests.integration.two_nodes", tmp_path, timeout_s=110).stdout.splitlines()[-1])
    assert found["nodes_before"] == 2
    assert found["killed_at"] == [8]
    assert found["squares"] == [task * task for task in range(TASKS)]
    assert found["attempts"] > TASKS  # tasks of the dead node were done again
    assert found["left_connected"]  # closing the executor left the cluster that it joined
