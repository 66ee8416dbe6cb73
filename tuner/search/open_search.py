"""Opens the search of a launch in its storage; a file that cannot be used is made anew."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from chorale.synth.errors import ChoraleError
from chorale.tuner.files.damaged_files import set_file_aside
from chorale.tuner.search.search import Search, SearchPlan
from chorale.tuner.search.storage import open_storage, unreachable
from chorale.tuner.trials.records import TrialRecord

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
