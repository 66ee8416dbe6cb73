"""A launch in a process of its own, and what is around it: folder, environment, hosts, servers."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from chorale.tuner.files.home import Home
from chorale.tuner.tracking.tracker import TRIAL_ID
from tests.campaigns import tracked_runs
from tests.integration.faults.hosts import ROOT, Host

TRIALS = 150
STRIKE_AFTER = 40
LIMIT_S = 300.0
CAMPAIGN = {
    "name": "soak",
    "topology": "ring:4",
    "collective": "allreduce",
    "sizes": ["64KiB", "1MiB"],
    "runner": {"kind": "simulated", "alpha_us": 3},
    "search": {
        "methods": ["bfb", "ring", "biring", "swing", "recursive-doubling"],
        "chunks": {"from": 1, "to": -(-TRIALS // 50)},
        "channels": {"from": 1, "to": 5},
        "instances": [1, 2],
    },
    "budget": {"trials": TRIALS},
    "sampler": "random",
    "repeats": 1,
}
"""Tries every point of its space."""


@dataclass
class Setting:
    """What is there before a launch begins. `folder` is for files of the test, `home` for those of the launch.

    environment: what the launch has beside that of this process
    campaign:    keys of the campaign that differ
    hosts:       where there are some, the launch is attached to their Ray cluster, from the last of them
    detached:    or it lives there, started on the second, and is watched from the last
    uri:         of MLflow, where it is no file in `home`
    """

    folder: Path
    home: Home
    environment: dict[str, str] = field(default_factory=dict)
    campaign: dict[str, Any] = field(default_factory=dict)
    hosts: list[Host] = field(default_factory=list)
    detached: bool = False
    uri: str | None = None
    servers: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        path = self.folder / "soak.yaml"
        path.write_text(yaml.safe_dump({**CAMPAIGN, **self.campaign}))
        return path

    def command(self, *words: str, host: int = -1) -> list[str]:
        prefix = self.hosts[host].prefix if self.hosts else ()
        there = ["--address", f"{self.hosts[0].address}:6379"] if self.hosts else []
        return [*prefix, sys.executable, "-m", "chorale", "tune", *words, *there]

    @property
    def whole_environment(self) -> dict[str, str]:
        here = {"CHORALE_HOME": str(self.home.root), "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
        return {**os.environ, **here, **self.environment}


@contextmanager
def alone(folder: Path) -> Iterator[Setting]:
    yield Setting(folder, Home(folder / "home"))


@dataclass
class Launched:
    setting: Setting
    resume: bool = False
    lines: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        setting, again = self.setting, ["--resume"] if self.resume else []
        words = [str(setting.file), *again]
        if setting.detached:
            start = setting.command(*words, "--detach", host=1)
            done = subprocess.run(
                start, check=False, env=setting.whole_environment, capture_output=True, text=True, timeout=LIMIT_S
            )
            assert done.returncode == 0 or (self.resume and "is running" in done.stderr), done.stderr
            words = ["--follow", "soak"]
        self.process = subprocess.Popen(
            setting.command(*words),
            env=setting.whole_environment,
            text=True,
            errors="replace",
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def home(self) -> Home:
        return self.setting.home

    @property
    def journal(self) -> Path:
        return self.home.campaigns / "soak" / "1" / "trials.jsonl"

    def trials(self) -> Counter[str]:
        """Return how often each trial is in the journal; nothing where that cannot be read just now."""
        try:
            content = self.journal.read_bytes()
        except OSError:
            return Counter()
        records = map(json.loads, content.split(b"\n")[1:-1])
        return Counter(record["trial_id"] for record in records if "trial_id" in record)

    def tracked(self) -> Counter[str]:
        runs = tracked_runs(self.setting.uri or self.home.mlflow_uri, "soak")
        return Counter(run.data.tags[TRIAL_ID] for run in runs)

    def workers(self) -> list[psutil.Process]:
        return self.child("forkserver").children()

    def child(self, name: str) -> psutil.Process:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if name in " ".join(process.cmdline()[:6]):
                    return process
        raise LookupError(name)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.append((time.monotonic(), text))


Strike = Callable[[Launched], object]


def lasting(seconds: float, begin: Strike, end: Strike) -> Strike:
    def strike(launched: Launched) -> None:
        begin(launched)
        time.sleep(seconds)
        end(launched)

    return strike
