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
KILLED = """
import os, sys
from pathlib import Path
from chorale.tuner.tracking.mlflow_store import MlflowStore, load_mlflow
load_mlflow()
import mlflow.store.db.utils as utils, mlflow.store.model_registry.sqlalchemy_store as registry
import mlflow.store.tracking.sqlalchemy_store as tracking
def die(engine):
    utils.InitialBase.metadata.create_all(engine)
    with engine.begin() as connection:  # a step that is done, but not yet noted
        connection.exec_driver_sql("CREATE TABLE scorers (scorer_id TEXT)")
    os._exit(9)
for module in (utils, registry, tracking):
    module._initialize_tables = die
MlflowStore(sys.argv[1], Path(sys.argv[2]))
"""
WORKING = """
import sys
from pathlib import Path
from chorale.tuner.tracking.mlflow_store import MlflowStore
print(MlflowStore(sys.argv[1], Path(sys.argv[2])).experiment(sys.argv[3]))
"""


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


@pytest.mark.slow
def test_whoever_is_killed_while_making_it_leaves_nothing_in_its_place(tmp_path: Path) -> None:
    process = start(KILLED, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == 9
    store = MlflowStore(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts")
    assert store.experiment("first")
    assert sorted(path.name for path in tmp_path.glob("*.new*")) == []


@pytest.mark.slow
def test_several_at_once_make_one(tmp_path: Path) -> None:
    processes = [start(WORKING, tmp_path, name) for name in ("a", "b", "c")]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 3
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
