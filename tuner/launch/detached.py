"""Runs launches in a Ray cluster, where they outlive the process that started them. Ray restarts them after a crash."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorale.runners.api.base import Workers
from chorale.runners.ray.watch import ClusterLost, end_with_raylet, handle_loss
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.config.campaign import Campaign, make_workers
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.tune import LaunchProgress, TuneReport, tune
from chorale.tuner.trials.records import TrialRecord

if TYPE_CHECKING:
    from chorale.runners.ray.detached import DetachedActor, DetachedActors

MLFLOW_PAUSE_S = 10.0
SERVER_TRIES, LOCAL_TRIES = 8640, 3
"""Maximum number of attempts to upload to MLflow when a launch ends: many for a server, which may be reachable again
within a day, and few for a local store, because a read-only folder stays read-only."""
FORMER_SELF_S = 300.0
"""Seconds that a restarted launch waits for the folder's lock, which its previous process may still hold."""


class LaunchState(StrEnum):
    """State of a detached launch: running, ended with a report, or failed with an error."""

    RUNNING = "running"
    ENDED = "ended"  # there is a report
    FAILED = "failed"  # there is an error


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """A launch's progress: `done` of at most `budget` trials have finished. `new_trials` are those not yet reported."""

    state: LaunchState
    budget: int
    done: int
    new_trials: tuple[TrialRecord, ...]
    error: ChoraleError | None = None


def detached_name(campaign: str) -> str:
    """Return the name of the Ray actor that runs a campaign's launch."""
    return f"chorale-campaign:{campaign}"


def start_launch(actors: DetachedActors, document: Mapping[str, Any], home: Path, resume: bool) -> None:
    """Start a launch of the campaign `document` or resume its newest launch. Raises CheckFailed if one is running."""
    name = detached_name(document["name"])
    former: DetachedActor | None = actors.find(name)
    if former is not None:
        status: LaunchStatus = former.call("status", 0)
        if status.state == LaunchState.RUNNING:
            way_out = f"wait for it, or end it with `chorale tune --stop {document['name']}`"
            raise CheckFailed("the campaign {} is running already", document["name"], way_out)
        former.remove()
    actors.start(name, DetachedLaunch, (document, home, None if resume else uuid.uuid4().hex)).call("status", 0)


class DetachedLaunch:
    """Runs a launch in a thread, so that its progress can be queried while it runs.

    After a crash, a new object with the same arguments resumes the launch, on any node that can access the folder
    `home`, because all state is on disk. If `launch_id` is None, the newest launch is resumed.
    """

    def __init__(self, campaign: Mapping[str, Any], home: Path, launch_id: str | None) -> None:
        self._campaign = Campaign.model_validate(dict(campaign))
        self._home = Home(home)
        self._launch_id = launch_id
        self._listener = _Collector()
        self._stop = threading.Event()
        self._report: TuneReport | None = None
        self._error: ChoraleError | None = None
        uri = self._campaign.tracking.address(self._home.mlflow_uri)
        self._tries = SERVER_TRIES if uri.startswith(("http://", "https://")) else LOCAL_TRIES
        end_with_raylet()
        handle_loss(lambda loss: os._exit(1))
        self._thread = threading.Thread(target=self._run, name="chorale-launch", daemon=True)
        self._thread.start()

    def status(self, received: int) -> LaunchStatus:
        """Return the launch's progress. `new_trials` leaves out the first `received` trials, which the caller has."""
        ended = not self._thread.is_alive()  # check this first: the report is set before the thread ends
        state = LaunchState.RUNNING
        if ended:
            state = LaunchState.FAILED if self._error or not self._report else LaunchState.ENDED
        trials = tuple(self._listener.trials)
        return LaunchStatus(state, self._campaign.budget.trials, len(trials), trials[received:], self._error)

    def report(self) -> TuneReport | None:
        """Return the launch's report; None if the launch is still running or has failed."""
        return self._report

    def stop(self) -> None:
        """Make the launch end soon. Finished trials are kept, and the launch can be resumed."""
        self._stop.set()

    def _run(self) -> None:
        try:
            topology = load_topology(self._campaign.topology)
            make = make_workers(self._campaign, topology, self._home.root)
            self._report = tune(
                self._campaign,
                topology,
                self._home,
                self._launch_id is None,
                lambda: _Stoppable(make(), self._stop),
                self._listener.begin,
                launch_id=self._launch_id,
                try_again=self._try_again,
                patience_s=FORMER_SELF_S,
            )
            problem = self._report.tracked.problem
            if problem is not None and not self._stop.is_set():
                rule, way_out = "some trials are not in MLflow: {}", "repair this, then continue with --resume"
                self._error = CheckFailed(rule, problem, way_out)
        except ChoraleError as error:
            self._error = type(error)(error.rule, str(error.value), error.way_out)  # the value may not be serializable
        except Exception as error:  # reported by `status`, because exceptions in a thread are otherwise lost
            value = f"{type(error).__name__}: {error}"
            self._error = CheckFailed(
                "the launch ended without a report: {}", value, "report this, then continue with --resume"
            )

    def _try_again(self) -> bool:
        """Wait, then return whether to try MLflow again: not if `stop` was called or if no attempts are left."""
        self._tries -= 1
        return self._tries >= 0 and not self._stop.wait(MLFLOW_PAUSE_S)


class _Collector(LaunchProgress):
    def __init__(self) -> None:
        self.trials: list[TrialRecord] = []

    def begin(self, _budget: int, recorded: Sequence[TrialRecord]) -> _Collector:
        self.trials = list(recorded)
        return self

    def trial(self, record: TrialRecord) -> None:
        self.trials.append(record)


class _Stoppable:
    """Wraps workers so that they raise KeyboardInterrupt when `stop` is set, because signals do not reach threads.

    If the cluster's head no longer responds, this process ends immediately. The cluster then restarts the launch on
    another node, and the restarted launch must wait until this process has unlocked the campaign's folder.
    """

    def __init__(self, inner: Workers, stop: threading.Event) -> None:
        self.build, self.measure, self.close = inner.build, inner.measure, inner.close
        self._inner, self._stop = inner, stop

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        if self._stop.is_set():
            raise KeyboardInterrupt
        try:
            return self._inner.wait(futures, timeout_s)
        except ClusterLost:
            os._exit(1)
