"""Optuna's journal on a disk that is full in the middle of a line."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chorale.tuner.search.storages import StudyJournal
from chorale.tuner.trials.journal import patiently


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size_bytes` during the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "optuna.journal"
    journal = StudyJournal(str(path))
    journal.append_logs([{"op": 1}, {"op": 2}])
    before = path.read_bytes()
    waits: list[float] = []
    monkeypatch.setattr(patiently, "__defaults__", (waits.append,))
    with largest_file(len(before) + 5), pytest.raises(OSError, match="File too large"):
        journal.append_logs([{"op": "longer than five bytes"}])
    assert (path.read_bytes(), waits) == (before, [1.0] * 6)
    journal.append_logs([{"op": 3}])
    assert list(StudyJournal(str(path)).read_logs(0)) == [{"op": 1}, {"op": 2}, {"op": 3}]
