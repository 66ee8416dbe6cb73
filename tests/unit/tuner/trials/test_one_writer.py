"""One writer per journal, also where its lock file is gone or locks do not hold."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from threading import Thread

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.journal_file import Journal, JournalLost
from chorale.tuner.trials.records import Candidate
from chorale.tuner.trials.store import Store
from tests.campaigns import complete

LAUNCH = Launch("launch", 1, {"topology": "x"}, {"name": "small"}, 1e9)
TRIALS = [complete(Candidate("bfb", channels=number), number=number) for number in range(1, 5)]


def replace_files(folder: Path) -> None:
    """Put copies in place of the journal and of the lock, as file servers and restored backups do: no lock holds."""
    (folder / "lock").unlink()
    shutil.copy(folder / "trials.jsonl", folder / "copy")
    os.replace(folder / "copy", folder / "trials.jsonl")


def recorded(folder: Path) -> Counter[str]:
    lines = map(json.loads, (folder / "trials.jsonl").read_text().splitlines())
    return Counter(line["trial_id"] for line in lines if "trial_id" in line)


def test_the_journal_is_locked_itself(tmp_path: Path) -> None:
    first = Store(tmp_path, LAUNCH)
    (tmp_path / "lock").unlink()
    with pytest.raises(Unavailable, match="one writer"):
        Store(tmp_path)
    first.add(TRIALS[0])
    first.close()
    Store(tmp_path).close()


def test_who_comes_second_where_no_lock_holds_ends_the_first(tmp_path: Path) -> None:
    first = Store(tmp_path, LAUNCH)
    first.add(TRIALS[0])
    replace_files(tmp_path)
    second = Store(tmp_path)
    with pytest.raises(JournalLost, match="one writer"):
        first.add(TRIALS[1])
    for trial in TRIALS[1:]:
        second.add(trial)
    for _ in range(2):  # it stays so, and nothing of it is written later
        with pytest.raises(JournalLost):
            first.add(TRIALS[2])
    first.settle()
    first.close()
    second.close()
    assert recorded(tmp_path) == Counter(trial.trial_id for trial in TRIALS)
    assert Store(tmp_path).trials == TRIALS


def test_a_line_of_somebody_else_ends_the_writer(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    with (tmp_path / "trials.jsonl").open("ab") as other:
        other.write(b"{}\n")
    with pytest.raises(JournalLost, match="lines of another process"):
        store.add(TRIALS[0])
    assert store.trials == []
    store.close()


def test_a_journal_of_the_same_length_by_somebody_else_ends_the_writer(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    store.add(TRIALS[0])
    path = tmp_path / "trials.jsonl"
    with path.open("r+b") as other:
        other.seek(-12, os.SEEK_END)
        other.write(b"00000000")
    with pytest.raises(JournalLost):
        store.add(TRIALS[1])
    store.close()


def test_a_removed_journal_ends_the_writer(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    (tmp_path / "trials.jsonl").unlink()
    with pytest.raises(JournalLost, match="was removed"):
        store.add(TRIALS[0])
    assert not (tmp_path / "trials.jsonl").exists()
    store.close()


def test_a_line_of_another_thread_that_is_being_written_is_no_second_writer(tmp_path: Path) -> None:
    threads: list[Thread] = []
    refused: list[JournalLost] = []

    def look() -> None:
        try:
            journal.require_ours()
        except JournalLost as error:
            refused.append(error)

    def write(descriptor: int, content: bytes | memoryview) -> int:
        taken = os.write(descriptor, content)
        threads.append(Thread(target=look))
        threads[-1].start()
        threads[-1].join(0.1)
        return taken

    journal = Journal(tmp_path / "journal", write)
    journal.append(b"line")
    threads[0].join(10.0)
    assert refused == []
    journal.close()
