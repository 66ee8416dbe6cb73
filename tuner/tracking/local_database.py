"""MLflow's database in a file: how a new one is made.

MLflow makes its tables in dozens of steps, which take seconds. A process that is killed between them leaves a file that
MLflow cannot open again, and two that make them at the same time stop each other. So a new database is made next to its
place and then put there.
"""

from __future__ import annotations

import os
from pathlib import Path

from chorale.runners.measurement.machine import PRIVATE_FILE, PRIVATE_FOLDER, acquire_lock
from chorale.synth.errors import Unavailable
from chorale.tuner.files.databases import sqlite_file

PATIENCE_S = 120.0
"""How long to wait for another process that creates the database: enough at ten times the usual load."""

_SIDE_FILES = ("-wal", "-shm", "-journal")


def create_database(uri: str) -> None:
    """Make the SQLite database at `uri`, and its folder, for this user alone; do nothing for others, or if it is there.

    MLflow must be importable. Raises Unavailable if the file cannot be made.
    """
    file = sqlite_file(uri)
    if file is None or _is_there(file):
        return
    try:
        file.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        way_out = "wait for it, or end it"
        refusal = Unavailable("a database must be made by one process at a time", file, way_out)
        lock = acquire_lock(file.with_name(f"{file.name}.lock"), PATIENCE_S, refusal)
    except OSError as error:
        rule, way_out = "the folder of MLflow's database must be writable", "choose another CHORALE_HOME"
        raise Unavailable(rule, f"{file.parent}: {error.strerror}", way_out) from error
    try:
        if not _is_there(file):
            new = file.with_name(f"{file.name}.new")
            for suffix in ("", *_SIDE_FILES):  # of a process that was killed
                new.with_name(new.name + suffix).unlink(missing_ok=True)
            os.close(os.open(new, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))  # SQLite's other files get this mode, too
            _make_tables(f"sqlite:///{new.absolute()}")
            os.replace(new, file)
    finally:
        lock.release()


def _is_there(file: Path) -> bool:
    """Return whether the file has content. An empty file is created first so that only its user can read it."""
    return file.exists() and (not file.is_file() or file.stat().st_size > 0)


def _make_tables(uri: str) -> None:
    from mlflow.store.db import utils  # noqa: PLC0415 (seconds)

    engine = utils.create_sqlalchemy_engine_with_retry(uri)  # type: ignore[no-untyped-call]
    try:
        utils._initialize_tables(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()  # which writes what is in the log, and removes that
