"""What live tests share."""

import pytest

from tests.conformance.live_kit import note_children


@pytest.fixture(autouse=True)
def _own_children() -> None:
    """Let each test see the processes that it started itself."""
    note_children()
