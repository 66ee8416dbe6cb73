"""What live tests share."""

from pathlib import Path

import pytest

from tests.conformance.live_kit import note_children


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder for all tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _own_children() -> None:
    """Let each test see the processes that it started itself."""
    note_children()
