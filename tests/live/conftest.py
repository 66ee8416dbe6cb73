"""What live tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import children
from tests.native_code import share_native_code


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder where oneCCL's interpreter is built, once for all tests."""
    folder = tmp_path_factory.mktemp("home")
    share_native_code(folder)
    return folder


@pytest.fixture(autouse=True)
def _own_children() -> None:
    """Let each test see the processes that it started itself."""
    children.begin()
