"""What the command says about common mistakes, word for word: tests/golden/messages.txt has the commands and texts."""

import shlex
from pathlib import Path

import pytest

import chorale as ch
from tests.command import chorale

GOLDEN = Path(__file__).parents[3] / "golden" / "messages.txt"
CASES = [tuple(block.strip().split("\n")) for block in GOLDEN.read_text(encoding="utf-8").split("\n\n")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with files that are not what the commands want."""
    root = tmp_path_factory.mktemp("mistakes")
    (root / "empty.json").write_text("{}")
    (root / "notes.txt").write_text("some notes\n")
    (root / "matrix.csv").write_text("1,2\n3,4\n")
    (root / "broken.yaml").write_text("- a\n")
    (root / "typo.yaml").write_text("name: x\ntopology: ring:4\ncolective: allreduce\n")
    ch.synthesize("torus:2x4", "allreduce", method="bfb").save(root / "torus.parquet")
    return root


@pytest.mark.parametrize(("command", "expected"), CASES, ids=[command for command, _ in CASES])
def test_a_mistake_is_explained(
    command: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CHORALE_HOME", str(folder / "home"))
    finished = chorale(capsys, *shlex.split(command.removeprefix("$ chorale ")))
    assert f"exit {finished.code}, {finished.stderr.strip()}" == expected
