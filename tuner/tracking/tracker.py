"""Logs a launch to MLflow: a parent run, a child run for each trial, and the content of these runs."""

import json
import logging
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib.metadata import version

import psutil

from chorale.runners.api.units import format_size
from chorale.synth.errors import ChoraleError, Unavailable
from chorale.synth.redaction import redacted
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_store import MetricPoint, MlflowStore, RunState, load_mlflow
from chorale.tuner.trials import records
from chorale.tuner.trials.store import Store, uninterrupted

STATUS = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}
NOTICE_S = 10.0
"""Seconds after which the user is told what Chorale is waiting for."""


def size_metrics(sizes: Sequence[records.SizeResult], prefix: str = "") -> list[MetricPoint]:
    points = []
    for size in sizes:
        beside = size.baseline_times_s if size.beside else {}
        values = {
            "time_us": size.median_s * 1e6,
            "time_us_min": min(size.times_s) * 1e6,
            "algbw_gb_per_s": size.algbw_gb_per_s,
            "speedup": size.speedup,
            **{f"baseline_time_us.{name}": statistics.median(times) * 1e6 for name, times in beside.items()},
        }
        points += [MetricPoint(f"{prefix}{name}", value, size.size_bytes) for name, value in values.items()]
    return points


@dataclass(frozen=True, slots=True)
class TrackingResult:
    """A launch's runs in MLflow; `run_ids` is trial id -> run id. `problem` says why something was not uploaded."""

    experiment_id: str | None = None
    parent_run_id: str | None = None
    run_ids: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


_log = logging.getLogger("chorale.tracking")

LAUNCH_ID = "chorale.launch_id"
PARENT_OF = "chorale.parent_of"
TRIAL_ID = "chorale.trial_id"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
COURSE_STEP = 5
"""Number of newly finished trials after which the best result so far is logged to the parent run."""


class Tracker:
    """Logs a launch to MLflow from a background thread, so that measurements never wait for the server.

    No decision of the launch depends on MLflow. After an error the tracker pauses, and the pause doubles as long as
    MLflow stays unreachable. When the next trial finishes after the pause, or when `finish` is called, everything that
    is missing is uploaded. The tracker asks MLflow which trials it has, so neither a lost response nor a crash creates
    a run twice.

    objects: class names of objects that replace the campaign's sampler or pruner; they become tags of the parent run
    """

    def __init__(
        self,
        home: Home,
        campaign: Campaign,
        topology: Topology,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        objects: Mapping[str, str] | None = None,
    ) -> None:
        self._home = home
        self._objects = {f"chorale.{key}": name for key, name in (objects or {}).items()}
        self._campaign = campaign
        self._topology = topology
        self._store = store
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chorale-mlflow")
        self._opening: Future[None] | None = None
        self._uri = campaign.tracking.address(home.mlflow_uri)
        self._mlflow: MlflowStore | None = None
        self._experiment_id = ""
        self._parent_run_id = ""
        self._runs: dict[str, RunState] = {}
        self._problem: str | None = None
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._again_s = 0.0
        self._shown_trials = 0

    def start(self) -> Future[None]:
        """Start connecting to MLflow in the background. The future completes when the attempt has ended.

        This imports MLflow, which takes a second. Other methods call `start` if it has not been called.
        """
        if self._opening is None:
            with uninterrupted():  # after an interrupted import, MLflow cannot be imported again
                load_mlflow()  # here, because importing it in another thread while Ray is imported can deadlock
            self._opening = self._thread.submit(self._guarded, self._open)
        return self._opening

    def await_opening(self, patience_s: float) -> None:
        """Wait up to `patience_s` seconds for the connection, so that no two threads create tables at the same time."""
        wait([self.start()], patience_s)

    def trial(self, _record: records.TrialRecord) -> None:
        """Start uploading the finished trials in the background."""
        self.start()

        def upload() -> None:
            if self._problem is None or self._clock() >= self._again_s:
                self._guarded(self._upload_missing, list(self._store.trials), COURSE_STEP, self._problem is not None)

        self._thread.submit(upload)

    def finish(
        self,
        trials: Sequence[records.TrialRecord],
        final: records.FinalComparison | None,
        status: str,
        patience_s: float,
        try_again: Callable[[], bool] = lambda: False,
    ) -> TrackingResult:
        """Upload everything that is missing and close the parent run; give up after `patience_s` without progress.

        If MLflow cannot be reached, `try_again` is called. It may wait, and returns whether to try once more.
        """
        self.start()
        while True:
            last = self._thread.submit(self._guarded, self._complete, list(trials), final, status)
            uploaded, pauses = -1, math.ceil(patience_s / NOTICE_S)
            while not last.done() and uploaded < len(self._runs):
                uploaded = len(self._runs)
                for _ in range(pauses):
                    if wait([last], patience_s / pauses).done:
                        break
                    text = (
                        "waiting for MLflow at %s: it has %d of %d trials (ctrl-C ends this; --resume uploads the rest)"
                    )
                    _log.warning(text, self._uri, len(self._runs), len(trials))
            if not last.done():
                self._problem = f"MLflow at {redacted(self._uri)} is slow"
            if self._problem is None or not try_again():
                break
        self._thread.shutdown(wait=False, cancel_futures=True)
        run_ids = {trial_id: run.run_id for trial_id, run in self._runs.items() if run.finished}
        experiment_id, parent_run_id = self._experiment_id or None, self._parent_run_id or None
        return TrackingResult(experiment_id, parent_run_id, run_ids, self._problem)

    def abandon(self) -> None:
        """Stop uploading, because another process has taken over this launch."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def mlflow(self) -> MlflowStore | None:
        """Return MLflow's store, for use after `finish`, or None if MLflow cannot be reached."""
        return None if self._problem else self._mlflow

    def _guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Run `step`. If it fails, store the reason and the time of the next attempt."""
        try:
            step(*arguments)
        except (ChoraleError, OSError) as error:
            if self._problem is None:
                _log.warning("%s (the campaign continues; its journal keeps everything for a later upload)", error)
            self._problem = str(error)
            self._failures += 1
            self._again_s = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            if self._problem is not None:
                _log.info("MLflow answers again; everything has been uploaded")
            self._problem, self._pause_s = None, FIRST_PAUSE_S

    def _open(self) -> None:
        """Ask MLflow which runs of this launch it has, and create the parent run if it does not exist."""
        self._mlflow = mlflow = self._mlflow or MlflowStore(self._uri, self._home.artifacts)
        launch = self._store.launch
        self._experiment_id = mlflow.experiment(self._campaign.tracking.experiment or self._campaign.name)
        self._runs = mlflow.runs(self._experiment_id, LAUNCH_ID, launch.launch_id, TRIAL_ID)
        parent = mlflow.runs(self._experiment_id, PARENT_OF, launch.launch_id, LAUNCH_ID).get(launch.launch_id)
        campaign = self._campaign
        if parent is not None:
            self._parent_run_id = parent.run_id
            mlflow.reopen_run(parent.run_id)
        else:
            sizes = f"{format_size(campaign.sizes[0])} to {format_size(campaign.sizes[-1])}"
            description = (
                f"Launch {launch.number} of the campaign {campaign.name}: {campaign.collective} on "
                f"`{campaign.topology}` at {len(campaign.sizes)} sizes from {sizes}, measured by the "
                f"{campaign.runner.kind} runner and compared with {', '.join(campaign.baselines)}. Each nested run is "
                "a trial; `best_speedup` is the best mean speed-up after each of them."
            )
            tags = {
                LAUNCH_ID: launch.launch_id,
                PARENT_OF: launch.launch_id,
                "chorale.topology": self._topology.spec,
                "chorale.topology_id": self._topology.id,
                "chorale.version": version("chorale-collectives"),
                "mlflow.note.content": description,
                "mlflow.user": psutil.Process().username(),
                "mlflow.source.name": sys.argv[0] or "python",
            }
            name, start_ms = f"{campaign.name} {launch.number}", int(launch.started_unix_s * 1000)
            self._parent_run_id = mlflow.start_run(self._experiment_id, name, tags, start_ms)
        parameters = {
            "topology": campaign.topology,
            "collective": campaign.collective,
            "sizes": ",".join(str(size) for size in campaign.sizes),
            "runner": campaign.runner.kind,
            "baselines": ",".join(campaign.baselines),
            "repeats": str(campaign.repeats),
            "sampler": campaign.resolved_sampler,
            "seed": str(campaign.seed),
        }
        mlflow.log(self._parent_run_id, parameters=parameters, tags=self._objects)
        document = json.dumps(self._campaign.model_dump(by_alias=True, mode="json"), indent=2)
        mlflow.upload(self._parent_run_id, {"campaign.json": document.encode()})

    def _upload_trial(self, record: records.TrialRecord) -> None:
        run = self._runs.get(record.trial_id)
        if run is not None and run.finished:
            return
        self._store.journal.require_ours()  # another process that took over the launch would upload this trial, too
        mlflow = self._require_mlflow()
        start_ms = int(record.started_unix_s * 1000)
        end_ms = start_ms + int(record.seconds * 1000)
        tags = {
            "chorale.state": record.state,
            "chorale.candidate_id": record.candidate.id,
            "chorale.topology_id": self._topology.id,
        }
        if isinstance(record, records.CompleteTrial):
            tags |= {"chorale.schedule_id": record.schedule_id, "chorale.program_id": record.program_id}
            if record.same_program_as:
                tags["chorale.same_program_as"] = record.same_program_as
        elif isinstance(record, records.FailedTrial):
            tags |= {"chorale.failure_kind": record.failure_kind.value, "chorale.message": record.message}
        else:
            tags["chorale.message"] = record.reason
        if not isinstance(record, records.PrunedTrial):
            tags |= {f"chorale.environment.{key}": str(value) for key, value in record.environment.items()}
        if run is None:
            identity = {LAUNCH_ID: self._store.launch.launch_id, TRIAL_ID: record.trial_id}
            name = f"{record.number:03d} {record.candidate.method}"
            run_id = mlflow.start_run(self._experiment_id, name, identity | tags, start_ms, self._parent_run_id)
            tags = {}
        else:
            run_id = run.run_id
        values = record.candidate.parameters.items()
        parameters = {name: "null" if value is None else str(value) for name, value in values}
        metrics = [MetricPoint("seconds", record.seconds)]
        if isinstance(record, records.CompleteTrial):
            metrics += [MetricPoint("mean_speedup", record.speedup), *size_metrics(record.sizes)]
        mlflow.log(run_id, metrics, parameters, tags, end_ms)
        files = {"measurements.json": records.trial_codec.dump_json(record, indent=2)}
        if isinstance(record, records.CompleteTrial):
            schedule = self._store.schedule_path(record.schedule_id)
            paths = {"schedule.parquet": schedule, "program.xml": self._store.program_path(record.program_id)}
            # The files are missing if only the journal was copied
            files |= {name: path.read_bytes() for name, path in paths.items() if path.exists()}
        mlflow.upload(run_id, files)
        mlflow.end_run(run_id, STATUS[record.state], end_ms)
        self._runs[record.trial_id] = RunState(run_id, finished=True)

    def _upload_missing(self, trials: Sequence[records.TrialRecord], course_step: int, opens: bool) -> None:
        """Upload the trials that MLflow does not have yet. If `opens` is set, first ask MLflow which trials it has.

        After at least `course_step` new trials, the best result so far after each of them is logged to the parent run.
        """
        if opens or not self._parent_run_id:
            self._open()
        for record in trials:
            self._upload_trial(record)
        if len(trials) - self._shown_trials >= course_step:
            # The best mean speed-up so far, after each trial that is not shown yet
            best, points = 0.0, []
            for count, trial in enumerate(trials, 1):
                best = max(best, trial.speedup) if isinstance(trial, records.CompleteTrial) else best
                if best and count > self._shown_trials:
                    points.append(
                        MetricPoint("best_speedup", best, count, int((trial.started_unix_s + trial.seconds) * 1000))
                    )
            self._require_mlflow().log(self._parent_run_id, points)
            self._shown_trials = len(trials)

    def _complete(
        self, trials: Sequence[records.TrialRecord], final: records.FinalComparison | None, status: str
    ) -> None:
        self._upload_missing(trials, 1, bool(self._failures) or self._store.is_resumed)
        mlflow = self._require_mlflow()
        counts = Counter[str](trial.state for trial in trials)
        summary = [MetricPoint(f"trials_{state}", float(counts[state])) for state in STATUS]
        for sizes in zip(*(trial.sizes for trial in trials if isinstance(trial, records.CompleteTrial)), strict=True):
            best = max(one.speedup for one in sizes)
            summary.append(MetricPoint("best_speedup_by_size", best, sizes[0].size_bytes))
        mlflow.log(self._parent_run_id, summary)
        compared = final.results if final else {}
        for trial_id in self._runs.keys() & compared.keys():  # a repaired journal may lack a trial
            mlflow.log(self._runs[trial_id].run_id, size_metrics(compared[trial_id], "final_"))
        mlflow.end_run(self._parent_run_id, status)

    def _require_mlflow(self) -> MlflowStore:
        if self._mlflow is None:
            raise Unavailable(
                "there is no connection to MLflow at {}", self._uri, "start the campaign again with --resume"
            )
        return self._mlflow
