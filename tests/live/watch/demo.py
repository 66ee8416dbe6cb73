"""DDP on an emulated hypercube, a fault, and how the watch replaces the table; `faults` runs it."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from chorale.experiments.demos.ranks import run_ranks
from chorale.runners.fabric import detours
from chorale.runners.fabric.fabric import EmulatedFabric, take_down
from chorale.runners.fabric.self_test import bring_up_tested
from chorale.runners.measurement.machine import load_average
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.home import Home

SCRIPT = Path(__file__).with_name("train.py")
SIZE_BYTES = 1 << 20
_WAIT_LIMIT_S, _END_LIMIT_S, _POLL_S = 300.0, 60.0, 0.1
_LEAST_STEPS = 5

Json = dict[str, Any]


@dataclass(slots=True)
class WatchProcess:
    """A process of `chorale watch --json`, and the events that it has printed."""

    process: subprocess.Popen[str]
    events: list[Json] = field(default_factory=list)

    def read(self) -> None:
        """Collect events until the process ends; runs in a thread."""
        from chorale.tuner.cli.fabric import event_line  # noqa: PLC0415 - it imports typer

        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            sys.stderr.write(f"watch: {event_line(event)}\n")


@dataclass(slots=True)
class TrainingRun:
    """A training job: its failure, None if it succeeded or still runs, and whether it is expected to fail."""

    failure: CheckFailed | None = None
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class WatchDemo:
    """The demo on a fabric that is up.

    folder:             folder for the files of the run
    limit_s:            seconds after which the job is killed
    settings:           settings of the watch other than its defaults
    collective_limit_s: seconds after which a collective of the job fails
    """

    topology: Topology
    fabric: EmulatedFabric
    folder: Path
    link_mbps: int
    limit_s: float = 400.0
    settings: Json = field(default_factory=dict)
    collective_limit_s: float = 120.0

    def run(self, fault: Callable[[], None], steps_before: int) -> Json:
        """Return the figures of a `fault` after `steps_before` steps. Raises CheckFailed if there is no reaction."""
        log, stop = self.fresh_files()
        with self.watching() as watch, self.training(log, stop):
            wait_until("the job has trained on the published table", lambda: len(read_steps(log)) >= steps_before)
            fault_s = time.time()
            fault()
            self.wait_for_new_table(watch, log, fault_s)
            stop.touch()
        return self.figures(read_steps(log), watch.events, fault_s)

    def wait_for_new_table(self, watch: WatchProcess, log: Path, fault_s: float) -> None:
        """Wait until a table has been published after `fault_s` and the job has trained on it."""
        wait_until("a new table is published", lambda: published(watch, fault_s) is not None)
        table = str((published(watch, fault_s) or {})["table"])
        wait_until("the job has trained on the new table", lambda: has_enough(read_steps(log), table))

    def fresh_files(self) -> tuple[Path, Path]:
        """Remove the files of an earlier run; return the paths of the log of steps and of the file that ends a job."""
        log, stop = self.folder / "steps.jsonl", self.folder / "stop"
        for path in (log, stop, self._table, self.folder / "model.pt", self.folder / "status.json"):
            path.unlink(missing_ok=True)
        return log, stop

    @contextmanager
    def watching(self) -> Iterator[WatchProcess]:
        """Yield a watch of the fabric that has published or resumed a table; it ends with the `with` block."""
        file = self.folder / "fabric.yaml"
        config: Json = {"name": "demo-watch", "topology": self.topology.spec, "fabric": self.fabric.name}
        config |= {"table": str(self._table), "sizes": [SIZE_BYTES // 4, SIZE_BYTES], **self.settings}
        file.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "chorale", "watch", str(file), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        watch = WatchProcess(process)
        reader = threading.Thread(target=watch.read)
        reader.start()
        try:
            begins = ("publish", "resume")
            wait_until("the watch has a table", lambda: any(event["event"] in begins for event in watch.events))
            yield watch
        finally:
            process.terminate()
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reader.join()

    @contextmanager
    def training(self, log: Path, stop: Path, members: Sequence[int] | None = None) -> Iterator[TrainingRun]:
        """Run a training job that logs its steps and ends when the file `stop` exists.

        Args:
            log: file of the steps.
            stop: file that ends the job.
            members: ranks of the fabric in the job, which then continues from the checkpoint of the job before.

        Raises:
            CheckFailed: if the job fails, unless `may_fail` is set on the yielded job.
        """
        arguments = ["--log", str(log), "--stop", str(stop), "--size", str(SIZE_BYTES)]
        arguments += ["--timeout-s", str(self.collective_limit_s)]
        if members is not None:
            arguments += ["--checkpoint", str(self.folder / "model.pt")]
        status = str(self.folder / "status.json")
        environment = {"CHORALE_TABLE": str(self._table), "CHORALE_RELOAD": "0.2", "CHORALE_STATUS": status}
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

    def figures(
        self, steps: Sequence[Json], events: Sequence[Json], fault_s: float, publication: Json | None = None
    ) -> Json:
        """Return the figures of one fault.

        - detected_s, published_s, first_step_s: seconds from the fault until the first change of a link's state, until
          the new table was published, and until the first step on it ended;
        - steps_lost: steps that failed or had to be repeated, by gaps in their numbers;
        - bandwidth_of_bound_*: the least time that the links allow for the checked allreduce over its median time,
          before the fault, between it and the new table, and on the new table.

        Args:
            steps: logged steps.
            events: events of the watch.
            fault_s: time of the fault.
            publication: event of the table after the fault; None for the first one.
        """
        later = [event for event in events if event["time_s"] > fault_s]
        new = publication or next(event for event in later if event["event"] == "publish")
        before = [step for step in steps if step["end_s"] <= fault_s][1:]
        after = [step for step in steps if step["table"] == new["table"]]
        between = [step for step in steps if step["end_s"] > fault_s and step["table"] != new["table"]]
        plans = [event for event in events if event["event"] == "replan" and "costs" in event]
        bounds = {plan["spec"]: Fraction(plan["costs"]["allreduce"]["lower_bound"]) for plan in plans}
        least_s = {
            name: float(bound) * SIZE_BYTES * 8 / (self.link_mbps * 1e6)
            for name, bound in (("before", next(iter(bounds.values()))), ("after", bounds[new["spec"]]))
        }
        medians = {"before": median_s(before), "between": median_s(between), "after": median_s(after[1:])}
        shares = {
            f"bandwidth_of_bound_{name}": seconds and least_s["before" if name == "before" else "after"] / seconds
            for name, seconds in medians.items()
        }
        return {
            "detected_s": next(event for event in later if event["event"] == "state")["time_s"] - fault_s,
            "published_s": new["time_s"] - fault_s,
            "stages_s": new["stages"],
            "first_step_s": after[0]["end_s"] - fault_s,
            "longest_step_s": max(step["step_s"] + step["sum_s"] for step in steps if step["end_s"] > fault_s),
            "steps_lost": max(step["step"] for step in steps) + 1 - len(steps),
            "steps": {"before": len(before), "between": len(between), "after": len(after)},
            "wrong_sums": sum(step["wrong"] > 0 for step in steps),
            "allreduce_s": medians,
            "least_s": least_s,
            **shares,
            "tables": {"before": before[-1]["table"], "after": new["table"]},
        }

    @property
    def _table(self) -> Path:
        return self.folder / "fabric.table"


def wait_until(what: str, holds: Callable[[], bool], limit_s: float = _WAIT_LIMIT_S) -> None:
    """Wait until `holds` returns true. Raises CheckFailed with `what` after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"{what} did not happen within {limit_s:g} s", "", "read the output above")
        time.sleep(_POLL_S)


def published(watch: WatchProcess, after_s: float, ranks: int | None = None) -> Json | None:
    """Return the first table, of `ranks` ranks if given, that was published after `after_s`; None if there is none."""
    tables = (event for event in watch.events if event["event"] == "publish" and event["time_s"] > after_s)
    return next((table for table in tables if ranks in (None, len(table["ranks"]))), None)


def read_steps(log: Path) -> list[Json]:
    """Return the logged steps; an incomplete last line does not count."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def has_enough(steps: Sequence[Json], table: str | None) -> bool:
    """Return whether enough steps for a median ran on `table`."""
    return [step["table"] for step in steps].count(table) > _LEAST_STEPS


def median_s(steps: Sequence[Json]) -> float | None:
    """Return the median seconds of the checked allreduce, or None if there are no steps."""
    return statistics.median(step["sum_s"] for step in steps) if steps else None


CABLE = (0, 1)


def cut(demo: WatchDemo, steps_before: int) -> Json:
    return demo.run(lambda: detours.cut(demo.fabric, CABLE), steps_before)


def main(arguments: list[str], faults: Mapping[str, Callable[[WatchDemo, int], Json]]) -> int:
    """Run the demo, print its figures and write them to the data folder; return the exit code.

    faults: the faults that can be chosen, by name
    """
    parser = argparse.ArgumentParser(prog="python -m tests.live.watch.faults", description=__doc__)
    parser.add_argument("--topology", default="hypercube:3")
    parser.add_argument("--link-mbps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10, help="before the fault")
    parser.add_argument("--fault", choices=list(faults), default="cut")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the fabric is taken down in any case
    try:
        home = Home.from_environment()
        folder = home.create(home.root) / "demo-watch"
        folder.mkdir(exist_ok=True)
        topology = parse_topology(options.topology)
        fabric = bring_up_tested(topology, Fraction(options.link_mbps), f"demo-watch-{os.getpid()}")
        try:
            demo = WatchDemo(topology, fabric, folder, options.link_mbps)
            measured = faults[options.fault](demo, options.steps)
        finally:
            take_down(fabric)
    except ChoraleError as error:
        sys.stderr.write(f"demo-watch: {error}\n")
        return error.exit_code
    facts = {"network": options.topology, "link_mbps": options.link_mbps, "fault": options.fault}
    text = json.dumps({**facts, **measured, "load_average": load_average()}, indent=1)
    name = "demo-watch.json" if options.fault == "cut" else f"demo-watch-{options.fault}.json"
    (home.root / name).write_text(f"{text}\n")
    sys.stdout.write(f"{text}\n")
    return 0
