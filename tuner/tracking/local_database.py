"""MLflow's database in a file: whether it is damaged, and how a new one comes in its place."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from chorale.synth.errors import Unavailable
from chorale.tuner.files.damaged_files import set_file_aside

CHECK_LIMIT_S = 5.0
DATABASE_ATTEMPTS = 2
_STEPS_PER_LOOK = 100_000
_WAY_OUT = "`chorale campaign repair NAME` sets it aside and makes a new one from the journals"


class DamagedDatabase(Unavailable):
    """The file of MLflow's database is damaged; asking again will not help."""


def database_file(uri: str) -> Path | None:
    """Return the file of the SQLite database at `uri`, None for what is no such file."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def require_undamaged(uri: str) -> None:
    """Raise DamagedDatabase if `uri` names a file that is no whole SQLite database.

    A large one is checked for `CHECK_LIMIT_S`; one that is locked, missing or empty counts as whole.
    """
    file = database_file(uri)
    if file is None or not file.exists():
        return
    if not file.is_file():
        raise DamagedDatabase("MLflow's database must be a file", file, _WAY_OUT)
    damage = _damage(file)
    if damage:
        raise DamagedDatabase("MLflow's database must be undamaged", f"{file}: {damage}", _WAY_OUT)


def require_finished(uri: str) -> None:
    """Raise DamagedDatabase if `uri` names a file that MLflow began to fill and did not finish: without an experiment.

    Only for a database of which MLflow has said that it cannot use it: another process may be about to finish it.
    """
    file = database_file(uri)
    if file is None or not file.is_file():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_read_only(file)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not ("experiments" in tables and connection.execute("SELECT 1 FROM experiments").fetchone()):
            value = f"{file}: its process ended before the first experiment"
            raise DamagedDatabase("MLflow's database must have been made to its end", value, _WAY_OUT)


def set_database_aside(uri: str) -> Path:
    """Rename the file of the database at `uri`, with its write-ahead log; return its new path."""
    file = database_file(uri)
    if file is None:
        raise Unavailable("only a database in a file can be set aside", uri, "repair it with its own tools")
    aside = set_file_aside(file)
    for suffix in ("-wal", "-shm"):  # they would be played into the new database
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
    forget_connections(uri)
    return aside


def try_databases_seldom() -> None:
    """A database that does not answer must cost seconds: MLflow would try ten times, for 100 s."""
    from mlflow.store.db import utils  # noqa: PLC0415

    utils.MAX_RETRY_COUNT = DATABASE_ATTEMPTS
    os.environ.setdefault("PGCONNECT_TIMEOUT", "5")


def _damage(file: Path) -> str | None:
    deadline_s = time.monotonic() + CHECK_LIMIT_S
    connection = None
    try:
        connection = _read_only(file)
        connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS_PER_LOOK)
        verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:  # locked, interrupted by the limit, or not readable: MLflow itself will say
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        if connection is not None:
            connection.close()
    return None if verdict == "ok" else " ".join(verdict.split())


def _read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)


def forget_connections(uri: str) -> None:
    """Let MLflow open the database again: it keeps connections, which would go on with the file set aside."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Registry  # noqa: PLC0415
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Tracking  # noqa: PLC0415
    from mlflow.tracking._model_registry.utils import _get_store_registry  # noqa: PLC0415
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry  # noqa: PLC0415

    for store in (Registry, Tracking):
        for name in [name for name in store._engine_map if name == uri]:
            store._engine_map.pop(name).dispose()
    for registry in (_tracking_store_registry, _get_store_registry()):  # type: ignore[no-untyped-call]
        registry._get_store_with_resolved_uri.cache_clear()
