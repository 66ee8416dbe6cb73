"""SerialExecutor keeps the contract."""

import pytest

from chorale.synth.executor.base import SerialExecutor
from tests.conformance import executor_kit


@pytest.mark.parametrize("check", executor_kit.CHECKS)
def test_contract(check):
    check(SerialExecutor)
