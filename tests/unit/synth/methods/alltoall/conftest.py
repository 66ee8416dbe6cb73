"""Kernels are compiled before the first test, so that no test's timeout pays for it."""

from __future__ import annotations

import pytest

from chorale.synth.kernels.warm_up import warm_alltoall


@pytest.fixture(scope="session", autouse=True)
def _compiled_alltoall_kernels() -> None:
    warm_alltoall()
