"""`chorale record` as scripts see it, with a job that writes a record as the backend does."""

import json
import sys
from pathlib import Path

import pytest

from tests.command import chorale

JOB = """
import os
from pathlib import Path
from chorale.job.record import recorder_of
recorder = recorder_of(0, 4)
for _ in range(3):
    recorder.add("allreduce", "float32", range(4), None, 4096, 0.25)
recorder.add("allreduce", "float32", (0, 2), None, 4096, 0.25)
assert recorder_of(1, 4) is None
assert recorder_of(0, 4) is recorder
"""


def test_a_job_is_run_and_its_calls_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    finished = chorale(capsys, "record", "-o", file, "--", sys.executable, "-c", JOB)
    assert finished.code == 0, finished.stderr
    assert "75% of the time is in collectives" in finished.stderr
    calls = json.loads(file.read_text())["calls"]
    assert calls[0] == {
        "collective": "allreduce", "dtype": "float32", "group": None, "root": None, "size_bytes": 4096, "calls": 3,
        "seconds": 0.75,
    }  # fmt: skip
    assert calls[1]["group"] == [0, 2]


def test_a_job_that_fails_has_its_own_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    assert chorale(capsys, "record", "-o", file, "--", sys.executable, "-c", "raise SystemExit(7)").code == 7
    assert not file.exists()


def test_a_job_without_the_backend_is_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text("of an earlier job")
    finished = chorale(capsys, "record", "-o", file, "--", sys.executable, "-c", "pass")
    assert (
        finished.code,
        "the job wrote no record, because it did not use the backend chorale" in finished.stderr,
    ) == (1, True)
