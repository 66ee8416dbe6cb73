"""Submitting batch scripts, and following jobs to their end."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from chorale.runners.process_launch.slurm import slurm_output
from chorale.synth.errors import Unavailable
from chorale.tuner.files.read_write import write_file

_ANSWER_LIMIT_S = 60.0
_POLL_S = 2.0
_SILENCE_LIMIT_S = 300.0
_UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "PREEMPTED")
FORGOTTEN = ""
"""Instead of the state of a job that ended so long ago (`MinJobAge`) that Slurm knows it no more."""

CODE_SUFFIX = ".code"
"""Of the file beside the output of a job in which its script leaves its exit code."""

INTERRUPTED = 130
_MISSING = "run this on a node from which jobs are submitted, or write the script with --slurm-script"


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that was submitted; `output` and `messages` are the files of its standard streams, made when it starts."""

    job_id: str
    output: str
    messages: str


def submit(script: str, folder: Path, name: str) -> SubmittedJob:
    """Submit `script`, whose job is called `name` and writes into `folder`; remember it there under its name.

    Unavailable, with sbatch's words, where it is refused.
    """
    if shutil.which("sbatch") is None:
        raise Unavailable("a job is submitted with sbatch", "no such command", _MISSING)
    done = subprocess.run(
        ["sbatch", "--parsable"],  # noqa: S607
        input=script,
        capture_output=True,
        text=True,
        timeout=_ANSWER_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable("Slurm must take the job", done.stderr.strip(), "change the profile of the site (--site)")
    job_id = done.stdout.strip().partition(";")[0]
    number = f"{job_id}-0" if "--array=" in script else job_id
    job = SubmittedJob(job_id, str(folder / f"{name}-{number}.out"), str(folder / f"{name}-{number}.err"))
    write_file(str(_record(folder, name)), json.dumps(asdict(job)).encode())
    return job


def submitted(folder: Path, name: str) -> SubmittedJob | None:
    """Return the latest job called `name`, None where none was submitted from this data folder."""
    path = _record(folder, name)
    return SubmittedJob(**json.loads(path.read_text())) if path.is_file() else None


def _record(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def follow(job: SubmittedJob, show: Callable[[str], None]) -> int:
    """Wait until a job has ended, handing what it says meanwhile to `show`; return its exit code.

    A job that is requeued has not ended. 130 for one that was cancelled, 1 for other ends without a code.
    """
    shown = 0
    while True:
        state, code = _state_at_last(job.job_id)
        text = _read(job.messages)
        show(text[shown:])
        shown = len(text)
        if not is_unfinished(state):
            return _code_left(job) if state == FORGOTTEN else _exit_code(state, code)
        time.sleep(_POLL_S)


def _state_at_last(job_id: str) -> tuple[str, int]:
    """Return what `job_state` does, also where Slurm does not answer for a while, as when its controller restarts."""
    deadline_s = time.monotonic() + _SILENCE_LIMIT_S
    while True:
        try:
            return job_state(job_id)
        except Unavailable:
            if shutil.which("scontrol") is None or time.monotonic() > deadline_s:
                raise
        time.sleep(_POLL_S)


def is_unfinished(state: str) -> bool:
    """Whether a job in this state runs, or will."""
    return state in _UNFINISHED


def _exit_code(state: str, code: int) -> int:
    return INTERRUPTED if state == "CANCELLED" else code or (0 if state == "COMPLETED" else 1)


def _code_left(job: SubmittedJob) -> int:
    """Return the exit code that the script of a job has written at its end; 1 for one that did not get there."""
    text = _read(str(Path(job.output).with_suffix(CODE_SUFFIX))).strip()
    return int(text) if text.isdigit() else 1


def job_state(job_id: str) -> tuple[str, int]:
    """Return state and exit code of a job, of the first task of an array; `FORGOTTEN` where Slurm has forgotten it."""
    try:
        line = slurm_output("scontrol", "--oneliner", "show", "job", job_id)
    except Unavailable as error:
        if "Invalid job id" in str(error):
            return FORGOTTEN, 0
        raise
    tasks = [dict(word.partition("=")[::2] for word in text.split()) for text in line.splitlines() if text.strip()]
    first = min(tasks, key=lambda task: int(task.get("ArrayTaskId", "0").partition("-")[0] or 0))
    return first["JobState"], int(first.get("ExitCode", "0:0").partition(":")[0])


def cancel(job: SubmittedJob) -> None:
    """Cancel a job; what it runs stops in order."""
    slurm_output("scancel", job.job_id)


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text(errors="replace") if file.is_file() else ""
