"""What a failure of the search is blamed on: the storage, or the sampler."""

from __future__ import annotations

from chorale.synth.errors import CheckFailed, ChoraleError, Unavailable

_STORAGES = ("sqlalchemy", "sqlite3", "psycopg", "pymysql", "MySQLdb", "redis", "grpc", "optuna.storages")
"""Packages whose errors come from where trials are stored."""

_RULES = {
    "sampler": "the sampler must be able to choose a point",
    "pruner": "the pruner must be able to decide on a trial",
}


def search_failure(error: Exception, part: str = "sampler") -> ChoraleError:
    """Return the error that says what failed: `error` came out of the storage, or of the `part` of a search."""
    if _is_of_storage(error):
        way_out = "repair `storage`, then go on with --resume: the launch's journal has every trial"
        return Unavailable("the Optuna storage must keep working", error, way_out)
    way_out = f"choose another `{part}`, then go on with --resume: the launch's journal has every trial"
    return CheckFailed(_RULES[part], f"{type(error).__name__}: {error}", way_out)


def _is_of_storage(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is one of files, databases or their drivers."""
    while error is not None:
        modules = {kind.__module__ for kind in type(error).__mro__}
        is_driver = any(module.split(".")[0] in _STORAGES or module.startswith("optuna.storages") for module in modules)
        if isinstance(error, OSError) or is_driver or type(error).__name__ == "StorageInternalError":
            return True
        error = error.__cause__
    return False
