"""Where Optuna keeps studies: a database of the user's, or a file beside the journal of the launch."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from chorale.synth.errors import ChoraleError, Unavailable
from chorale.tuner.config.address import with_password
from chorale.tuner.search.bounded_storage import bounded_storage
from chorale.tuner.trials.journal_file import RECOVERY_S, set_torn_end_aside

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
            address = with_password(url, STORAGE_VARIABLE)
            return bounded_storage(lambda: optuna.storages.get_storage(address))
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
