"""Optuna's journal on a disk that is full in the middle of a line."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chorale.tuner.search.storages import StudyJournal


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size_bytes` during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "optuna.journal"
    journal = StudyJournal(str(path))
    journal.append_logs([{"op": 1}, {"op": 2}])
    before = path.read_bytes()
    with largest_file(len(before) + 5), pytest.raises(OSError, match="File too large"):
        journal.append_logs([{"op": "longer than five bytes"}])
    assert path.read_bytes() == before
    journal.append_logs([{"op": 3}])
    assert list(StudyJournal(str(path)).read_logs(0)) == [{"op": 1}, {"op": 2}, {"op": 3}]


def test_a_disk_that_is_full_for_a_while_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = StudyJournal(str(tmp_path / "optuna.journal"))
    refusals = [OSError(errno.ENOSPC, "No space left on device")] * 3
    append = journal._append

    def refuse(content: bytes) -> None:
        if refusals:
            raise refusals.pop()
        append(content)

    monkeypatch.setattr(journal, "_append", refuse)
    waits: list[float] = []
    with pytest.raises(OSError, match="No space"):
        journal.append_logs([{"op": 1}], patience_s=1.0, sleep=waits.append)
    journal.append_logs([{"op": 2}], patience_s=1.0, sleep=waits.append)
    assert waits == [1.0, 1.0]
    assert list(journal.read_logs(0)) == [{"op": 2}]
