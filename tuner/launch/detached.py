"""A launch that lives in a Ray cluster: it goes on without the process that started it, and after its own death."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from chorale.runners.api.workers import Workers
from chorale.runners.ray.watch import ClusterLost, end_with_raylet, handle_loss
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.config.campaign import Campaign, make_workers
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.progress import LaunchProgress
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.trials.records import TrialRecord

MLFLOW_PAUSE_S = 10.0
SERVER_TRIES, LOCAL_TRIES = 8640, 3
"""How often uploading to MLflow is retried at the end: a server may come back within a day; a local folder that is not
writable will stay so.
"""
FORMER_SELF_S = 300.0
"""How long a restarted launch waits for the lock of its former process. That may end later than its node seems to, and
a file server may release the lock later still.
"""


class LaunchState(StrEnum):
    """Whether a detached launch still runs, and how it ended."""

    RUNNING = "running"
    ENDED = "ended"  # there is a report
    FAILED = "failed"  # there is an error


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """Progress of a launch: `done` of at most `budget` trials; `new_trials` are those that the caller does not have."""

    state: LaunchState
    budget: int
    done: int
    new_trials: tuple[TrialRecord, ...]
    error: ChoraleError | None = None


def detached_name(campaign: str) -> str:
    """Return the name under which the launch of a campaign lives in a cluster."""
    return f"chorale-campaign:{campaign}"


class DetachedLaunch:
    """Runs a launch in a thread and answers questions about it at the same time.

    All of its state is on disk: an object with the same arguments resumes where the last one was killed, if it sees the
    same `home`. `launch_id` names the launch; without it the newest one is resumed.
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
        """Return how far the launch is, with the trials after the first `received`, which the caller has already."""
        ended = not self._thread.is_alive()  # before looking at the report, which is there before the end
        state = LaunchState.RUNNING
        if ended:
            state = LaunchState.FAILED if self._error or not self._report else LaunchState.ENDED
        trials = tuple(self._listener.trials)
        return LaunchStatus(state, self._campaign.budget.trials, len(trials), trials[received:], self._error)

    def report(self) -> TuneReport | None:
        """Return the report of the launch, None while it runs or if it failed."""
        return self._report

    def stop(self) -> None:
        """End the launch soon; finished trials are kept, and a resumed launch goes on from there."""
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
            self._error = type(error)(error.rule, str(error.value), error.way_out)  # the value may not travel
        except Exception as error:  # reported by `status`: nobody else sees what ends a thread
            value = f"{type(error).__name__}: {error}"
            self._error = CheckFailed(
                "the launch ended without a report: {}", value, "report this, then continue with --resume"
            )

    def _try_again(self) -> bool:
        """Wait before MLflow is tried again, if it may be; nobody waits for a detached launch to end."""
        self._tries -= 1
        return self._tries >= 0 and not self._stop.wait(MLFLOW_PAUSE_S)


class _Collector(LaunchProgress):
    """Collects the trials of the launch."""

    def __init__(self) -> None:
        self.trials: list[TrialRecord] = []

    def begin(self, _budget: int, recorded: Sequence[TrialRecord]) -> _Collector:
        self.trials = list(recorded)
        return self

    def trial(self, record: TrialRecord) -> None:
        self.trials.append(record)


class _Stoppable:
    """Workers that behave as if ctrl-C had been pressed once `stop` is set, because signals do not reach threads.

    If the head of the cluster no longer answers, the process ends immediately: the cluster restarts the launch on
    another node, which must find the folder unlocked.
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
