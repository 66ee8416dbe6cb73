"""Optuna storages for a launch's study: a journal file, a database or Redis."""

import re
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from chorale.job.files import open_regular
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable
from chorale.synth.names import name_among
from chorale.synth.redaction import redacted
from chorale.tuner.config.values import with_password
from chorale.tuner.files.databases import kind_of_tables, sqlite_file, tables_at, tables_in
from chorale.tuner.trials.journal import drop_torn_end

_RULE = "`storage` is neither a database, nor Redis, nor the path of a journal file: {}"
_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb", "mssql", "oracle", "redis", "rediss")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+_.-]+:/")


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """Return the Optuna storage at `url`, which may be a path, or one in the file `journal`.

    If `url` was stored without its password, the password is taken from CHORALE_STORAGE. The caller must be the file's
    only writer. An incomplete last line, left by a crash, is dropped.
    """
    try:
        if url is None:
            drop_torn_end(journal)
            Path(f"{journal}.lock").unlink(missing_ok=True)  # left by a process that was killed
            return JournalStorage(JournalFileBackend(str(journal)))
        address = re.sub("^file:(//)?", "", with_password(url, "CHORALE_STORAGE"))  # as MLflow accepts it
        is_path = _SCHEME.match(address) is None
        scheme = address.partition(":")[0].partition("+")[0].lower()
        if not is_path:
            name_among("kind of storage", scheme, _SCHEMES)
            if "://" not in address:
                raise InvalidInput(_RULE, address, f"write `{scheme}://`, and a third slash before the path of a file")
            if scheme.startswith("redis"):
                return JournalStorage(optuna.storages.journal.JournalRedisBackend(address))
        file = Path(address) if is_path else sqlite_file(address)
        if file is not None and file.is_dir():
            name = file / "optuna.journal" if is_path else f"{address.rstrip('/')}/optuna.db"
            raise InvalidInput(_RULE, f"{file} is a folder", f"name a file in it: {name}")
        if is_path:
            path = Path(address)
            if not path.absolute().parent.is_dir():
                folder = path.absolute().parent
                raise InvalidInput(_RULE, f"{path}: no folder {folder}", "create it, or name another file")
            if path.exists():
                with open_regular(path) as stream:
                    start = stream.read(1 << 16)
                if start.startswith(b"SQLite format 3\0"):
                    is_mlflow = kind_of_tables(tables_in(path)) == "MLflow"
                    whose = "MLflow's database" if is_mlflow else "a database of SQLite"
                    way_out = "give Optuna a file of its own" if is_mlflow else f"write sqlite:///{path}"
                    raise InvalidInput(_RULE, f"{path} is {whose}", way_out)
                if start and b'"op_code"' not in start.partition(b"\n")[0]:
                    raise InvalidInput(_RULE, f"{path} is not a journal of Optuna", "name a new file, or a journal")
            return JournalStorage(JournalFileBackend(str(path)))
        if file is None or file.exists():
            tables = tables_at(address) if file is None else tables_in(file)
            if kind_of_tables(tables) == "MLflow":
                way_out = "give Optuna a database of its own, or a file"
                raise InvalidInput(_RULE, f"{redacted(address)} is MLflow's database", way_out)
        return optuna.storages.get_storage(address)
    except ChoraleError:
        raise
    except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
        raise unreachable(error) from None


def unreachable(error: Exception) -> Unavailable:
    """Return the error to show to the user for an `error` from an Optuna storage."""
    way_out = "check `storage`; without it a journal file is used"
    if "no longer compatible with the table schema" in str(error):  # Optuna suggests pip, which would not help
        way_out = "name a database of this version, or, after a backup, run: optuna storage upgrade --storage URL"
        return Unavailable("the Optuna storage is of another version of Optuna: {}", error, way_out)
    return Unavailable("the Optuna storage cannot be reached: {}", error, way_out)
