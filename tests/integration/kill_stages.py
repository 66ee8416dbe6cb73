"""A launch that is killed with SIGKILL at a chosen stage, and resumed. Run as a script with the names of stages.

Each launch runs in a fork of this process, so that the libraries are imported once. Prints one JSON document: stage ->
what was there after the kill, and what the resumed launch made of it.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.progress import PlainLines
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.search.search import Search
from chorale.tuner.tracking.mlflow_store import MlflowStore, load_mlflow
from chorale.tuner.tracking.tracker import TRIAL_ID
from chorale.tuner.trials.journal import Journal
from chorale.tuner.trials.store import Store
from tests.campaigns import small_campaign
from tests.fakes import InlineWorkers


@dataclass(frozen=True, slots=True)
class Stage:
    """The moment right before, or right after, call number `call` of a method."""

    owner: type
    method: str
    call: int
    after: bool = False


STAGES = {
    "before the first line": Stage(Journal, "append", 1),
    "after the first line": Stage(Journal, "append", 1, after=True),
    "before a trial is saved": Stage(Journal, "append", 4),
    "after a trial is saved": Stage(Journal, "append", 4, after=True),
    "before the files of a trial": Stage(Store, "keep", 3),
    "before the search hears": Stage(Search, "tell", 3),
    "after the search heard": Stage(Search, "tell", 3, after=True),
    "before the parent run": Stage(MlflowStore, "start_run", 1),
    "after the parent run": Stage(MlflowStore, "start_run", 1, after=True),
    "before an upload": Stage(MlflowStore, "start_run", 3),
    "after a run is made": Stage(MlflowStore, "start_run", 3, after=True),
    "before its files": Stage(MlflowStore, "upload", 3),
    "before its end": Stage(MlflowStore, "end_run", 2),
    "after its end": Stage(MlflowStore, "end_run", 2, after=True),
    "before the final is saved": Stage(Journal, "append", 8),
    "before registration": Stage(MlflowStore, "register", 1),
    "after registration": Stage(MlflowStore, "register", 1, after=True),
    "after the alias": Stage(MlflowStore, "set_alias", 1, after=True),
}


def deadly(stage: Stage) -> None:
    """Make this process kill itself at `stage`."""
    genuine, calls = getattr(stage.owner, stage.method), count(1)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        fatal = next(calls) == stage.call
        if fatal and not stage.after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = genuine(self, *arguments, **named)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(stage.owner, stage.method, call)


def launch(home: Home, resume: bool) -> TuneReport:
    campaign = small_campaign()
    workers = InlineWorkers(SimulatedRunner(NetworkModel.of(link_gbps=1)))
    progress = lambda budget, done: PlainLines(Console(quiet=True), budget, done)  # noqa: E731 (a callback)
    return tune(campaign, load_topology(campaign.topology), home, resume, lambda: workers, progress)


def in_a_fork(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; return how it ended, as `os.waitstatus_to_exitcode` does."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def resumed(home: Home, out: Path) -> None:
    report = launch(home, resume=True)
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    runs = client.search_runs([str(report.tracked.experiment_id)])
    document = {
        "trials": [trial.trial_id for trial in report.trials],
        "states": sorted({trial.state for trial in report.trials}),
        "runs": [run.data.tags[TRIAL_ID] for run in runs if TRIAL_ID in run.data.tags],
        "open_runs": [run.info.run_id for run in runs if run.info.status != "FINISHED"],
        "parents": sum(TRIAL_ID not in run.data.tags for run in runs),
        "versions": dict(report.versions),
        "speedups": [round(max(place.sizes[index].speedup for place in report.ranked_trials), 6) for index in range(2)],
    }
    out.write_text(json.dumps(document))


def killed_and_resumed(folder: Path, template: Path, stage: Stage) -> dict[str, Any]:
    home = Home(folder)
    shutil.copytree(template, folder)

    def doomed() -> None:
        deadly(stage)
        launch(home, resume=False)

    ended = in_a_fork(doomed)
    journals = sorted(home.campaigns.rglob("trials.jsonl"))
    before = journals[0].read_text() if journals else ""
    out = folder / "resumed.json"
    assert in_a_fork(lambda: resumed(home, out)) == 0
    journals = sorted(home.campaigns.rglob("trials.jsonl"))
    kept = any(journal.read_text().startswith(before) for journal in journals)
    return {"ended": ended, "saved_before": max(0, before.count("\n") - 1), "kept": kept, **json.loads(out.read_text())}


def main(folder: Path, names: list[str]) -> dict[str, Any]:
    load_mlflow()
    template = folder / "template"
    uri = f"sqlite:///{template / 'mlflow.db'}"
    assert in_a_fork(lambda: MlflowStore(uri, folder).experiment("small") and None) == 0
    return {name: killed_and_resumed(folder / str(number), template, STAGES[name]) for number, name in enumerate(names)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))  # noqa: T201
