"""Stores a launch in a folder: its journal and the files named in it. Also lists and repairs launches."""

import json
import logging
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.synth.redaction import HIDDEN
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign, without_former_keys
from chorale.tuner.files.home import Home, write_file
from chorale.tuner.trials import journal as journals
from chorale.tuner.trials.records import CompleteTrial, FinalComparison, RankedTrial, TrialRecord, ranked_trials

JOURNAL = "trials.jsonl"
_log = logging.getLogger("chorale.tune")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block has ended, so that the journal and the state in memory agree.

    Does nothing outside the main thread, because Python delivers signals only to the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda late, _frame: came.append(late))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    for late in came[:1]:
        signal.raise_signal(late)


class Store:
    """Stores one launch in a folder: `trials.jsonl`, `schedules/ID.parquet`, `programs/ID.xml`, `optuna.journal`.

    Only one process at a time can use a store, because a store locks its journal. If the disk is full, writing is
    retried for a few seconds. After that the launch ends with Unavailable. A resumed launch repeats the unsaved trial.
    """

    def __init__(
        self,
        folder: Path,
        launch: journals.Launch | None = None,
        write: journals.Write = os.write,
        patience_s: float = 0.0,
    ) -> None:
        """Open the launch in `folder`, which must exist. Pass `launch` to start a new one.

        Raises Unavailable if another process still uses the launch after `patience_s` seconds.
        """
        self.folder = folder
        self.journal = journals.Journal(folder / JOURNAL, write, patience_s)
        self._saved_files: set[Path] = set()
        self.trials: list[TrialRecord] = []
        self.final: FinalComparison | None = None
        self.is_resumed = launch is None
        try:
            if launch is None:
                content = journals.parse_lines(self.journal.lines())
                self.launch = require_whole(content, folder)
                self.trials, self.final = list(content.records), content.final
                self._save(journals.WriterChange(uuid.uuid4().hex))
            else:
                self.launch = launch
                self._save(launch)
        except BaseException:
            self.close()
            raise

    def add(self, record: TrialRecord | FinalComparison) -> None:
        """Record a finished trial or the final comparison. The record is on disk when this returns.

        Raises JournalLost, and discards the record, if another process has taken over this launch. Raises Unavailable
        if the disk accepts no data.
        """
        with uninterrupted():
            self._save(record)
            if isinstance(record, FinalComparison):
                self.final = record
            else:
                self.trials.append(record)

    def keep(self, schedule_id: str, schedule: bytes, program_id: str, program: str) -> None:
        """Store a program and, unless its id is empty, a schedule under their content ids. Existing files are kept."""
        files = {self.schedule_path(schedule_id): schedule} if schedule_id else {}
        files[self.program_path(program_id)] = program.encode()
        with uninterrupted():
            for path, content in files.items():
                if path not in self._saved_files and not path.exists():

                    def write(path: Path = path, content: bytes = content) -> None:
                        path.parent.mkdir(exist_ok=True)
                        write_file(path, content)

                    journals.patiently(write)
                self._saved_files.add(path)

    def schedule_path(self, schedule_id: str) -> Path:
        return self.folder / "schedules" / f"{schedule_id}.parquet"

    def program_path(self, program_id: str) -> Path:
        return self.folder / "programs" / f"{program_id}.xml"

    def close(self) -> None:
        self.journal.close()

    def _save(self, record: journals.Launch | journals.JournalRecord) -> None:
        line = journals.journal_line(record)
        try:
            journals.patiently(lambda: self.journal.append(line))
        except OSError as error:
            way_out = "free some space, or point CHORALE_HOME at another folder, then --resume: it is measured again"
            raise Unavailable(
                "the journal cannot be written: {}", f"{self.folder}: {error.strerror}", way_out
            ) from error


def is_begun(folder: Path) -> bool:
    """Return whether the journal in `folder` has its first line, which may be missing after a crash at the start."""
    journal = folder / JOURNAL
    return os.path.lexists(journal) and b"\n" in journals.read_journal(journal)


def read_launch(folder: Path) -> journals.Launch:
    """Return the launch in `folder`, even while another process is working on it."""
    return require_whole(journals.read_content(folder / JOURNAL, most_lines=1), folder)


def require_whole(content: journals.JournalContent, folder: Path) -> journals.Launch:
    """Return the launch in the journal of `folder`. Raises InvalidInput with the first damaged line, if any."""
    if content.damaged or content.launch is None:
        damage = f"line {content.damaged[0].number}" if content.damaged else "line 1"
        reason = f" ({content.damaged[0].reason})" if content.damaged else ""
        way_out = f"see `chorale campaign check {folder.parent.name}`, then `chorale campaign repair`"
        value = f"{damage} of {folder / JOURNAL}{reason}"
        raise InvalidInput("the journal is damaged: {}", value, way_out)
    return content.launch


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """The state of a launch on disk when its `folder` was read."""

    folder: Path
    launch: journals.Launch
    trials: tuple[TrialRecord, ...]
    final: FinalComparison | None

    @property
    def ranked_trials(self) -> list[RankedTrial]:
        """Return the trials from which the best is chosen: the finalists or, without a final comparison, all trials."""
        complete = [trial for trial in self.trials if isinstance(trial, CompleteTrial)]
        return ranked_trials(complete, self.final)


def read_snapshot(folder: Path) -> LaunchSnapshot:
    """Return the launch's state in `folder`. An incomplete last line is ignored; other damage raises CheckFailed."""
    rule, way_out = "the journal of a launch must be readable", f"see `chorale campaign check {folder.parent.name}`"
    try:
        content = journals.read_content(folder / JOURNAL)
        launch = require_whole(content, folder)
    except InvalidInput as error:
        raise CheckFailed(rule, f"launch {folder.name}: {error.value}", way_out) from error
    return LaunchSnapshot(folder, launch, content.records, content.final)


def open_store(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    *,
    launch_id: str | None = None,
    patience_s: float = 0.0,
) -> Store:
    """Return the store of a new launch or, if `resume` is set and there is an earlier launch, of the newest one.

    If `launch_id` is given, the launch with this id is resumed, or started if it does not exist. After a crash, the
    same call can therefore be repeated, no matter how far the launch had got. The previous process gets `patience_s`
    seconds to end. A resumed launch must have the same conditions; budget, search space and sampler may differ.
    """
    folders = journals.launch_folders(home, campaign.name)
    begun = [folder for folder in folders if is_begun(folder)] if resume or launch_id is not None else []
    if launch_id is not None:
        begun = [folder for folder in begun if read_launch(folder).launch_id == launch_id]
    conditions = journals.conditions_of(campaign, topology)
    if begun:
        store = Store(begun[-1], patience_s=patience_s)
        for key, value in conditions.items():  # otherwise new trials would not be comparable with earlier ones
            if (before := store.launch.conditions.get(key)) != value:
                store.close()
                way_out = "undo the change, or start a new launch without --resume"
                raise InvalidInput(f"a resumed launch must keep its `{key}`", f"{value}, before {before}", way_out)
        _log.info("resuming launch %d of %s with %d trials", store.launch.number, campaign.name, len(store.trials))
        return store
    number = int(folders[-1].name) + 1 if folders else 1
    if resume:
        _log.info("nothing to resume for %s: this is its first launch", campaign.name)
    elif folders:
        _log.info("launch %d of %s; the earlier ones stay (--resume continues the newest)", number, campaign.name)
    document = campaign.model_dump(by_alias=True, mode="json")
    launch = journals.Launch(launch_id or uuid.uuid4().hex, number, conditions, document, time.time())
    return Store(home.create(home.campaign(campaign.name) / str(number)), launch)


def campaign_rows(home: Home) -> list[dict[str, Any]]:
    """Return a row per campaign, sorted by name: number of launches, and the newest one's trials, state and folder.

    The state is `ended` if the launch has a final comparison, `damaged` if its journal cannot be read, and otherwise
    `unfinished`.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted(path.name for path in home.campaigns.glob("*") if path.is_dir()):
        folders = journals.launch_folders(home, name)
        if not folders:
            continue
        content = None
        with suppress(InvalidInput):
            content = journals.read_content(folders[-1] / JOURNAL)
        state = "damaged"
        campaign: Mapping[str, Any] = {}
        if content is not None and content.launch is not None:
            campaign = content.launch.campaign
            state = "unfinished" if content.final is None else "ended"
        records = () if content is None else content.records
        rows.append(
            {
                "campaign": name,
                "topology": campaign.get("topology"),
                "collective": campaign.get("collective"),
                "launches": len(folders),
                "trials": len(records),
                "complete": sum(isinstance(record, CompleteTrial) for record in records),
                "state": state,
                "folder": str(folders[-1]),
            }
        )
    return rows


def launched_campaign(home: Home, name: str) -> Campaign:
    """Return the campaign in the newest launch's journal. Raises InvalidInput if the launch cannot be resumed."""
    document = dict(read_launch(launch_folder(home, name)).campaign)
    if HIDDEN in json.dumps(document):
        way_out = "continue with `chorale tune FILE --resume`"
        raise InvalidInput("the campaign {} needs a password, and journals store none", name, way_out)
    return Campaign.model_validate(without_former_keys(document))


def launch_folder(home: Home, name: str, number: int | None = None) -> Path:
    """Return the folder of launch `number` of a campaign (default: the newest). Raises InvalidInput without one."""
    folders = journals.launch_folders(home, name)
    chosen = [folder for folder in folders if number is None or int(folder.name) == number]
    if not chosen:
        value = f"{name} in {home.campaigns}" + (f", launch {number}" if number is not None else "")
        raise InvalidInput("no such campaign: {}", value, "see `chorale campaign list`, or check CHORALE_HOME")
    return chosen[-1]


def launch_health(folder: Path) -> dict[str, Any]:
    """Return a JSON document about the launch's journal in `folder`; `problems` has a line for each problem."""
    text = journals.read_journal(folder / JOURNAL)
    content = journals.parse_lines(text.split(b"\n")[:-1])
    problems = [f"journal: line {line.number}: {line.reason}" for line in content.damaged]
    if b"\n" not in text:
        problems.append("journal: empty")
    if torn_bytes := len(text) - (text.rfind(b"\n") + 1):
        problems.append(f"journal: an unfinished line of {torn_bytes} bytes at its end")
    return {
        "folder": str(folder),
        "ok": not problems,
        "trials": len(content.records),
        "damaged_lines": [{"line": line.number, "reason": line.reason} for line in content.damaged],
        "torn_bytes": torn_bytes,
        "problems": problems,
    }


def repair_launch(folder: Path) -> list[str]:
    """Drop a journal's damaged lines; return a line about each action. A copy of the old file is kept.

    Raises Unavailable if a process is using the launch, and CheckFailed if the first line is missing or damaged. The
    other lines are useless without the first.
    """
    path, health = folder / JOURNAL, launch_health(folder)
    journal = journals.Journal(path)
    try:
        if health["ok"]:
            return []
        lines, damaged = journal.lines(), {line["line"]: line["reason"] for line in health["damaged_lines"]}
        if not lines or 1 in damaged:
            way_out = f"restore {path} from a copy, or start a new launch"
            raise CheckFailed("the first line of the journal {} is damaged", path, way_out)
        number = 1
        while (backup := path.with_name(f"{path.name}.backup-{number}")).exists():
            number += 1
        shutil.copy2(path, backup)
        write_file(path, b"".join(line + b"\n" for number, line in enumerate(lines, 1) if number not in damaged))
        torn = ["lost the unfinished line at its end"] if health["torn_bytes"] else []
        lost = [f"lost line {number}: {reason}" for number, reason in damaged.items()]
        return [f"copied the journal to {backup}", *lost, *torn]
    finally:
        journal.close()
