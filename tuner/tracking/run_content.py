"""What runs hold in MLflow, of trials and of experiments: tags, parameters, metrics, files."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chorale.runners.api.units import format_size
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.tracking.mlflow_store import MetricPoint, MlflowStore
from chorale.tuner.trials.journal import Launch
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


def metrics_of(record: TrialRecord) -> list[MetricPoint]:
    """Return the metrics of a trial: times in microseconds, bandwidth, speed-up, by size in bytes."""
    seconds = MetricPoint("seconds", record.seconds)
    if not isinstance(record, CompleteTrial):
        return [seconds]
    return [seconds, MetricPoint("mean_speedup", record.speedup), *size_metrics(record.sizes)]


def size_metrics(sizes: Sequence[SizeResult], prefix: str = "") -> list[MetricPoint]:
    """Return the metrics of one measurement, the size in bytes as step."""
    return [
        MetricPoint(f"{prefix}{name}", value, size.size_bytes)
        for size in sizes
        for name, value in _values_at(size).items()
    ]


def _values_at(size: SizeResult) -> dict[str, float]:
    beside = size.baseline_times_s if size.beside else {}
    return {
        "time_us": size.median_s * 1e6,
        "time_us_min": min(size.times_s) * 1e6,
        "algbw_gb_per_s": size.algbw_gb_per_s,
        "speedup": size.speedup,
        **{f"baseline_time_us.{name}": statistics.median(times) * 1e6 for name, times in beside.items()},
    }


def summary_of(trials: Sequence[TrialRecord]) -> list[MetricPoint]:
    """Return the metrics of a launch: trials by state, and the best speed-up at each size in bytes."""
    counts = Counter[str](trial.state for trial in trials)
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    columns = zip(*(trial.sizes for trial in complete), strict=True)
    best = [
        MetricPoint("best_speedup_by_size", max(one.speedup for one in sizes), sizes[0].size_bytes) for sizes in columns
    ]
    return [*(MetricPoint(f"trials_{state}", float(counts[state])) for state in STATUS), *best]


def best_so_far(trials: Sequence[TrialRecord], first: int = 0) -> list[MetricPoint]:
    """Return the best mean speed-up after each trial from the `first` on, by the number of trials so far."""
    best, points = 0.0, []
    for count, trial in enumerate(trials, 1):
        best = max(best, trial.speedup) if isinstance(trial, CompleteTrial) else best
        if best and count > first:
            points.append(MetricPoint("best_speedup", best, count, int((trial.started_unix_s + trial.seconds) * 1000)))
    return points


def description(campaign: Campaign, launch: Launch) -> str:
    """Return in words what a launch is about; MLflow shows it above the run."""
    sizes = f"{format_size(campaign.sizes[0])} to {format_size(campaign.sizes[-1])}"
    return (
        f"Launch {launch.number} of the campaign {campaign.name}: {campaign.collective} on `{campaign.topology}` at "
        f"{len(campaign.sizes)} sizes from {sizes}, measured by the {campaign.runner.kind} runner and compared with "
        f"{', '.join(campaign.baselines)}. Each nested run is a trial; `best_speedup` is the best mean speed-up after "
        "each of them."
    )


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
    values = {"rows": len(rows), "rows_that_hold": holding, "seconds": document["seconds"]}
    metrics = [MetricPoint(key, value) for key, value in values.items()]
    parameters = {"experiment": name, "quick": str(document["quick"]).lower(), "source": document["source"]}
    store.log(run_id, metrics, parameters, {"question": document["question"]}, end_ms)
    store.upload(run_id, {"answer.json": json.dumps(document, indent=2).encode(), **pictures})
    store.end_run(run_id, "FINISHED", end_ms)
    return run_id
