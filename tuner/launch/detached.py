"""A launch that lives in a Ray cluster: it goes on without the process that started it, and after its own death."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from chorale.runners.api.workers import Future, Workers
from chorale.runners.ray.workers import RayWorkers
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.runner_factory import make_workers
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.trials.records import TrialRecord

MLFLOW_PAUSE_S = 10.0
FORMER_SELF_S = 300.0
"""How long a launch that was made again waits for the one that it was: its process may end later than its node seems
to, and a file server may let go of its lock later still."""


class LaunchState(StrEnum):
    """What a resident launch does."""

    RUNNING = "running"
    ENDED = "ended"  # there is a report
    FAILED = "failed"  # there is an error


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """How far a launch is: `done` of `budget` trials, of which `news` are those that the asker has not heard of."""

    state: LaunchState
    budget: int
    done: int
    new_trials: tuple[TrialRecord, ...]
    error: ChoraleError | None = None


def detached_name(campaign: str) -> str:
    """Return the name under which the launch of a campaign lives in a cluster."""
    return f"chorale-campaign:{campaign}"


class DetachedLaunch:
    """Runs a launch in a thread and answers questions about it meanwhile.

    Everything it knows is on disk: an object made again with the same arguments goes on where the last one was
    killed, if it sees the same `home`. `launch_id` names the launch; without it the newest one is resumed.
    """

    def __init__(self, campaign: Mapping[str, Any], home: Path, launch_id: str | None) -> None:
        self._campaign = Campaign.model_validate(dict(campaign))
        self._home = Home(home)
        self._launch_id = launch_id
        self._ears = _ProgressListener()
        self._stop = threading.Event()
        self._report: TuneReport | None = None
        self._error: ChoraleError | None = None
        self._thread = threading.Thread(target=self._run, name="chorale-launch", daemon=True)
        self._thread.start()

    def status(self, heard: int) -> LaunchStatus:
        """Return how far it is, with the trials after the first `heard` as far as this object has seen them."""
        state = (
            LaunchState.RUNNING
            if self._thread.is_alive()
            else LaunchState.ENDED
            if self._report
            else LaunchState.FAILED
        )
        done = self._ears.done
        return LaunchStatus(state, self._campaign.budget.trials, done, self._ears.after(heard, done), self._error)

    def report(self) -> TuneReport | None:
        """Return what came of it, None while it runs or if it failed."""
        return self._report

    def stop(self) -> None:
        """Ask it to end now; what finished is kept, and a resumed launch goes on from there."""
        self._stop.set()

    def _run(self) -> None:
        try:
            topology = load_topology(self._campaign.topology)
            make = partial(self._workers, make_workers(self._campaign, topology, self._home.root))
            resume = self._launch_id is None
            progress = self._ears.listen
            self._report = tune(
                self._campaign,
                topology,
                self._home,
                resume,
                make,
                progress,
                self._launch_id,
                self._try_again,
                FORMER_SELF_S,
            )
        except ChoraleError as error:
            self._error = type(error)(error.rule, str(error.value), error.way_out)  # the value may not travel
        except Exception as error:  # whoever asks must hear of it; a thread has nobody else to tell
            value = f"{type(error).__name__}: {error}"
            self._error = CheckFailed("a launch must end with a report", value, "report this, then go on with --resume")

    def _try_again(self) -> bool:
        """Wait before MLflow is tried again; there is time, as nobody waits for the end."""
        return not self._stop.wait(MLFLOW_PAUSE_S)

    def _workers(self, make: Callable[[], RayWorkers]) -> Workers:
        return _Stoppable(make(), self._stop)


class _ProgressListener:
    """Hears of trials; a Progress."""

    def __init__(self) -> None:
        self._heard: list[TrialRecord] = []

    @property
    def done(self) -> int:
        return len(self._heard)

    def listen(self, _budget: int, known: Sequence[TrialRecord]) -> _ProgressListener:
        self._heard = list(known)
        return self

    def after(self, heard: int, done: int) -> tuple[TrialRecord, ...]:
        return tuple(self._heard[heard:done])

    def trial(self, record: TrialRecord) -> None:
        self._heard.append(record)

    def __enter__(self) -> _ProgressListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class _Stoppable:
    """Workers that behave as if ctrl-C had been pressed once `stop` is set: signals reach no thread."""

    def __init__(self, inner: RayWorkers, stop: threading.Event) -> None:
        self.builder, self.measurer = inner.builder, inner.measurer
        self.share, self.close = inner.share, inner.close
        self._inner, self._stop = inner, stop

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        if self._stop.is_set():
            raise KeyboardInterrupt
        return self._inner.wait(futures, timeout_s)
