"""Single faults in the middle of a launch: none ends it, loses a trial or doubles one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.faults import FAULTS, GOAL_S, run_fault


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_nothing(fault: str, tmp_path: Path) -> None:
    row = run_fault(fault, tmp_path)
    assert row.good, row
    assert row.noticed_s is None or row.noticed_s < GOAL_S, row
