"""Single faults in the middle of a launch that owns its cluster: when each is noticed, and when work goes on.

`python -m tests.integration.faults` prints a table; `--only NAME` names a fault. Each row is a launch of its own, in a
process of its own. Times count from the fault: `noticed` to the first line about it on stderr, `goes on` to the next
trial in the journal (of a resumed launch, where the fault ends the process). `lost` and `doubled` compare the trials of
the journal with those that were asked for, and with MLflow's runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_store import load_mlflow
from chorale.tuner.tracking.tracker import TRIAL_ID
from tests.integration.soak import soak_campaign

ROOT = Path(__file__).parents[2]
TRIALS = 150
STRIKE_AFTER = 40
LIMIT_S = 300.0
GOAL_S = 15.0


@dataclass
class Launched:
    """A launch in a process of its own, and what it says."""

    folder: Path
    resume: bool = False
    lines: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        campaign = soak_campaign(TRIALS, "").model_dump(by_alias=True, mode="json", exclude_defaults=True)
        campaign.pop("tracking", None)
        campaign |= {"budget": {"trials": TRIALS}, "runner": {"kind": "simulated", "alpha_us": 3}}
        (self.folder / "soak.yaml").write_text(yaml.safe_dump(campaign))
        line = [sys.executable, "-m", "chorale", "tune", "soak.yaml", *(["--resume"] if self.resume else [])]
        environment = {**os.environ, "CHORALE_HOME": str(self.home.root), "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            line, cwd=self.folder, env=environment, text=True, errors="replace", start_new_session=True, **pipes
        )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    @property
    def journal(self) -> Path:
        return self.home.campaigns / "soak" / "1" / "trials.jsonl"

    def trials(self) -> Counter[str]:
        content = self.journal.read_bytes() if self.journal.exists() else b""
        records = map(json.loads, content.split(b"\n")[1:-1])
        return Counter(record["trial_id"] for record in records if "trial_id" in record)

    def child(self, name: str) -> psutil.Process:
        """Return the process of Ray whose command line has `name`."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if name in " ".join(process.cmdline()[:6]):
                    return process
        raise LookupError(name)

    def said_after(self, moment_s: float, words: tuple[str, ...]) -> float | None:
        """Return the seconds from `moment_s` to the first line with one of `words`."""
        times = [
            at_s - moment_s for at_s, text in list(self.lines) if at_s >= moment_s and any(w in text for w in words)
        ]
        return times[0] if times else None

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.append((time.monotonic(), text))


def signalled(name: str, number: int) -> Callable[[Launched], None]:
    return lambda launched: launched.child(name).send_signal(number)


def damage_database(launched: Launched) -> None:
    with (launched.home.root / "mlflow.db").open("r+b") as database:
        database.write(b"garbage!" * 4096)
    launched.home.root.joinpath("mlflow.db-wal").unlink(missing_ok=True)


def damage_optuna(launched: Launched) -> None:
    launched.process.kill()
    launched.process.wait()
    launched.journal.with_name("optuna.journal").write_bytes(b"\xff garbage\n" * 50)


def remove_lock(launched: Launched) -> None:
    """A second launch beside the first."""
    launched.journal.with_name("lock").unlink()
    second = Launched(launched.folder, resume=True)
    assert second.process.wait(LIMIT_S) == 3, second.lines
    launched.lines.append((time.monotonic(), "second refused"))


def stop_and_go(launched: Launched) -> None:
    """The launch and all of its processes are stopped for ten seconds."""
    processes = [psutil.Process(launched.process.pid), *psutil.Process(launched.process.pid).children(recursive=True)]
    for process in processes:
        with suppress(psutil.Error):
            process.suspend()
    time.sleep(10.0)
    for process in processes:
        with suppress(psutil.Error):
            process.resume()


FAULTS: dict[str, Callable[[Launched], None]] = {
    "GCS killed": signalled("gcs_server", signal.SIGKILL),
    "GCS stopped": signalled("gcs_server", signal.SIGSTOP),
    "raylet killed": signalled("raylet/raylet", signal.SIGKILL),
    "raylet stopped": signalled("raylet/raylet", signal.SIGSTOP),
    "dashboard agent killed": signalled("DashboardAgent", signal.SIGKILL),
    "runtime environment agent killed": signalled("RuntimeEnvAgent", signal.SIGKILL),
    "measuring worker killed": signalled("MeasureWorker", signal.SIGKILL),
    "building worker killed": signalled("BuildWorker", signal.SIGKILL),
    "launch killed": lambda launched: launched.process.kill(),
    "everything stopped for 10 s": stop_and_go,
    "MLflow's database damaged": damage_database,
    "launch killed and Optuna's file damaged": damage_optuna,
    "lock removed, second --resume": remove_lock,
}
WORDS = ("Ray", "worker died", "again", "damaged", "cannot be used", "refused")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a fault. Seconds are None where nothing was said, or nothing went on."""

    fault: str
    noticed_s: float | None
    goes_on_s: float | None
    exit_code: int
    lost: int
    doubled: int

    @property
    def good(self) -> bool:
        in_time = self.goes_on_s is not None
        return in_time and self.exit_code == 0 and self.lost == 0 and self.doubled == 0


def run_fault(name: str, folder: Path) -> Row:
    """Run a launch, and the fault `name` after some trials."""
    launched = Launched(folder)
    _wait(lambda: sum(launched.trials().values()) >= STRIKE_AFTER or launched.process.poll() is not None)
    assert launched.process.poll() is None, launched.lines[-20:]
    began_s = time.monotonic()
    FAULTS[name](launched)
    before = sum(launched.trials().values())
    if launched.process.poll() is not None or name.startswith("launch killed"):
        launched.process.wait()
        said, launched = launched.lines, Launched(folder, resume=True)
        launched.lines[:0] = said
    _wait(lambda: sum(launched.trials().values()) > before or launched.process.poll() is not None)
    goes_on_s = time.monotonic() - began_s if sum(launched.trials().values()) > before else None
    code = launched.process.wait(LIMIT_S)
    trials = launched.trials()
    tracked = _tracked(launched.home)
    lost = TRIALS - len(trials) + len(set(trials) - set(tracked))
    doubled = sum(count - 1 for counts in (trials, tracked) for count in counts.values())
    if code:
        sys.stderr.write("".join(text for _, text in launched.lines[-15:]))
    return Row(name, launched.said_after(began_s, WORDS), goes_on_s, code, lost, doubled)


def _tracked(home: Home) -> Counter[str]:
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    experiment = client.get_experiment_by_name("soak")
    runs = client.search_runs([experiment.experiment_id], max_results=10_000)
    return Counter(run.data.tags[TRIAL_ID] for run in runs if TRIAL_ID in run.data.tags)


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def line_of(row: Row) -> str:
    seconds = ["-" if value is None else f"{value:.1f}" for value in (row.noticed_s, row.goes_on_s)]
    return f"| {row.fault} | {seconds[0]} | {seconds[1]} | {row.exit_code} | {row.lost} | {row.doubled} |"


def main(only: list[str] | None) -> int:
    """Print the table; return how many rows are not as they should be."""
    sys.stdout.write("| fault | noticed, s | goes on, s | exit code | lost | doubled |\n|---|---|---|---|---|---|\n")
    bad = 0
    for name in only or FAULTS:
        with tempfile.TemporaryDirectory(prefix="chorale-faults-") as folder:
            row = run_fault(name, Path(folder))
        bad += not row.good
        sys.stdout.write(line_of(row) + "\n")
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=list(FAULTS), action="append")
    raise SystemExit(main(parser.parse_args().only))
