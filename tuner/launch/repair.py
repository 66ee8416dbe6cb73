"""What the files of a launch are worth: `check` looks, `repair` loses damaged lines only and makes the rest anew."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.runners.measurement.machine import acquire_lock
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import set_file_aside, write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.tune import OPTUNA_FILE, search_plan, storage_url
from chorale.tuner.search.search import open_search, open_storage
from chorale.tuner.search.space import search_space
from chorale.tuner.tracking.local_database import database_problem, set_database_aside
from chorale.tuner.tracking.tracker import Tracker
from chorale.tuner.trials import journal as journals
from chorale.tuner.trials.store import JOURNAL, LAUNCH_COPY, Store

UPLOAD_PATIENCE_S = 60.0
BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class LaunchHealth:
    """What was found in the files of a launch. A problem is one line.

    journal: of the journal; nothing of it can be used where `content` is None
    others:  of what can be made anew from the journal
    """

    folder: Path
    content: journals.JournalContent | None
    torn_bytes: int
    journal: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def document(self) -> Mapping[str, Any]:
        """The same as JSON."""
        content = self.content
        damaged = [{"line": line.number, "reason": line.reason} for line in content.damaged] if content else []
        return {
            "folder": str(self.folder),
            "ok": not (self.journal or self.others),
            "trials": len({record.trial_id for record in content.records}) if content else 0,
            "damaged_lines": damaged,
            "repeated": list(content.repeated) if content else [],
            "torn_bytes": self.torn_bytes,
            "problems": [*self.journal, *self.others],
        }


def launch_folder(home: Home, name: str, number: int | None = None) -> Path:
    """Return the folder of launch `number` of a campaign, by default the newest. InvalidInput if there is none."""
    folders = journals.launch_folders(home, name)
    chosen = [folder for folder in folders if number is None or int(folder.name) == number]
    if not chosen:
        value = f"{name} in {home.campaigns}" + (f", launch {number}" if number is not None else "")
        raise InvalidInput("a campaign must have been launched", value, "check the name, or CHORALE_HOME")
    return chosen[-1]


def check_launch(home: Home, folder: Path) -> LaunchHealth:
    """Look at the journal of the launch in `folder`, at its Optuna file and at MLflow's database. Changes nothing."""
    journal: list[str] = []
    content, torn_bytes = None, 0
    try:
        text = journals.read_journal(folder / JOURNAL)
    except InvalidInput as error:
        journal.append(f"journal: {error.value}")
    else:
        torn_bytes = len(text) - (text.rfind(b"\n") + 1)
        content = journals.parse_lines(journals.whole_lines(text))
        journal += _journal_problems(content, torn_bytes)
    problems = []
    optuna = folder / OPTUNA_FILE
    try:
        if optuna.exists():
            journals.whole_lines(journals.read_journal(optuna))
            if not journals.read_journal(optuna).rpartition(b"\n")[2]:  # a torn end would be set aside by looking
                open_storage(None, optuna)
    except ChoraleError as error:
        problems.append(f"Optuna: {optuna.name} cannot be read: {error.value}")
    if (problem := database_problem(_mlflow_uri(home, content))) is not None:
        problems.append(f"MLflow: {problem}")
    return LaunchHealth(folder, content, torn_bytes, tuple(journal), tuple(problems))


def repair_launch(home: Home, folder: Path) -> tuple[LaunchHealth, list[str]]:
    """Repair the files of the launch in `folder`; return its health before, and what was done, a line each.

    What is replaced stays beside it. Unavailable if a process works on the launch; CheckFailed if its first line is
    lost, for nothing can be made out of the rest.
    """
    refusal = Unavailable("a launch must be at rest", f"a process works in {folder}", "wait for it, or stop it")
    lock = acquire_lock(folder / "lock", 0.0, refusal)
    try:
        health = check_launch(home, folder)
        done = _repaired_journal(health)
    finally:
        lock.release()
    aside = set_database_aside(_mlflow_uri(home, health.content))
    if aside is not None:
        done.append(f"MLflow: the damaged database is now {aside}, and a new one begins")
    # Give Optuna and MLflow what the journal has; return what was done
    store = Store(folder)
    try:
        campaign = Campaign.model_validate(journals.stored_campaign(store.launch))
        topology = load_topology(campaign.topology)
        plan = search_plan(campaign, store, search_space(campaign, topology))
        open_search(plan, storage_url(campaign), folder / OPTUNA_FILE, store.trials)
        tracker = Tracker(home, campaign, topology, store)
        tracker.start()
        tracked = tracker.finish(store.trials, store.final, "FINISHED", UPLOAD_PATIENCE_S)
    finally:
        store.close()
    uploaded = tracked.problem or f"{len(tracked.run_ids)} trials are there"
    return health, [*done, *[f"Optuna: {len(store.trials)} trials are there", f"MLflow: {uploaded}"]]


def _journal_problems(content: journals.JournalContent, torn_bytes: int) -> list[str]:
    problems = [f"journal: line {line.number}: {line.reason}" for line in content.damaged]
    if content.launch is None and not content.damaged:
        problems.append("journal: empty")
    problems += [f"journal: trial {name[:12]} was recorded more than once" for name in content.repeated]
    return problems + ([f"journal: an unfinished line of {torn_bytes} bytes at its end"] if torn_bytes else [])


def _mlflow_uri(home: Home, content: journals.JournalContent | None) -> str:
    launch = content.launch if content else None
    tracking = launch.campaign.get("tracking") if launch else None
    return (tracking or {}).get("mlflow_uri") or home.mlflow_uri


def _repaired_journal(health: LaunchHealth) -> list[str]:
    """Write the whole lines of the journal anew; return what was done."""
    path = health.folder / JOURNAL
    copy = health.folder / LAUNCH_COPY
    first_lost = health.content is None or health.content.launch is None
    if first_lost and not copy.is_file():
        way_out = f"restore {path} from a copy, or start a new launch"
        raise CheckFailed("the first line of a journal must be readable", f"{path}, no {copy.name}", way_out)
    if not health.journal:
        return []
    if health.content is None:
        aside = set_file_aside(path)
        write_file(path, copy.read_bytes())
        return [f"the journal was no readable file: it is now {aside}, and a new one begins without trials"]
    journal = journals.Journal(path)  # locked: nobody writes meanwhile; a torn end is set aside
    try:
        backup = set_backup(path)
        lines = journal.lines()
        done = [f"copied the journal to {backup}"]
        if journal.torn_bytes:
            done.append(f"set the unfinished line at its end aside in {path.name}.torn")
        good, removed = _good_lines(lines, health.content)
        if health.content.launch is None:
            good.insert(0, copy.read_bytes().rstrip(b"\n"))
            done.append(f"restored the first line from {copy.name}")
        write_file(path, b"".join(line + b"\n" for line in good))
        return done + removed
    finally:
        journal.close()


def _good_lines(lines: list[bytes], content: journals.JournalContent) -> tuple[list[bytes], list[str]]:
    """Return the lines to keep, and which others are lost."""
    damaged = {line.number: line.reason for line in content.damaged}
    good, removed = [], []
    recorded: set[str] = set()
    for number, line in enumerate(lines, 1):
        key = None if number in damaged else journals.record_key(line)
        if number in damaged:
            if number > 1 or content.launch is not None:
                removed.append(f"lost line {number}: {damaged[number]}")
        elif key is not None and key in recorded:
            removed.append(f"removed line {number}: trial {key[:12]} was recorded before")
        else:
            good.append(line)
            recorded |= {key} if key is not None else set()
    return good, removed


def set_backup(path: Path) -> Path:
    """Copy the file at `path` to the first free PATH.backup-N; return the copy."""
    number = 1
    while (backup := path.with_name(f"{path.name}.{BACKUP}-{number}")).exists():
        number += 1
    return Path(shutil.copy2(path, backup))
