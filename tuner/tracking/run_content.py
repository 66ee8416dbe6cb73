"""What runs hold in MLflow, of trials and of experiments: tags, parameters, metrics, files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from chorale.tuner.config.campaign import Campaign
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, SizeResult, TrialRecord, trial_codec
from chorale.tuner.trials.store import Store

STATUS = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}


def campaign_parameters(campaign: Campaign) -> dict[str, str]:
    """Return the parameters of the parent run."""
    return {
        "topology": campaign.topology,
        "collective": campaign.collective,
        "sizes": ",".join(str(size) for size in campaign.sizes),
        "runner": campaign.runner.kind,
        "baselines": ",".join(campaign.baselines),
        "repeats": str(campaign.repeats),
        "sampler": campaign.resolved_sampler,
        "seed": str(campaign.seed),
    }


def trial_parameters(record: TrialRecord) -> dict[str, str]:
    """Return the parameters of the candidate as text."""
    return {name: "null" if value is None else str(value) for name, value in record.candidate.parameters.items()}


def trial_tags(record: TrialRecord, topology_id: str) -> dict[str, str]:
    """Return the tags of a trial: state, content ids, environment, or why it failed."""
    tags = {
        "chorale.state": record.state,
        "chorale.candidate_id": record.candidate.id,
        "chorale.topology_id": topology_id,
    }
    if isinstance(record, CompleteTrial):
        tags |= {"chorale.schedule_id": record.schedule_id, "chorale.program_id": record.program_id}
        if record.same_program_as:
            tags["chorale.same_program_as"] = record.same_program_as
    elif isinstance(record, FailedTrial):
        tags |= {"chorale.failure_kind": record.failure_kind.value, "chorale.message": record.message}
    else:
        return {**tags, "chorale.message": record.reason}
    return tags | {f"chorale.environment.{key}": str(value) for key, value in record.environment.items()}


def trial_files(record: TrialRecord, store: Store) -> dict[str, bytes]:
    """Return the raw measurements and, of a complete trial, the schedule and the program."""
    files = {"measurements.json": trial_codec.dump_json(record, indent=2)}
    if isinstance(record, CompleteTrial):
        schedule, program = store.schedule_path(record.schedule_id), store.program_path(record.program_id)
        paths = {"schedule.parquet": schedule, "program.xml": program}
        # After a rescue from a full disk somebody may have restored the trials without their files.
        files |= {name: path.read_bytes() for name, path in paths.items() if path.exists()}
    return files


def metrics_of(record: TrialRecord) -> dict[str, float]:
    """Return the metrics of a trial: per size (in bytes) times in microseconds, bandwidth, speed-up."""
    metrics = {"seconds": record.seconds}
    if not isinstance(record, CompleteTrial):
        return metrics
    return {**metrics, "speedup": record.speedup, **size_metrics(record.sizes)}


def size_metrics(sizes: Sequence[SizeResult], prefix: str = "") -> dict[str, float]:
    """Return the metrics of one measurement; names end in the size in bytes."""
    metrics = {}
    for size in sizes:
        metrics[f"{prefix}time_us.{size.size_bytes}"] = size.median_s * 1e6
        metrics[f"{prefix}time_us_min.{size.size_bytes}"] = min(size.times_s) * 1e6
        metrics[f"{prefix}algbw_gb_per_s.{size.size_bytes}"] = size.algbw_gb_per_s
        metrics[f"{prefix}speedup.{size.size_bytes}"] = size.speedup
        for name, times in size.baseline_times_s.items() if size.beside else ():
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


FOLDER = "chorale-experiments"
"""The MLflow experiment for the results of all experiments."""


def log_experiment(
    store: MlflowStore, document: Mapping[str, Any], pictures: Mapping[str, bytes], start_ms: int, end_ms: int
) -> str:
    """Record `document`, what `chorale experiment NAME --json` prints, and return the id of the run.

    Parameters identify the experiment, metrics count its rows and those that hold; rows and `pictures` (by file name)
    are artifacts. Raises Unavailable if MLflow does not answer.
    """
    name = document["experiment"]
    run_id = store.start_run(store.experiment(FOLDER), name, {"experiment": name}, start_ms)
    rows = document["rows"]
    holding = sum(1 for row in rows if row["holds"])
    metrics = {"rows": len(rows), "rows_that_hold": holding, "seconds": document["seconds"]}
    parameters = {"experiment": name, "quick": str(document["quick"]).lower(), "source": document["source"]}
    store.log(run_id, metrics, parameters, {"question": document["question"]}, end_ms)
    store.upload(run_id, {"answer.json": json.dumps(document, indent=2).encode(), **pictures})
    store.end_run(run_id, "FINISHED", end_ms)
    return run_id
