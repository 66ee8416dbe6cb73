"""One writer per journal, also where its lock file is gone or locks do not hold."""

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from chorale.tuner.trials.journal import JournalLost, Launch
from chorale.tuner.trials.records import Candidate
from chorale.tuner.trials.store import Store
from tests.campaigns import complete

LAUNCH = Launch("launch", 1, {"topology": "x"}, {"name": "small"}, 1e9)
TRIALS = [complete(Candidate("bfb", channels=number), number=number) for number in range(1, 5)]


def replace_files(folder: Path) -> None:
    """Put a copy in place of the journal, as file servers and restored backups do: no lock holds."""
    shutil.copy(folder / "trials.jsonl", folder / "copy")
    os.replace(folder / "copy", folder / "trials.jsonl")


def recorded(folder: Path) -> Counter[str]:
    lines = map(json.loads, (folder / "trials.jsonl").read_text().splitlines())
    return Counter(line["trial_id"] for line in lines if "trial_id" in line)


def test_who_comes_second_where_no_lock_holds_ends_the_first(tmp_path: Path) -> None:
    first = Store(tmp_path, LAUNCH)
    first.add(TRIALS[0])
    replace_files(tmp_path)
    second = Store(tmp_path)
    with pytest.raises(JournalLost, match="was replaced by another file"):
        first.add(TRIALS[1])
    for trial in TRIALS[1:]:
        second.add(trial)
    for _ in range(2):  # it stays so, and nothing of it is written later
        with pytest.raises(JournalLost):
            first.add(TRIALS[2])
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_between_writing_and_forgetting_doubles_nothing(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(number, signal.default_int_handler)
    store = Store(tmp_path, LAUNCH)
    append = store.journal.append

    def interrupted(line: bytes) -> None:
        append(line)
        signal.raise_signal(number)

    monkeypatch.setattr(store.journal, "append", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.add(TRIALS[0])
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
        store.close()
    assert list(recorded(tmp_path).values()) == [1]
    assert [trial.trial_id for trial in store.trials] == [TRIALS[0].trial_id]


def test_a_line_that_went_into_a_file_without_a_name_counts_for_nothing(tmp_path: Path) -> None:
    """Another process may put a copy in place of the journal while a line is being written."""

    def write(descriptor: int, line: bytes | memoryview) -> int:
        replace_files(tmp_path)
        return os.write(descriptor, line)

    store = Store(tmp_path, LAUNCH)
    store.journal._write = write
    with pytest.raises(JournalLost, match="replaced"):
        store.add(TRIALS[0])
    assert store.trials == []
    assert recorded(tmp_path) == {}
    store.close()
