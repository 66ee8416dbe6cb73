"""The processes of the compose file for real: PostgreSQL, MLflow on it, a Ray head and two workers, the service."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_stack.postgres import is_installed

ROOT = Path(__file__).parents[2]
LIMIT_S = 900


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.skipif(not is_installed(), reason="PostgreSQL is not installed (apt-get install postgresql)")
def test_the_stack_serves_schedules_programs_and_campaigns():
    done = subprocess.run(
        [sys.executable, "-m", "tests.local_stack", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["synthesis"]["gap"] == "0"
    assert facts["campaign"]["counts"] == {"complete": 4}
    assert facts["mlflow"]["runs"] == 5
    assert facts["command"]["trials"]["complete"] == 4
