"""What all tests share: Hypothesis settings and compiled kernels."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from synth.kernels import warm

# Wall-clock deadlines would make tests fail on a busy machine; in CI the same examples are drawn every time.
settings.register_profile("chorale", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "chorale")


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernels() -> None:
    """Compile before the first test, so that no test's timeout pays for it."""
    warm()
