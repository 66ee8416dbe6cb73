"""The journal under crashes and full disks."""

import errno
import os
import threading
from pathlib import Path

import pytest

from chorale.tuner.trials.journal import Journal, JournalLost

LINES = [b'{"a":1}', b'{"b":[2,3]}', b"", b'{"c":"x"}']


def written(path: Path) -> bytes:
    journal = Journal(path)
    for line in LINES:
        journal.append(line)
    journal.close()
    return path.read_bytes()


def test_wherever_a_write_was_cut_whole_lines_stay(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole")
    for cut in range(len(whole) + 1):
        path = tmp_path / f"cut{cut}"
        path.write_bytes(whole[:cut])
        journal = Journal(path)
        kept = whole[:cut].rfind(b"\n") + 1
        assert journal.torn_bytes == cut - kept
        journal.append(b"next")
        assert journal.lines() == [*whole[:kept].splitlines(), b"next"]
        journal.close()


@pytest.mark.parametrize("taken_before", [0, 3])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, taken_before: int) -> None:
    room = [taken_before]

    def write(descriptor: int, content: bytes | memoryview) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(descriptor, content[: room[0]])
        room[0] -= taken
        return taken

    written(tmp_path / "j")
    before = (tmp_path / "j").read_bytes()
    journal = Journal(tmp_path / "j", write)
    with pytest.raises(OSError, match="No space left"):
        journal.append(b"too long for the room")
    assert (tmp_path / "j").read_bytes() == before
    room[0] = 100
    journal.append(b"fits now")
    assert journal.lines() == [*LINES, b"fits now"]


def test_a_line_break_inside_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line break"):
        Journal(tmp_path / "j").append(b"a\nb")


def test_a_line_that_is_being_written_is_not_taken_for_one_of_somebody_else(tmp_path: Path) -> None:
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
