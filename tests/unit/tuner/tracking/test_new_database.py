"""A new database of MLflow comes into its place whole: whoever makes it may be killed at any time."""

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.tracking.mlflow_store import MlflowStore

ROOT = Path(__file__).parents[4]


def start(code: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", code, f"sqlite:///{folder / 'mlflow.db'}", str(folder / "artifacts"), *arguments]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


QUICK_KILLED = """
import os, sqlite3, sys
from chorale.tuner.tracking import mlflow_store
def die(uri):
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as connection:
        connection.execute("CREATE TABLE scorers (scorer_id TEXT)")
    os._exit(9)
mlflow_store._make_tables = die
mlflow_store.create_database(sys.argv[1])
"""
QUICK_WORKING = """
import shutil, sys, time
from chorale.tuner.tracking import mlflow_store
def make(uri):
    print("made")
    time.sleep(0.5)
    shutil.copy(sys.argv[3], uri.removeprefix("sqlite:///"))
mlflow_store._make_tables = make
mlflow_store.create_database(sys.argv[1])
"""


def test_what_a_killed_process_left_is_made_again(tmp_path: Path, mlflow_template: Path) -> None:
    killed = start(QUICK_KILLED, tmp_path)
    killed.communicate(timeout=60)
    assert killed.returncode == 9
    assert not (tmp_path / "mlflow.db").exists()
    assert (tmp_path / "mlflow.db.new").exists()
    process = start(QUICK_WORKING, tmp_path, str(mlflow_template))
    assert process.communicate(timeout=60) == ("made\n", "")
    assert (tmp_path / "mlflow.db").read_bytes() == mlflow_template.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.new*")) == []


def test_one_of_several_makes_it(tmp_path: Path, mlflow_template: Path) -> None:
    processes = [start(QUICK_WORKING, tmp_path, str(mlflow_template)) for _ in range(4)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, answers
    assert sorted(out for out, _ in answers) == ["", "", "", "made\n"]
    assert stat.S_IMODE((tmp_path / "mlflow.db").stat().st_mode) == 0o600


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("spoil", [cut_off, None])
def test_one_that_was_not_made_to_its_end_is_named_with_a_way_out(
    tmp_path: Path, spoil: Callable[[bytes], bytes] | None
) -> None:
    file = tmp_path / "mlflow.db"
    if spoil is None:  # as MLflow itself leaves it when it is killed
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE experiments (experiment_id INTEGER, name TEXT)")
            connection.execute("CREATE TABLE scorers (scorer_id TEXT)")
        connection.close()
    else:
        MlflowStore(f"sqlite:///{file}", tmp_path / "artifacts").experiment("first")
        file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(Unavailable, match="--resume"):
        MlflowStore(f"sqlite:///{file}?again", tmp_path / "artifacts").experiment("second")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        MlflowStore(f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}", tmp_path / "artifacts")
