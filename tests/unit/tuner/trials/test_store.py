"""The store: one writer, nothing lost on a full disk, damage named."""

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.trials.journal import Launch, patiently
from chorale.tuner.trials.records import Candidate, FinalComparison, PrunedTrial
from chorale.tuner.trials.store import Store
from tests.campaigns import complete

LAUNCH = Launch("launch", 1, {"topology": "x"}, {"name": "small"}, 1e9)
TRIALS = [complete(Candidate("bfb", channels=number), number=number) for number in range(1, 5)]


class Disk:
    """Writes like `os.write` while `full` is False."""

    def __init__(self) -> None:
        self.full = False

    def write(self, descriptor: int, content: bytes | memoryview) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, content)


def test_everything_recorded_is_there_again(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    pruned = PrunedTrial("p", 9, Candidate("ring"), 1.0, 2.0, "no")
    final = FinalComparison({TRIALS[0].trial_id: TRIALS[0].sizes}, 3)
    for record in (TRIALS[0], pruned, TRIALS[1], final):
        store.add(record)
    store.close()
    again = Store(tmp_path)
    assert again.launch == LAUNCH
    assert again.trials == [TRIALS[0], pruned, TRIALS[1]]
    assert again.final == final
    again.close()


def test_a_second_writer_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    with pytest.raises(Unavailable, match="another process is running this launch"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_a_second_writer_waits_as_long_as_it_may(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    let_go = threading.Event()
    timer = threading.Timer(0.3, lambda: (let_go.set(), store.close()))
    timer.start()
    Store(tmp_path, patience_s=30.0).close()
    assert let_go.is_set()
    timer.join()


def test_a_disk_that_is_full_for_a_while_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    store = Store(tmp_path, LAUNCH, disk.write)
    disk.full = True

    def free_some_space(_seconds: float) -> None:
        disk.full = False

    monkeypatch.setattr(patiently, "__defaults__", (free_some_space,))
    store.add(TRIALS[0])
    assert "No space left on device" in caplog.text
    store.close()
    assert Store(tmp_path).trials == TRIALS[:1]


def test_a_disk_that_stays_full_ends_the_launch_and_keeps_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    store = Store(tmp_path, LAUNCH, disk.write)
    store.add(TRIALS[0])
    disk.full = True
    waits: list[float] = []
    monkeypatch.setattr(patiently, "__defaults__", (waits.append,))
    with pytest.raises(Unavailable, match=r"the journal cannot be written.*--resume: it is measured again"):
        store.add(TRIALS[1])
    assert waits == [1.0] * 6
    disk.full = False
    assert store.trials == TRIALS[:1]
    store.close()
    assert Store(tmp_path).trials == TRIALS[:1]


def test_files_are_kept_by_content_id_and_written_once(tmp_path: Path) -> None:
    store = Store(tmp_path, LAUNCH)
    store.keep("s", b"schedule", "p", "program")
    store.keep("s", b"other", "p", "other")
    assert store.schedule_path("s").read_bytes() == b"schedule"
    assert store.program_path("p").read_bytes() == b"program"
    store.close()


@pytest.mark.parametrize(("line", "number"), [(0, 1), (2, 3)])
def test_a_damaged_line_is_named(tmp_path: Path, line: int, number: int) -> None:
    store = Store(tmp_path, LAUNCH)
    for trial in TRIALS:
        store.add(trial)
    store.close()
    path = tmp_path / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b":", b";", 1)
    path.write_bytes(b"".join(lines))
    for _ in range(2):  # who was refused holds the folder no longer
        with pytest.raises(InvalidInput, match=f"line {number} of"):
            Store(tmp_path)


def test_a_torn_end_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store(tmp_path, LAUNCH).close()
    with (tmp_path / "trials.jsonl").open("ab") as journal:
        journal.write(b'{"trial_id":"a')
    with caplog.at_level(logging.WARNING, "chorale.store"):
        store = Store(tmp_path)
    assert store.trials == []
    assert "ended in an unfinished line, which was dropped" in caplog.text
    store.close()
