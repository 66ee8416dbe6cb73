"""The store of a launch: a journal of trials and the files that they name; the launches of a folder, and repair."""

import json
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from chorale.runners.measurement.machine import acquire_lock
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.synth.redaction import HIDDEN
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.trials import journal as journals
from chorale.tuner.trials.records import CompleteTrial, FinalComparison, RankedTrial, TrialRecord, ranked_trials

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that end a launch wait until the block has ended. In other threads than the first none arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    for late in came[:1]:
        signal.raise_signal(late)


_log = logging.getLogger("chorale.store")

MAX_UNSAVED = 3
JOURNAL = "trials.jsonl"
LAUNCH_COPY = "launch.json"


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """A line of the journal, or the content of the file at `path`."""

    content: bytes
    path: Path | None = None


class Store:
    """One launch in a folder: `trials.jsonl`, `schedules/ID.parquet`, `programs/ID.xml`, `optuna.journal`.

    Only one process may use it (a lock on the folder). What cannot be written (full disk) is kept in memory, in order,
    and retried with every later write and in `recover`; nothing is dropped. Callers stop measuring when it `is_stuck`.
    """

    def __init__(
        self,
        folder: Path,
        launch: journals.Launch | None = None,
        write: journals.Write = os.write,
        patience_s: float = 0.0,
    ) -> None:
        """Open the launch in `folder`, which must exist; a `launch` is given for a new one.

        Another process that works in it is given `patience_s` to end; then Unavailable.
        """
        self.folder = folder
        way_out = "wait for the other process, or start a new launch without --resume"
        refusal = Unavailable("a launch must have one writer", f"another process works in {folder}", way_out)
        self._lock = acquire_lock(folder / "lock", patience_s, refusal)
        try:
            self.journal = journals.Journal(folder / JOURNAL, write, patience_s)
        except BaseException:
            self._lock.release()
            raise
        self._pending: deque[_Unsaved] = deque()
        self._complaint = ""
        self._waited_in_vain = False
        self._saved_files: set[Path] = set()
        self.trials: list[TrialRecord] = []
        self.final: FinalComparison | None = None
        self.is_resumed = launch is None
        try:
            self.launch = self._opened(launch)
        except BaseException:
            self.close()
            raise

    def _opened(self, launch: journals.Launch | None) -> journals.Launch:
        """Start a new journal for `launch`, or, if it is None, resume the existing one."""
        if launch is not None:
            # Write the first line, and a copy of it beside the journal, from which it can be repaired
            line = journals.launch_line(launch)
            write_file(self.folder / LAUNCH_COPY, line + b"\n")
            try:
                self.journal.append(line)
            except OSError as error:
                way_out = "free some space, or point CHORALE_HOME at another folder"
                raise Unavailable("a journal must be writable", f"{self.folder}: {error.strerror}", way_out) from error
            return launch
        if self.journal.torn_bytes:
            aside = f"{self.journal.path.name}.torn"
            _log.warning("the journal ended in an unfinished line; it was set aside in %s", aside)
        content = journals.parse_lines(self.journal.lines())
        begun = require_whole(content, self.folder)
        self.trials, self.final = list(content.records), content.final
        self._pending.append(_Unsaved(journals.record_line(journals.WriterChange(uuid.uuid4().hex))))
        self._save()
        return begun

    def add(self, record: TrialRecord | FinalComparison) -> None:
        """Record a finished trial or a final; on disk when this returns, or kept in memory with a warning.

        JournalLost, and the record counts for nothing, if another process goes on with this launch.
        """
        with uninterrupted():
            self._pending.append(_Unsaved(journals.record_line(record)))
            self._save()
            if isinstance(record, FinalComparison):
                self.final = record
            else:
                self.trials.append(record)

    def keep(self, schedule_id: str, schedule: bytes, program_id: str, program: str) -> None:
        """Keep a schedule, unless its id is empty, and a program under their content ids, if they are not there yet."""
        files = {self.schedule_path(schedule_id): schedule} if schedule_id else {}
        files[self.program_path(program_id)] = program.encode()
        with uninterrupted():
            for path, content in files.items():
                if path not in self._saved_files and not path.exists():
                    self._pending.append(_Unsaved(content, path))
                self._saved_files.add(path)
            self._save()

    @property
    def report_path(self) -> Path:
        """Path of the report of the launch, which may not exist yet."""
        return self.folder / "report.html"

    def schedule_path(self, schedule_id: str) -> Path:
        return self.folder / "schedules" / f"{schedule_id}.parquet"

    def program_path(self, program_id: str) -> Path:
        return self.folder / "programs" / f"{program_id}.xml"

    def trace_path(self, trial_id: str) -> Path:
        """Return the path of a finalist's step times, for Perfetto; the file is missing if the runner cannot trace."""
        return self.folder / "traces" / f"{trial_id}.json"

    @property
    def is_stuck(self) -> bool:
        """Return whether so many trials wait for the disk that no more should be measured."""
        return self._unsaved_trials >= MAX_UNSAVED

    @property
    def _unsaved_trials(self) -> int:
        return sum(unsaved.path is None for unsaved in self._pending)

    def recover(self, patience_s: float = journals.RECOVERY_S, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Write what still waits, trying again for about `patience_s`, once; return whether nothing is left."""
        waited_s = 0.0
        while True:
            with uninterrupted():
                if self._save():
                    break
            if waited_s >= patience_s or self._waited_in_vain:
                self._waited_in_vain = True
                return False
            sleep(1.0)
            waited_s += 1.0
        self._waited_in_vain = False
        return True

    def settle(self, patience_s: float = journals.RECOVERY_S, sleep: Callable[[float], None] = time.sleep) -> None:
        """Write what is still waiting; retry for about `patience_s`.

        If the disk does not recover, everything goes to a folder in the system's temporary folder, or as a last resort
        the trials go to the log. Raises Unavailable with the location.
        """
        if not self.recover(patience_s, sleep):
            rescue = _rescue(self._pending, self.folder)
            rule = f"finished trials must be saved ({self._unsaved_trials} wait)"
            way_out = (
                f"they are in {rescue}; free some space, copy its folders into {self.folder} "
                f"and append its {JOURNAL} to the one there, then --resume"
            )
            raise Unavailable(rule, self._complaint, way_out)

    def require_ours(self) -> None:
        """Raise JournalLost if another process goes on with this launch."""
        self.journal.require_ours()

    def close(self) -> None:
        """Release the folder. Safe to call twice."""
        self.journal.close()
        self._lock.release()

    def _save(self) -> bool:
        """Write as much of what waits as possible, in order; return whether nothing is left."""
        while self._pending:
            unsaved = self._pending[0]
            try:
                if unsaved.path is None:
                    self.journal.append(unsaved.content)
                else:
                    unsaved.path.parent.mkdir(exist_ok=True)
                    write_file(unsaved.path, unsaved.content)
            except journals.JournalLost:
                self._pending.clear()
                raise
            except (OSError, Unavailable) as error:
                if not self._complaint:
                    _log.error("cannot save results: %s; they are kept in memory and tried again", error)
                self._complaint = str(error)
                return False
            self._pending.popleft()
        if self._complaint:
            _log.info("the disk takes data again; everything measured is saved")
            self._complaint = ""
        return True


def is_begun(folder: Path) -> bool:
    """Return whether the journal in `folder` has its first line: a crash may happen between creating and writing it."""
    journal = folder / JOURNAL
    return os.path.lexists(journal) and b"\n" in journals.read_journal(journal)


def read_launch(folder: Path) -> journals.Launch:
    """Return the launch in `folder`, which another process may be working on."""
    return require_whole(
        journals.parse_lines(journals.whole_lines(journals.read_journal(folder / JOURNAL))[:1]), folder
    )


def require_whole(content: journals.JournalContent, folder: Path) -> journals.Launch:
    """Return the launch of a journal in `folder`. Raises InvalidInput that names the first damaged line."""
    if content.damaged or content.launch is None:
        damage = f"line {content.damaged[0].number}" if content.damaged else "line 1"
        reason = f" ({content.damaged[0].reason})" if content.damaged else ""
        way_out = f"see `chorale campaign check {folder.parent.name}`, then `chorale campaign repair`"
        value = f"{damage} of {folder / JOURNAL}{reason}"
        raise InvalidInput("every line of a journal must be a record", value, way_out)
    return content.launch


def _rescue(pending: Iterable[_Unsaved], folder: Path) -> str:
    """Write the unsaved content into a new temporary folder laid out like `folder`; return its path."""
    try:
        rescue = Path(tempfile.mkdtemp(prefix="chorale-unsaved-"))
        with (rescue / JOURNAL).open("wb") as journal:
            for unsaved in pending:
                if unsaved.path is None:
                    journal.write(unsaved.content + b"\n")
                    continue
                copy = rescue / unsaved.path.relative_to(folder)
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(unsaved.content)
    except OSError:
        for unsaved in pending:
            if unsaved.path is None:
                _log.error("unsaved: %s", unsaved.content.decode())
        return "the log above"
    return str(rescue)


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """The state of a launch on disk; `folder` holds its files."""

    folder: Path
    launch: journals.Launch
    trials: tuple[TrialRecord, ...]
    final: FinalComparison | None

    @property
    def ranked_trials(self) -> list[RankedTrial]:
        """The trials to choose the best from: the finalists, or all before the final comparison."""
        complete = [trial for trial in self.trials if isinstance(trial, CompleteTrial)]
        return ranked_trials(complete, self.final)


def read_snapshot(folder: Path) -> LaunchSnapshot:
    """Return what the launch in `folder` has written in whole lines. CheckFailed for a journal that is not readable."""
    rule, way_out = "the journal of a launch must be readable", f"see `chorale campaign check {folder.parent.name}`"
    try:
        content = journals.parse_lines(journals.whole_lines(journals.read_journal(folder / JOURNAL)))
        launch = require_whole(content, folder)
    except InvalidInput as error:
        raise CheckFailed(rule, f"launch {folder.name}: {error.value}", way_out) from error
    return LaunchSnapshot(folder, launch, content.records, content.final)


_launch_log = logging.getLogger("chorale.tune")


def open_store(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    *,
    launch_id: str | None = None,
    patience_s: float = 0.0,
) -> Store:
    """Return the store of a new launch, or with `resume` of the newest one if there is any.

    With a `launch_id` the launch with this id is resumed, or started if there is none, so that a restart after a crash
    need not know how far it came; its former process gets `patience_s` to end. A resumed launch must have the same
    conditions; its budget, search space and sampler may differ.
    """
    folders = journals.launch_folders(home, campaign.name)
    begun = [folder for folder in folders if is_begun(folder)] if resume or launch_id is not None else []
    if launch_id is not None:
        begun = [folder for folder in begun if read_launch(folder).launch_id == launch_id]
    conditions = journals.conditions_of(campaign, topology)
    if begun:
        store = Store(begun[-1], patience_s=patience_s)
        try:
            journals.check_same_conditions(store.launch, conditions)
        except InvalidInput:
            store.close()
            raise
        _launch_log.info(
            "resuming launch %d of %s with %d trials", store.launch.number, campaign.name, len(store.trials)
        )
        return store
    number = int(folders[-1].name) + 1 if folders else 1
    if resume:
        _launch_log.info("nothing to resume for %s: this is its first launch", campaign.name)
    elif folders:
        _launch_log.info(
            "launch %d of %s; the earlier ones stay (--resume goes on with the newest)", number, campaign.name
        )
    document = campaign.model_dump(by_alias=True, mode="json")
    launch = journals.Launch(launch_id or uuid.uuid4().hex, number, conditions, document, time.time())
    return Store(home.create(home.campaign(campaign.name) / str(number)), launch)


def campaign_rows(home: Home) -> list[dict[str, Any]]:
    """Return name, network, launches, trials and state of each campaign, by name.

    state: of the newest launch: `ended` with a final comparison, else `unfinished`; `damaged` if its journal is
    unreadable
    """
    rows: list[dict[str, Any]] = []
    for name in sorted(path.name for path in home.campaigns.glob("*") if path.is_dir()):
        folders = journals.launch_folders(home, name)
        if not folders:
            continue
        content = None
        with suppress(InvalidInput):
            content = journals.parse_lines(journals.whole_lines(journals.read_journal(folders[-1] / JOURNAL)))
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
    """Return the campaign of the newest launch of `name`, as its journal has it. InvalidInput if that cannot go on."""
    folders = journals.launch_folders(home, name)
    if not folders:
        value = f"{name} in {home.campaigns}"
        raise InvalidInput("a campaign must have been launched", value, "see `chorale campaign list`")
    document = journals.stored_campaign(read_launch(folders[-1]))
    if HIDDEN in json.dumps(document):
        way_out = "go on with `chorale tune FILE --resume`"
        raise InvalidInput("a journal has no passwords, which this campaign needs", name, way_out)
    return Campaign.model_validate(document)


BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class LaunchHealth:
    """Condition of the journal of the launch in `folder`. A problem is one line; without problems the file is complete.

    lines: number of complete lines
    """

    folder: Path
    lines: tuple[bytes, ...]
    content: journals.JournalContent
    torn_bytes: int
    problems: tuple[str, ...]

    @property
    def document(self) -> Mapping[str, Any]:
        """The same as JSON."""
        return {
            "folder": str(self.folder),
            "ok": not self.problems,
            "trials": len({record.trial_id for record in self.content.records}),
            "damaged_lines": [{"line": line.number, "reason": line.reason} for line in self.content.damaged],
            "repeated": list(self.content.repeated),
            "torn_bytes": self.torn_bytes,
            "problems": list(self.problems),
        }


def launch_folder(home: Home, name: str, number: int | None = None) -> Path:
    """Return the folder of launch `number` of a campaign, by default the newest. Raises InvalidInput if there
    is none.
    """
    folders = journals.launch_folders(home, name)
    chosen = [folder for folder in folders if number is None or int(folder.name) == number]
    if not chosen:
        value = f"{name} in {home.campaigns}" + (f", launch {number}" if number is not None else "")
        raise InvalidInput("a campaign must have been launched", value, "check the name, or CHORALE_HOME")
    return chosen[-1]


def check_launch(folder: Path) -> LaunchHealth:
    """Look at the journal of the launch in `folder`; changes nothing."""
    text = journals.read_journal(folder / JOURNAL)
    torn_bytes = len(text) - (text.rfind(b"\n") + 1)
    lines = tuple(journals.whole_lines(text))
    content = journals.parse_lines(lines)
    problems = [f"journal: line {line.number}: {line.reason}" for line in content.damaged]
    if not lines:
        problems.append("journal: empty")
    problems += [f"journal: trial {name[:12]} was recorded more than once" for name in content.repeated]
    if torn_bytes:
        problems.append(f"journal: an unfinished line of {torn_bytes} bytes at its end")
    return LaunchHealth(folder, lines, content, torn_bytes, tuple(problems))


def repair_launch(folder: Path) -> tuple[LaunchHealth, list[str]]:
    """Rewrite the journal with its good lines; return its condition before, and the actions, one line each.

    A copy of the original file is kept next to it. Raises Unavailable if a process works on the launch, and CheckFailed
    if the first line is lost and has no copy, because the rest is useless without it.
    """
    refusal = Unavailable("a launch must be at rest", f"a process works in {folder}", "wait for it, or stop it")
    lock = acquire_lock(folder / "lock", 0.0, refusal)
    try:
        health = check_launch(folder)
        if not health.problems:
            return health, []
        path, copy = folder / JOURNAL, folder / LAUNCH_COPY
        good, done = _good_lines(health)
        if health.content.launch is None:
            if not copy.is_file():
                way_out = f"restore {path} from a copy, or start a new launch"
                raise CheckFailed("the first line of a journal must be readable", f"{path}, no {copy.name}", way_out)
            good.insert(0, copy.read_bytes().rstrip(b"\n"))
            done.append(f"restored the first line from {copy.name}")
        backup = set_backup(path)
        write_file(path, b"".join(line + b"\n" for line in good))
        return health, [f"copied the journal to {backup}", *done]
    finally:
        lock.release()


def _good_lines(health: LaunchHealth) -> tuple[list[bytes], list[str]]:
    """Return the lines to keep, and which others are lost."""
    damaged = {line.number: line.reason for line in health.content.damaged}
    good: list[bytes] = []
    lost: list[str] = []
    recorded: set[str] = set()
    for number, line in enumerate(health.lines, 1):
        key = None if number in damaged else journals.record_key(line)
        if number in damaged:
            lost.append(f"lost line {number}: {damaged[number]}")
        elif key is not None and key in recorded:
            lost.append(f"removed line {number}: trial {key[:12]} was recorded before")
        else:
            good.append(line)
            recorded |= {key} if key is not None else set()
    return good, lost + (["lost the unfinished line at its end"] if health.torn_bytes else [])


def set_backup(path: Path) -> Path:
    """Copy the file at `path` to the first free PATH.backup-N; return the copy."""
    number = 1
    while (backup := path.with_name(f"{path.name}.{BACKUP}-{number}")).exists():
        number += 1
    return Path(shutil.copy2(path, backup))
