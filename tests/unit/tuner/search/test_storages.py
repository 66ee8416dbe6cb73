"""What people write as `storage` of a campaign: each mistake has its own message, and a journal file is a storage."""

import sqlite3
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from chorale.synth.errors import ChoraleError
from chorale.tuner.search.storages import open_storage


def make_database(file: Path, *tables: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (id INTEGER)")


def test_a_path_is_a_journal_that_other_tools_of_optuna_read(tmp_path: Path) -> None:
    for _ in range(2):  # made, and found again
        optuna.create_study(
            storage=open_storage(str(tmp_path / "optuna.log"), tmp_path / "no"), study_name="a", load_if_exists=True
        )
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.log"))
    assert optuna.get_all_study_names(optuna.storages.JournalStorage(backend)) == ["a"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("{}/mlflow.db", "is MLflow's database"),
        ("sqlite:///{}/mlflow.db", "is MLflow's database"),
        ("{}/optuna.db", "write sqlite:///"),
        ("sqlite:///{}/old.db", "optuna storage upgrade"),
        ("{}/notes.txt", "is no journal of Optuna"),
        ("{}/none/optuna.log", "no folder"),
        ("{}", "is a folder"),
        ("sqlite:///{}", "is a folder"),
        ("sqlite:///{}/notes.txt", "not a database"),
        ("sqlte:///{}/new.db", "did you mean 'sqlite'"),
        ("sqlite:/new.db", "write `sqlite://`"),
        ("nodriver://nowhere/db", "choose from sqlite, postgresql"),
        ("postgresql://user@127.0.0.1:1/db", "Connection refused"),
    ],
)
def test_each_mistake_has_its_message(tmp_path: Path, address: str, words: str) -> None:
    make_database(tmp_path / "mlflow.db", "experiments", "runs", "alembic_version")
    optuna.create_study(storage=f"sqlite:///{tmp_path}/optuna.db")
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as new:
        new.execute(f"VACUUM INTO '{tmp_path}/old.db'")
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as old:
        old.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
    (tmp_path / "notes.txt").write_text("no journal\n" * 200)
    before = (tmp_path / "mlflow.db").read_bytes()
    with pytest.raises(ChoraleError, match=words):
        open_storage(address.format(tmp_path), tmp_path / "unused")
    assert (tmp_path / "mlflow.db").read_bytes() == before
