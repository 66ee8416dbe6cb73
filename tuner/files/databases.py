"""Find out which tool created the tables in a user's database, without creating or changing anything."""

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

PATIENCE_S = 1.5
_OPTUNA = frozenset({"studies", "trials", "study_directions"})
_MLFLOW = frozenset({"experiments", "runs", "alembic_version"})


def sqlite_file(uri: str) -> Path | None:
    """Return the file of the SQLite database at `uri`, or None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def kind_of_tables(tables: Collection[str]) -> str | None:
    """Return the tool that created `tables`, MLflow or Optuna; None if the tables belong to neither."""
    if set(tables) >= _OPTUNA:
        return "Optuna"
    return "MLflow" if set(tables) >= _MLFLOW else None


def tables_in(file: Path) -> frozenset[str]:
    """Return the table names in a SQLite file, opened read-only. Raises sqlite3.Error for any other file."""
    if file.exists() and not file.is_file():
        raise sqlite3.OperationalError("it is not a regular file")
    with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=PATIENCE_S)) as connection:
        return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))


def tables_at(uri: str) -> frozenset[str]:
    """Return the table names in the database at `uri`, without waiting long for a server.

    Raises errors from SQLAlchemy and database drivers.
    """
    import sqlalchemy  # noqa: PLC0415 - takes half a second to import

    limits = {} if uri.startswith(("sqlite", "mssql", "oracle")) else {"connect_timeout": 2}
    engine = sqlalchemy.create_engine(uri, connect_args=limits, poolclass=sqlalchemy.pool.NullPool)
    try:
        return frozenset(sqlalchemy.inspect(engine).get_table_names())
    finally:
        engine.dispose()
