"""Single faults in the middle of a launch: none ends it for good, loses a trial or doubles one."""

import os

import pytest

from tests.integration.faults.catalog import FAULTS
from tests.integration.faults.rows import GOAL_S, run_fault


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts and full disks need root")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_nothing(name, tmp_path):
    row = run_fault(name, FAULTS[name], tmp_path)
    assert row.good, row
    assert row.answered_s < GOAL_S, row
