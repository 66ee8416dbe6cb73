"""The processes of the compose file for real: PostgreSQL, MLflow on it, a Ray head and two workers, the service."""

import pytest

from tests.command import python
from tests.local_stack.postgres import is_installed

LIMIT_S = 900


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.skipif(not is_installed(), reason="PostgreSQL is not installed (apt-get install postgresql)")
def test_the_stack_serves_schedules_programs_and_campaigns():
    facts = python("-m", "tests.local_stack", "--check", timeout_s=LIMIT_S).document
    assert facts["synthesis"]["gap"] == "0"
    assert facts["campaign"]["counts"] == {"complete": 4}
    assert facts["mlflow"]["runs"] == 5
    assert facts["command"]["trials"]["complete"] == 4
