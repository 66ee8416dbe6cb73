"""A launch as MLflow sees it: a parent run, and below it one run per trial."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillBusy
from dataclasses import dataclass, field
from importlib.metadata import version

from synth.errors import ChoraleError, Unavailable
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.final import Final
from tuner.campaigns.records import CompleteTrial, FailedTrial, SizeResult, TrialRecord, trial_codec
from tuner.campaigns.store import Store
from tuner.home import Home
from tuner.tracking.mlflow_store import MlflowStore, RunState, load_mlflow

_log = logging.getLogger("chorale.tracking")

LAUNCH_ID = "chorale.launch_id"
TRIAL_ID = "chorale.trial_id"
STATUS = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}


@dataclass(frozen=True, slots=True)
class Tracked:
    """What MLflow knows of a launch at its end. `problem` says in one line why it does not know everything."""

    experiment_id: str | None = None
    parent_run_id: str | None = None
    run_ids: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


class Tracker:
    """Tells MLflow about a launch from a thread of its own, so that measuring never waits for it.

    MLflow hears everything and decides nothing: the first error stops the uploads until `finish`, which
    uploads what is missing. A trial is recognised by its id, so nothing is uploaded twice, also after a crash.
    """

    def __init__(self, home: Home, campaign: Campaign, topology: Topology, store: Store) -> None:
        self._home = home
        self._campaign = campaign
        self._topology = topology
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chorale-mlflow")
        self._uri = campaign.tracking.mlflow_uri or home.mlflow_uri
        self._mlflow: MlflowStore | None = None
        self._experiment_id = ""
        self._parent_run_id = ""
        self._runs: dict[str, RunState] = {}
        self._problem: str | None = None

    def start(self) -> Future[None]:
        """Connect and open the parent run, in the background; the result is there when that has been tried."""
        load_mlflow()  # here, because importing it beside Ray in another thread is asking for trouble
        return self._thread.submit(self._guarded, self._open)

    def trial(self, record: TrialRecord) -> None:
        """Upload a finished trial, in the background."""
        self._thread.submit(self._guarded, self._upload_trial, record)

    def finish(self, trials: Sequence[TrialRecord], final: Final | None, status: str, patience_s: float) -> Tracked:
        """Upload what is missing and close the parent run; return after at most about `patience_s`."""
        self._thread.submit(self._forget_problem)
        last = self._thread.submit(self._guarded, self._catch_up, list(trials), final, status)
        try:
            last.result(timeout=patience_s)
        except StillBusy:
            self._problem = f"MLflow at {self._uri} is slow"
        self._thread.shutdown(wait=False, cancel_futures=True)
        run_ids = {trial_id: run.run_id for trial_id, run in self._runs.items() if run.finished}
        return Tracked(self._experiment_id or None, self._parent_run_id or None, run_ids, self._problem)

    @property
    def mlflow(self) -> MlflowStore | None:
        """The store, for use after `finish`; None if it cannot be reached."""
        return None if self._problem else self._mlflow

    def _guarded(self, step: object, *arguments: object) -> None:
        """Run one step unless an earlier one failed; remember why it failed."""
        if self._problem is not None:
            return
        try:
            step(*arguments)  # type: ignore[operator]
        except (ChoraleError, OSError) as error:
            self._problem = str(error)
            _log.warning("%s (the campaign goes on; its journal keeps everything for a later upload)", error)

    def _forget_problem(self) -> None:
        self._problem = None

    def _open(self) -> None:
        if self._mlflow is None:
            self._mlflow = MlflowStore(self._uri, self._home.artifacts)
        launch = self._store.launch
        mlflow = self._mlflow
        self._experiment_id = mlflow.experiment(self._campaign.tracking.experiment or self._campaign.name)
        self._runs = mlflow.runs(self._experiment_id, LAUNCH_ID, launch.launch_id, TRIAL_ID)
        known = mlflow.runs(self._experiment_id, "chorale.parent_of", launch.launch_id, LAUNCH_ID)
        if launch.launch_id in known:
            self._parent_run_id = known[launch.launch_id].run_id
            mlflow.reopen_run(self._parent_run_id)
            return
        start_ms = int(launch.started_unix_s * 1000)
        name = f"{self._campaign.name} {launch.number}"
        parent = mlflow.start_run(self._experiment_id, name, self._parent_tags(), start_ms)
        mlflow.log(parent, parameters=self._parent_parameters())
        document = json.dumps(self._campaign.model_dump(by_alias=True, mode="json"), indent=2)
        mlflow.upload(parent, {"campaign.json": document.encode()})
        self._parent_run_id = parent

    def _parent_tags(self) -> dict[str, str]:
        launch_id = self._store.launch.launch_id
        return {
            LAUNCH_ID: launch_id,
            "chorale.parent_of": launch_id,
            "chorale.topology": self._topology.spec,
            "chorale.topology_id": self._topology.id,
            "chorale.version": version("chorale"),
        }

    def _parent_parameters(self) -> dict[str, str]:
        campaign = self._campaign
        return {
            "topology": campaign.topology,
            "collective": campaign.collective,
            "sizes": ",".join(str(size) for size in campaign.sizes),
            "runner": campaign.runner.kind,
            "baselines": ",".join(campaign.baselines),
            "repeats": str(campaign.repeats),
            "sampler": campaign.sampler,
            "seed": str(campaign.seed),
        }

    def _upload_trial(self, record: TrialRecord) -> None:
        known = self._runs.get(record.trial_id)
        if known is not None and known.finished:
            return
        mlflow = self._require_mlflow()
        start_ms = int(record.started_unix_s * 1000)
        end_ms = start_ms + int(record.seconds * 1000)
        if known is None:
            tags = {LAUNCH_ID: self._store.launch.launch_id, TRIAL_ID: record.trial_id}
            name = f"{record.number:03d} {record.candidate.method}"
            run_id = mlflow.start_run(self._experiment_id, name, tags, start_ms, self._parent_run_id)
        else:
            run_id = known.run_id
        parameters = {
            name: "null" if value is None else str(value) for name, value in record.candidate.parameters.items()
        }
        mlflow.log(run_id, metrics_of(record), parameters, self._trial_tags(record), end_ms)
        mlflow.upload(run_id, self._artifacts(record))
        mlflow.end_run(run_id, STATUS[record.state], end_ms)
        self._runs[record.trial_id] = RunState(run_id, finished=True)

    def _trial_tags(self, record: TrialRecord) -> dict[str, str]:
        tags = {
            "chorale.state": record.state,
            "chorale.candidate_id": record.candidate.id,
            "chorale.topology_id": self._topology.id,
        }
        if isinstance(record, CompleteTrial):
            tags |= {"chorale.schedule_id": record.schedule_id, "chorale.program_id": record.program_id}
            if record.same_program_as:
                tags["chorale.same_program_as"] = record.same_program_as
        elif isinstance(record, FailedTrial):
            tags |= {"chorale.failure_kind": record.failure_kind.value, "chorale.message": record.message}
        else:
            tags["chorale.message"] = record.reason
        if not isinstance(record, (CompleteTrial, FailedTrial)):
            return tags
        return tags | {f"chorale.environment.{key}": str(value) for key, value in record.environment.items()}

    def _artifacts(self, record: TrialRecord) -> dict[str, bytes]:
        files = {"measurements.json": trial_codec.dump_json(record, indent=2)}
        if isinstance(record, CompleteTrial):
            schedule, program = (
                self._store.schedule_path(record.schedule_id),
                self._store.program_path(record.program_id),
            )
            kept = {"schedule.parquet": schedule, "program.xml": program}
            # After a rescue from a full disk somebody may have brought back the trials without their files.
            files |= {name: path.read_bytes() for name, path in kept.items() if path.exists()}
        return files

    def _catch_up(self, trials: Sequence[TrialRecord], final: Final | None, status: str) -> None:
        if not self._parent_run_id:
            self._open()
        missing = [record for record in trials if not self._is_uploaded(record)]
        for record in missing:
            self._upload_trial(record)
        mlflow = self._require_mlflow()
        mlflow.log(self._parent_run_id, summary_of(trials))
        picture = self._store.picture_path
        if picture.exists():
            mlflow.upload(self._parent_run_id, {picture.name: picture.read_bytes()})
        for trial_id, sizes in (final.results if final else {}).items():
            mlflow.log(self._runs[trial_id].run_id, _size_metrics(sizes, "final_"))
        mlflow.end_run(self._parent_run_id, status)

    def _is_uploaded(self, record: TrialRecord) -> bool:
        run = self._runs.get(record.trial_id)
        return run is not None and run.finished

    def _require_mlflow(self) -> MlflowStore:
        if self._mlflow is None:
            raise Unavailable("MLflow must be connected", self._uri, "start the campaign again with --resume")
        return self._mlflow


def metrics_of(record: TrialRecord) -> dict[str, float]:
    """Return the metrics of a trial: per size (in bytes) times in microseconds, bandwidth, speed-up."""
    metrics = {"seconds": record.seconds}
    if not isinstance(record, CompleteTrial):
        return metrics
    return {**metrics, "speedup": record.speedup, **_size_metrics(record.sizes)}


def _size_metrics(sizes: Sequence[SizeResult], prefix: str = "") -> dict[str, float]:
    metrics = {}
    for size in sizes:
        metrics[f"{prefix}time_us.{size.size_bytes}"] = size.median_s * 1e6
        metrics[f"{prefix}time_us_min.{size.size_bytes}"] = min(size.times_s) * 1e6
        metrics[f"{prefix}algbw_gb_per_s.{size.size_bytes}"] = size.algbw_gb_per_s
        metrics[f"{prefix}speedup.{size.size_bytes}"] = size.speedup
        for name, times in size.baseline_times_s.items():
            metrics[f"{prefix}baseline_time_us.{name}.{size.size_bytes}"] = statistics.median(times) * 1e6
    return metrics


def summary_of(trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the metrics of a launch: trials by state, best speed-up in all and per size."""
    metrics: dict[str, float] = {f"trials_{state}": 0.0 for state in STATUS}
    for trial in trials:
        metrics[f"trials_{trial.state}"] += 1
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    if complete:
        metrics["best_speedup"] = max(trial.speedup for trial in complete)
        for index, size in enumerate(complete[0].sizes):
            best = max(trial.sizes[index].speedup for trial in complete)
            metrics[f"best_speedup.{size.size_bytes}"] = best
    return metrics
