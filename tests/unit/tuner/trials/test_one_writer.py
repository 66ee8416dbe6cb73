"""One writer per journal, also where its lock file is gone or locks do not hold."""

import json
import os
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.trials.journal import JournalLost, Launch
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


def test_a_look_from_another_thread_waits_for_a_line_that_is_half_written(tmp_path: Path) -> None:
    """The thread that tells MLflow asks whether the journal is ours while the loop writes into it."""
    found: list[str] = []
    threads: list[threading.Thread] = []

    def look() -> None:
        try:
            store.require_ours()
            found.append("ours")
        except JournalLost as error:
            found.append(str(error))

    def write(descriptor: int, line: bytes | memoryview) -> int:
        taken = os.write(descriptor, line)
        threads.append(threading.Thread(target=look))
        threads[-1].start()
        threads[-1].join(0.2)  # a look that does not wait is through by then
        return taken

    store = Store(tmp_path, LAUNCH)
    store.journal._write = write
    store.add(TRIALS[0])
    for thread in threads:
        thread.join(10)
    assert found == ["ours"]
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
        monkeypatch.setattr(store.journal, "append", append)
        store.settle()
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
