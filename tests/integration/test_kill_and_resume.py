"""The whole `chorale tune` process is killed with SIGKILL in the middle and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from chorale.tuner.files.home import Home
from chorale.tuner.trials.records import CompleteTrial
from chorale.tuner.trials.store import Store
from tests.integration.launch_files import optuna_states, tracked_trials

ROOT = Path(__file__).parents[2]
TRIALS = 14
ARGUMENTS = [
    "tune", str(ROOT / "examples" / "quickstart.yaml"), "--json",
    "--set", "runner.kind=simulated", "--set", f"budget.trials={TRIALS}", "--set", "sizes=[64KiB, 1MiB]",
]  # fmt: skip


def start(home: Home, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "CHORALE_HOME": str(home.root)}
    command = [sys.executable, "-m", "chorale", *ARGUMENTS, *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **pipes)


@pytest.mark.slow
def test_no_finished_trial_is_lost_or_repeated(home: Home) -> None:
    folder = home.campaigns / "quickstart" / "1"
    journal = folder / "trials.jsonl"
    killed = start(home)
    deadline_s = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 5):
        assert killed.poll() is None, killed.communicate()[1]
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = journal.read_bytes()
    finished_before = before.count(b"\n") - 1
    assert 4 <= finished_before < TRIALS

    resumed = start(home, "--resume")
    output, errors = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, errors
    document = json.loads(output)
    store = Store(folder)
    store.close()
    assert journal.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    ids = [trial.trial_id for trial in store.trials]
    assert len(ids) == len(set(ids)) == TRIALS
    assert len({trial.candidate for trial in store.trials}) == TRIALS
    assert document["trials"] == {"complete": TRIALS, "failed": 0, "pruned": 0}
    assert all(isinstance(trial, CompleteTrial) for trial in store.trials)
    assert optuna_states(folder) == dict.fromkeys(ids, TrialState.COMPLETE)
    assert tracked_trials(home, "quickstart") == dict.fromkeys(ids, "FINISHED")
    assert [row["speedup_vs_baseline"] for row in document["best"]] == [pytest.approx(3.0)] * 2
    assert no_workers_left(killed.pid)


def no_workers_left(session: int) -> bool:
    """Whether the processes in the session of the killed one end by themselves."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        command = ["ps", "-o", "stat=,args=", "-s", str(session)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        if not any("forkserver" in line and not line.startswith("Z") for line in listed):
            return True
        time.sleep(0.2)
    return False
