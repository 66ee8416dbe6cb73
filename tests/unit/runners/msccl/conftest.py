"""Commands of a GPU cluster, played by stand-ins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stand_ins.gpu_cluster import put_stand_ins, stand_in_environment


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture
def cluster(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that puts the stand-ins on the PATH and says what they play; it returns their folder."""

    def play(runtime: str = "msccl", fault: str = "", table: str = "old") -> Path:
        folder = tmp_path / "stand-ins"
        put_stand_ins(folder)
        for name, value in stand_in_environment(folder, memory, runtime, fault, table).items():
            monkeypatch.setenv(name, value)
        return folder

    return play
