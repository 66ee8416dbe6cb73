"""Commands of a GPU cluster, played by stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stand_ins.gpu_cluster import put_stand_ins

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture
def cluster(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that puts the stand-ins on the PATH and says what they play; it returns their folder."""

    def play(runtime: str = "msccl", fault: str = "", table: str = "old") -> Path:
        folder = tmp_path / "stand-ins"
        put_stand_ins(folder)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("STAND_IN_MEMORY", str(memory))
        for name, value in (("RUNTIME", runtime), ("FAULT", fault), ("TABLE", table)):
            monkeypatch.setenv(f"STAND_IN_{name}", value)
        return folder

    return play
