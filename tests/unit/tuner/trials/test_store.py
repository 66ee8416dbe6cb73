"""The store and its journal: one writer, nothing lost on a full disk or in a crash, damage named."""

import errno
import json
import logging
import os
import re
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.trials.journal import Journal, JournalLost, Launch, patiently
from chorale.tuner.trials.records import Candidate, FinalComparison, PrunedTrial
from chorale.tuner.trials.store import Store
from tests.campaigns import complete

LAUNCH = Launch("launch", 1, {"topology": "x"}, {"name": "small"}, 1e9)
TRIALS = [complete(Candidate("bfb", channels=number), number=number) for number in range(1, 5)]


class Disk:
    """Writes like `os.write` as far as there is room; None is room without end."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room

    def write(self, descriptor: int, content: bytes | memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(descriptor, content[: self.room])
        self.room = None if self.room is None else self.room - taken
        return taken


def test_a_full_disk_is_waited_for_and_one_that_stays_full_ends_the_launch(tmp_path, caplog, monkeypatch):
    disk, waits = Disk(), list[float]()
    store = Store(tmp_path, LAUNCH, disk.write)
    disk.room = 0
    monkeypatch.setattr(patiently, "__defaults__", (lambda _seconds: setattr(disk, "room", None),))
    store.add(TRIALS[0])
    assert "No space left on device" in caplog.text
    disk.room = 0
    monkeypatch.setattr(patiently, "__defaults__", (waits.append,))
    with pytest.raises(Unavailable, match=r"the journal cannot be written.*--resume: it is measured again"):
        store.add(TRIALS[1])
    assert waits == [1.0] * 6
    disk.room = None
    assert store.trials == TRIALS[:1]
    store.close()
    assert Store(tmp_path).trials == TRIALS[:1]


def test_everything_recorded_is_there_again(tmp_path):
    store = Store(tmp_path, LAUNCH)
    pruned = PrunedTrial("p", 9, Candidate("ring"), 1.0, 2.0, "no")
    final = FinalComparison({TRIALS[0].trial_id: TRIALS[0].sizes}, 3)
    for record in (TRIALS[0], pruned, TRIALS[1], final):
        store.add(record)
    store.keep("s", b"schedule", "p", "program")
    store.keep("s", b"other", "p", "other")  # files are written once
    store.close()
    again = Store(tmp_path)
    assert (again.launch, again.final) == (LAUNCH, final)
    assert again.trials == [TRIALS[0], pruned, TRIALS[1]]
    assert again.schedule_path("s").read_bytes() == b"schedule"
    assert again.program_path("p").read_bytes() == b"program"
    again.close()


def test_a_second_writer_is_refused_or_waits_until_the_first_lets_go(tmp_path):
    store = Store(tmp_path, LAUNCH)
    with pytest.raises(Unavailable, match="another process is running this launch"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()
    store = Store(tmp_path)
    let_go = threading.Event()
    timer = threading.Timer(0.3, lambda: (let_go.set(), store.close()))
    timer.start()
    Store(tmp_path, patience_s=30.0).close()
    assert let_go.is_set()
    timer.join()


def test_a_torn_end_is_told_and_a_damaged_line_named(tmp_path, caplog):
    store = Store(tmp_path, LAUNCH)
    for trial in TRIALS:
        store.add(trial)
    store.close()
    path = tmp_path / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"trial_id":"a')
    with caplog.at_level(logging.WARNING, "chorale.store"):
        store = Store(tmp_path)
    assert store.trials == TRIALS
    assert "ended in an unfinished line, which was dropped" in caplog.text
    store.close()
    for line in (0, 2):
        lines = whole.splitlines(keepends=True)
        lines[line] = lines[line].replace(b":", b";", 1)
        path.write_bytes(b"".join(lines))
        for _ in range(2):  # who was refused holds the folder no longer
            with pytest.raises(InvalidInput, match=f"line {line + 1} of"):
                Store(tmp_path)


LINES = [b'{"a":1}', b'{"b":[2,3]}', b"", b'{"c":"x"}']


def journal_of_lines(path: Path) -> bytes:
    journal = Journal(path)
    for line in LINES:
        journal.append(line)
    journal.close()
    return path.read_bytes()


def test_wherever_a_write_was_cut_whole_lines_stay(tmp_path):
    whole = journal_of_lines(tmp_path / "whole")
    for cut in range(len(whole) + 1):
        path = tmp_path / f"cut{cut}"
        path.write_bytes(whole[:cut])
        journal = Journal(path)
        kept = whole[:cut].rfind(b"\n") + 1
        assert journal.torn_bytes == cut - kept
        journal.append(b"next")
        assert journal.lines() == [*whole[:kept].splitlines(), b"next"]
        journal.close()
    with pytest.raises(ValueError, match="line break"):
        Journal(tmp_path / "j").append(b"a\nb")


@pytest.mark.parametrize("taken_before", [0, 3])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, taken_before):
    before, disk = journal_of_lines(tmp_path / "j"), Disk(taken_before)
    journal = Journal(tmp_path / "j", disk.write)
    with pytest.raises(OSError, match="No space left"):
        journal.append(b"too long for the room")
    assert (tmp_path / "j").read_bytes() == before
    disk.room = 100
    journal.append(b"fits now")
    assert journal.lines() == [*LINES, b"fits now"]
    with mock.patch("os.pread", side_effect=OSError(5, "gone")), pytest.raises(Unavailable, match="cannot be read"):
        journal.require_ours()


def test_a_line_that_is_being_written_is_not_taken_for_one_of_somebody_else(tmp_path):
    problems: list[Exception] = []

    def look() -> None:
        try:
            journal.require_ours()
        except JournalLost as error:
            problems.append(error)

    threads: list[threading.Thread] = []

    def write(descriptor: int, content: bytes | memoryview) -> int:
        count = os.write(descriptor, content)
        threads.append(threading.Thread(target=look))
        threads[-1].start()
        threads[-1].join(0.05)  # as a disk takes its time
        return count

    journal = Journal(tmp_path / "j", write)
    for line in LINES:
        journal.append(line)
    for thread in threads:
        thread.join()
    assert (problems, len(threads)) == ([], len(LINES))


def replace_files(folder: Path) -> None:
    """Put a copy in place of the journal, as file servers and restored backups do: no lock holds."""
    shutil.copy(folder / "trials.jsonl", folder / "copy")
    os.replace(folder / "copy", folder / "trials.jsonl")


def recorded(folder: Path) -> Counter[str]:
    lines = map(json.loads, (folder / "trials.jsonl").read_text().splitlines())
    return Counter(line["trial_id"] for line in lines if "trial_id" in line)


def test_who_comes_second_where_no_lock_holds_ends_the_first(tmp_path):
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda journal: journal.write_bytes(journal.read_bytes() + b"{}\n"), "lines of another process"),
        (
            lambda journal: journal.write_bytes(re.sub(rb".{8}(?=.{4}\Z)", b"0" * 8, journal.read_bytes(), flags=re.S)),
            None,
        ),
        (Path.unlink, "was removed"),
    ],
    ids=["a line more", "a line changed", "removed"],
)
def test_what_somebody_else_does_to_the_journal_ends_the_writer(tmp_path, change, message):
    store = Store(tmp_path, LAUNCH)
    store.add(TRIALS[0])
    change(tmp_path / "trials.jsonl")
    with pytest.raises(JournalLost, match=message):
        store.add(TRIALS[1])
    assert store.trials == TRIALS[:1]
    assert (tmp_path / "trials.jsonl").exists() == (change is not Path.unlink)
    store.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_between_writing_and_forgetting_doubles_nothing(tmp_path, number, monkeypatch):
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


def test_a_line_that_went_into_a_file_without_a_name_counts_for_nothing(tmp_path):
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
