"""Jobs that were submitted are followed to their end, and stopped, with a Slurm that says what it is told to."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import chorale.tuner.slurm.jobs as submission
from chorale.synth.errors import Unavailable
from chorale.tuner.slurm.jobs import SubmittedJob, follow, submitted
from tests.command import chorale

FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmittedJob:
    """Return the job of campaign `c` of the data folder `tmp_path`, which ends while it is followed."""
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(submission, "_POLL_S", 0.01)
    folder = tmp_path / "slurm"
    folder.mkdir()
    job = SubmittedJob("7", str(folder / "chorale-c-7.out"), str(folder / "chorale-c-7.err"))
    (folder / "chorale-c.json").write_text(json.dumps(asdict(job)))
    Path(job.messages).write_text("trial 1\n")
    Path(job.output).write_text("results\n")
    return job


def _scontrol(folder: Path, text: str) -> None:
    (folder / "scontrol").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "scontrol").chmod(0o700)


@pytest.mark.parametrize(
    ("answer", "left", "code"),
    [
        ("echo JobId=7 JobState=COMPLETED ExitCode=0:0", None, 0),
        ("echo JobId=7 JobState=FAILED ExitCode=2:0", None, 2),
        ("echo JobId=7 JobState=CANCELLED ExitCode=0:15", None, 130),
        ("echo JobId=7 JobState=NODE_FAIL ExitCode=0:0", None, 1),
        (FORGOTTEN, "0", 0),
        (FORGOTTEN, "3", 3),
        (FORGOTTEN, None, 1),
    ],
)
def test_a_job_that_is_followed_ends_with_its_code(
    tmp_path: Path, job: SubmittedJob, answer: str, left: str | None, code: int
) -> None:
    _scontrol(tmp_path, answer)
    if left is not None:
        Path(job.output).with_suffix(".code").write_text(f"{left}\n")
    said = list[str]()
    assert (follow(job, said.append), "".join(said)) == (code, "trial 1\n")


def test_a_controller_that_is_silent_for_a_while_is_waited_for(
    tmp_path: Path, job: SubmittedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = f"test $(wc -l < {tmp_path}/asked) -gt 2 || {{ echo Unable to contact slurm controller >&2; exit 1; }}"
    _scontrol(tmp_path, f"echo x >> {tmp_path}/asked; {silent}; echo JobId=7 JobState=FAILED ExitCode=2:0")
    assert follow(job, lambda text: None) == 2
    _scontrol(tmp_path, "echo Unable to contact slurm controller >&2; exit 1")
    monkeypatch.setattr(submission, "_SILENCE_LIMIT_S", 0.0)
    with pytest.raises(Unavailable, match="Unable to contact slurm controller"):
        follow(job, lambda text: None)


@pytest.mark.parametrize("command", [("tune", "--stop", "c"), ("campaign", "cancel", "c")])
def test_a_job_that_runs_is_cancelled(
    tmp_path: Path, job: SubmittedJob, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    _scontrol(tmp_path, "echo JobId=7 JobState=RUNNING ExitCode=0:0")
    (tmp_path / "scancel").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/cancelled\n')
    (tmp_path / "scancel").chmod(0o700)
    done = chorale(capsys, *command)
    assert (done.code, "job 7 is cancelled" in done.stderr) == (0, True)
    assert (tmp_path / "cancelled").read_text() == "7\n"


@pytest.mark.parametrize(
    ("answer", "ended"),
    [("echo JobId=7 JobState=TIMEOUT ExitCode=0:0", "job 7 has ended (TIMEOUT);"), (FORGOTTEN, "7 has ended;")],
)
def test_a_job_that_has_ended_cannot_be_stopped(
    tmp_path: Path, job: SubmittedJob, capsys: pytest.CaptureFixture[str], answer: str, ended: str
) -> None:
    _scontrol(tmp_path, answer)
    done = chorale(capsys, "tune", "--stop", "c")
    assert (done.code, ended in done.stderr) == (1, True), done.stderr


def test_the_latest_job_of_a_name_is_remembered(tmp_path: Path, job: SubmittedJob) -> None:
    assert submitted(tmp_path / "slurm", "chorale-c") == job
    assert submitted(tmp_path / "slurm", "chorale-d") is None
