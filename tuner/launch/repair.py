"""Condition of a launch's journal: `check` reports it, `repair` drops damaged lines and nothing else.

Optuna's file and MLflow's database are derived from the journal: `--resume` adds what they lack.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.runners.measurement.machine import acquire_lock
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.trials import journal as journals
from chorale.tuner.trials.store import JOURNAL, LAUNCH_COPY

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
