"""Where Optuna keeps the study of a launch: a database of the user's, or a file beside the journal of the launch."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from chorale.synth.errors import CheckFailed, ChoraleError, Unavailable
from chorale.tuner.config.values import with_password
from chorale.tuner.files.read_write import set_file_aside
from chorale.tuner.search.search import Search, SearchPlan
from chorale.tuner.trials.journal import RECOVERY_S, set_torn_end_aside
from chorale.tuner.trials.records import TrialRecord

STORAGE_VARIABLE = "CHORALE_STORAGE"
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
"""What a disk or a file server says that may take data again soon."""


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """Return the Optuna storage at `url`, or one in the file `journal`.

    A `url` that was stored without its password is completed from CHORALE_STORAGE. The caller is the only writer of
    the file; a torn end that a crash left is set aside.
    """
    try:
        if url is not None:
            return optuna.storages.get_storage(with_password(url, STORAGE_VARIABLE))
        set_torn_end_aside(journal)
        return JournalStorage(StudyJournal(str(journal)))
    except ChoraleError:
        raise
    except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
        raise unreachable(error) from None


def unreachable(error: Exception) -> Unavailable:
    """Return what an error of Optuna's storages means to the user."""
    way_out = "check `storage`; without it a journal file is used"
    return Unavailable("the Optuna storage must be reachable", error, way_out)


def storage_in_memory() -> BaseStorage:
    """Return an Optuna storage that ends with the process."""
    return InMemoryStorage()


class StudyJournal(JournalFileBackend):
    """Optuna's journal without a sync for every line: asking writes a line per dimension.

    Only a power cut can cost the latest lines; a search repairs its study from the journal of the launch.
    """

    def append_logs(
        self, logs: list[dict[str, Any]], patience_s: float = RECOVERY_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Add `logs`; a disk that takes nothing is tried again for about `patience_s`.

        Then OSError, with the file as it was.
        """
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        waited_s = 0.0
        while True:
            try:
                return self._append(text.encode())
            except OSError as error:
                if waited_s >= patience_s or error.errno not in _PASSING:
                    raise
            sleep(1.0)
            waited_s += 1.0

    def _append(self, content: bytes) -> None:
        before = os.path.getsize(self._file_path)
        try:
            with open(self._file_path, "ab") as journal:
                journal.write(content)
        except OSError:
            os.truncate(self._file_path, before)
            raise


_log = logging.getLogger("chorale.search")


def open_search(plan: SearchPlan, url: str | None, journal: Path, recorded: Sequence[TrialRecord]) -> Search:
    """Return the search of `plan` in the storage at `url`, or in the file `journal`, with the trials `recorded`.

    A storage of the plan's goes first. A file that cannot be used is set aside, and another is made out of `recorded`.
    """
    storage = plan.parts.storage
    try:
        return Search(plan, open_storage(url, journal) if storage is None else storage, recorded)
    except Exception as error:  # whatever Optuna makes of garbage; its storages each have their own types
        if url is not None or storage is not None:
            if isinstance(error, ChoraleError):
                raise
            raise unreachable(error) from None
        _log.warning("%s cannot be used (%s); a new one is made from the journal", journal, _one_line(error))
        _log.warning("the former is now %s", set_file_aside(journal))
    return Search(plan, open_storage(None, journal), recorded)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


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
