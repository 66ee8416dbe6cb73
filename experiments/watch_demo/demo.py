"""The demo: a fabric, a watch and a training job as processes, and a fault between two steps."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chorale.experiments.job_demo.ranks import run_ranks
from chorale.experiments.watch_demo.figures import figures, has_enough
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "demo_watch" / "train.py"
WATCH_NAME = "demo-watch"
SIZE_BYTES = 1 << 20
_WAIT_LIMIT_S = 300.0
_END_LIMIT_S = 60.0
_POLL_S = 0.1
_BEGINS = ("publish", "resume")

Json = dict[str, Any]


@dataclass(slots=True)
class WatchProcess:
    """`chorale watch --json` on a file, and the events that it has printed."""

    process: subprocess.Popen[str]
    events: list[Json] = field(default_factory=list)

    def read(self) -> None:
        """Keep the events until it ends; for a thread."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            sys.stderr.write(f"watch: {_short(event)}\n")


@dataclass(slots=True)
class TrainingRun:
    """A job that trains. failure: how it has ended, unless well; may_fail: whether that is what is waited for"""

    failure: CheckFailed | None = None
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class WatchDemo:
    """On a fabric that is up.

    folder:  for the files of the run
    limit_s: after which the job is ended
    settings: of the watch, besides its defaults
    collective_limit_s: after which a collective of the job has failed
    """

    topology: Topology
    fabric: EmulatedFabric
    folder: Path
    link_mbps: int
    limit_s: float = 400.0
    settings: Json = field(default_factory=dict)
    collective_limit_s: float = 120.0

    def run(self, fault: Callable[[], None], steps_before: int) -> Json:
        """Return the figures of a `fault` after `steps_before` steps. CheckFailed where something does not happen."""
        log, stop = self.fresh_files()
        with self.watching() as watch, self.training(log, stop):
            wait_until("the job has trained on the published table", lambda: len(read_steps(log)) >= steps_before)
            fault_s = time.time()
            fault()
            wait_until("a new table is published", lambda: published(watch, fault_s) is not None)
            table = str((published(watch, fault_s) or {})["table"])
            wait_until("the job has trained on the new table", lambda: has_enough(read_steps(log), table))
            stop.touch()
        return figures(read_steps(log), watch.events, fault_s, self.link_mbps, SIZE_BYTES)

    def fresh_files(self) -> tuple[Path, Path]:
        """Remove what an earlier run has left; return the log of steps and the file that ends a job."""
        log, stop = self.folder / "steps.jsonl", self.folder / "stop"
        for path in (log, stop, self._table, self.folder / "model.pt", self.status_path):
            path.unlink(missing_ok=True)
        return log, stop

    @contextmanager
    def watching(self) -> Iterator[WatchProcess]:
        """Give a watch of the fabric that has published a table, or goes on with one; it ends with the `with`."""
        with self.following(["watch", str(self.write_config()), "--json"]) as watch:
            yield watch

    @contextmanager
    def following(self, arguments: Sequence[str]) -> Iterator[WatchProcess]:
        """Give the events that `chorale` prints with these arguments, once it has a table; end it with the `with`."""
        command = [sys.executable, "-m", "chorale", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        watch = WatchProcess(process)
        reader = threading.Thread(target=watch.read)
        reader.start()
        try:
            wait_until("the watch has a table", lambda: any(e["event"] in _BEGINS for e in watch.events))
            yield watch
        finally:
            process.terminate()
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reader.join()

    def write_config(self) -> Path:
        """Write the file of the watch; return its path."""
        path = self.folder / "fabric.yaml"
        path.write_text(yaml.safe_dump(self._config()))
        return path

    def _config(self) -> Json:
        return {
            "name": WATCH_NAME,
            "topology": self.topology.spec,
            "fabric": self.fabric.name,
            "table": str(self._table),
            "sizes": [SIZE_BYTES // 4, SIZE_BYTES],
            **self.settings,
        }

    @property
    def status_path(self) -> Path:
        """The file that says what the job's calls take."""
        return self.folder / "status.json"

    @property
    def _table(self) -> Path:
        return self.folder / "fabric.table"

    @contextmanager
    def training(self, log: Path, stop: Path, members: Sequence[int] | None = None) -> Iterator[TrainingRun]:
        """Have a job train that logs its steps, and ends when `stop` is there; CheckFailed if it does not end well.

        members: ranks of the fabric that take part; the job goes on with the model that the one before has kept then,
                 and one that has failed does not raise if it was waited for
        """
        arguments = ["--log", str(log), "--stop", str(stop), "--size", str(SIZE_BYTES)]
        arguments += ["--timeout-s", str(self.collective_limit_s)]
        if members is not None:
            arguments += ["--checkpoint", str(self.folder / "model.pt")]
        environment = {
            "CHORALE_TABLE": str(self._table),
            "CHORALE_RELOAD": "0.2",
            "CHORALE_STATUS": str(self.status_path),
        }
        job = TrainingRun()

        def train() -> None:
            try:
                run_ranks(self.topology, self.fabric, SCRIPT, arguments, self.limit_s, environment, members)
            except CheckFailed as error:
                job.failure = error

        thread = threading.Thread(target=train)
        thread.start()
        try:
            yield job
        finally:
            stop.touch()
            thread.join()
        if job.failure is not None and not job.may_fail:
            raise job.failure


def wait_until(what: str, holds: Callable[[], bool], limit_s: float = _WAIT_LIMIT_S) -> None:
    """Wait for it; CheckFailed if it does not come about."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"within {limit_s:g} s {what}", "it did not happen", "see what was printed above")
        time.sleep(_POLL_S)


def published(watch: WatchProcess, after_s: float) -> Json | None:
    """Return the first table that was published after a time, None if there is none yet."""
    return next((e for e in watch.events if e["event"] == "publish" and e["time_s"] > after_s), None)


def read_steps(log: Path) -> list[Json]:
    """Return the steps that are written down; a line that is being written is not one yet."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _short(event: Json) -> str:
    from chorale.tuner.cli.watch import event_line  # noqa: PLC0415 - it imports typer

    return event_line(event)
