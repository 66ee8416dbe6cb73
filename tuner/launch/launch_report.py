"""The report of a launch: a self-contained HTML page."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chorale.runners.api.registry import runner_text
from chorale.runners.api.units import format_size, format_us
from chorale.runners.measurement.critical_path import Cause
from chorale.runners.measurement.driver import LinkLimit, link_limit
from chorale.runners.measurement.precision import MedianInterval, ratio_interval
from chorale.synth.collective import parse_collective
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.read_write import render_html, write_file
from chorale.tuner.launch.executions import read_execution_rows
from chorale.tuner.plots.charts import bandwidth_svg, history_svg, importance_svg, speedup_svg
from chorale.tuner.search.study import importances
from chorale.tuner.tracking.champions import NOT_PROMOTED, PROMOTED, PromotionVerdict, ratio_text
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.tracker import TrackingResult
from chorale.tuner.trials import tuning_table as tables
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, RankedTrial, TrialRecord
from chorale.tuner.trials.store import Store

Row = tuple[object, ...]

_TEMPLATE = Path(__file__).with_suffix(".html")


def campaign_page(
    launch: Launch,
    trials: Sequence[TrialRecord],
    chosen: Sequence[tables.TableEntry],
    versions: Mapping[int, str],
    verdicts: Mapping[tables.SizeClass, PromotionVerdict],
    overhead: Mapping[str, Any],
    refused: Sequence[tables.Regression] = (),
    executions: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    limit: LinkLimit | None = None,
) -> str:
    """Return the HTML page of a launch.

    chosen:     the tuning table
    versions:   size in bytes -> registered version
    overhead:   result of `Overhead.document`
    refused:    trials that are slower end to end than a baseline
    executions: candidate -> rows of `report_executions`
    limit:      limit that the links impose on times, if known
    """
    campaign = launch.campaign
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    failed = [trial for trial in trials if isinstance(trial, FailedTrial)]
    kinds = Counter(trial.failure_kind.value for trial in failed)
    first = {trial.failure_kind.value: trial.message for trial in reversed(failed)}
    states = Counter(trial.state for trial in trials)
    promotion = [
        (
            size_class,
            PROMOTED if verdict.promoted else NOT_PROMOTED,
            "" if verdict.ratio is None else ratio_text(verdict.ratio),
            verdict.reason,
        )
        for size_class, verdict in sorted(verdicts.items())
    ]

    def what_runs(entry: tables.TableEntry) -> str:
        return str(entry.trial.candidate) if entry.trial else f"the baseline {entry.baseline}"

    rows: list[Row] = []
    for choice in chosen:
        interval = speedup_interval(choice)
        registered = versions.get(choice.size_bytes, "no")
        time = format_us(choice.time_s)
        confidence = f"{interval.confidence:.0%} of {interval.samples} repetitions"
        size = format_size(choice.size_bytes)
        rows.append((size, what_runs(choice), time, ratio_text(interval), confidence, registered))
    ranges: list[Row] = []
    for one in tables.table_ranges(chosen):
        last = "without end" if one.last_bytes is None else f"{one.last_bytes} bytes"
        ranges.append((f"{one.first_bytes} bytes", last, what_runs(one.entry)))
    release = f"chorale {version('chorale-collectives')}"
    return render_html(
        _TEMPLATE,
        title=f"{campaign['name']}, launch {launch.number}",
        network=f"{campaign['collective']} on {campaign['topology']}, {runner_text(campaign['runner']['kind'])}",
        counts=", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no trials",
        ranges=ranges,
        speedups=rows,
        refused=[
            (
                format_size(item.result.size_bytes),
                item.trial.candidate,
                format_us(item.result.median_s),
                item.baseline,
                format_us(item.result.baseline_median_s),
                ratio_text(item.ratio),
                item.confidence_text,
            )
            for item in refused
        ],
        promotion=promotion,
        executions=_execution_rows(executions or {}),
        pictures=_pictures(launch, complete, chosen, limit),
        failures=[(kind, count, first[kind]) for kind, count in kinds.items()],
        priors=[(one["name"], one["points"], one["weight"] or "0, dropped") for one in overhead.get("priors", [])],
        effort=_overhead(overhead),
        environment=sorted(complete[-1].environment.items()) if complete else [],
        identity=f"{release}, topology {launch.conditions['topology']}, launch {launch.launch_id}",
        campaign=json.dumps(campaign, indent=1),
    )


def speedup_interval(choice: tables.TableEntry) -> MedianInterval:
    """Return the speed-up of the entry's result over the fastest baseline.

    Uses ratios of paired repetitions if both ran side by side, else the baseline's median.
    """
    result = choice.result
    if not result.beside:
        return ratio_interval([result.baseline_median_s] * len(result.times_s), result.times_s)
    return ratio_interval(result.baseline_times_s[tables.fastest_baseline(result)], result.times_s)


def _execution_rows(executions: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    rows: list[Row] = []
    for candidate, sizes in executions.items():
        for one in sizes:
            total_us = sum(one["critical_path_us"].values()) or 1.0
            shares = (f"{one['critical_path_us'][cause.name.lower()] / total_us:.0%}" for cause in Cause)
            predicted = "" if one["predicted_us"] is None else format_us(one["predicted_us"] / 1e6)
            late = f"rank {one['latest_start']['rank']}, {format_us(one['latest_start']['us'] / 1e6)}"
            rows.append(
                (format_size(one["size_bytes"]), candidate, format_us(one["time_us"] / 1e6), predicted, *shares, late)
            )
    return rows


def _pictures(
    launch: Launch,
    complete: Sequence[CompleteTrial],
    chosen: Sequence[tables.TableEntry],
    limit: LinkLimit | None,
) -> list[tuple[str, str]]:
    """Return name and SVG of each picture."""
    if not complete:
        return []
    mattered = importances(complete)
    pictures = [
        ("Speed-up of the answer", speedup_svg({one.size_bytes: speedup_interval(one) for one in chosen})),
        ("Bandwidth of the best of each method", bandwidth_svg(complete, limit)),
        ("Trials over time", history_svg(complete, launch.started_unix_s)),
    ]
    if mattered:
        pictures.append(("Importance of parameters", importance_svg(mattered)))
    return pictures


def _overhead(effort: Mapping[str, Any]) -> list[Row]:
    if not effort["trials"]:
        return []
    return [
        ("measuring", effort["measuring_ms"], "of a worker"),
        ("overhead", effort["beside_measuring_ms"], "from the first suggestion to the last record, less measuring"),
        ("preparing", effort["preparing_ms"], "of the workers, while others measure"),
        *((stage, milliseconds, "of the campaign's process") for stage, milliseconds in effort["stages_ms"].items()),
        ("CPU", effort["cpu_ms"], "of the campaign's process, all of it"),
    ]


_log = logging.getLogger("chorale.tune")


def launch_limit(campaign: Campaign, topology: Topology, trials: Sequence[TrialRecord]) -> LinkLimit | None:
    """Return the limit that the links impose on the times of a launch, None if the link rate is unknown."""
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    return link_limit(topology, parse_collective(campaign.collective), complete[-1].environment) if complete else None


def write_page(
    campaign: Campaign,
    store: Store,
    ranked: Sequence[RankedTrial],
    versions: Mapping[int, str],
    verdicts: Mapping[tables.SizeClass, PromotionVerdict],
    overhead: Mapping[str, Any],
    limit: LinkLimit | None,
) -> None:
    """Write the report into the folder of the journal; a failure is only logged."""

    chosen = tables.tuning_table(ranked, campaign.one_winner, campaign.deterministic)
    try:
        refused = tables.regressions(store.launch.campaign, store.trials, ranked)
        rows = {str(one.trial.candidate): read_execution_rows(store.trace_path(one.trial.trial_id)) for one in ranked}
        executions = {candidate: sizes for candidate, sizes in rows.items() if sizes}
        page = campaign_page(
            store.launch, store.trials, chosen, versions, verdicts, overhead, refused, executions, limit
        )
        write_file(store.report_path, page.encode())
    except ChoraleError as error:
        _log.warning("no report: %s", error)


def upload_page(mlflow: MlflowStore, tracked: TrackingResult, store: Store) -> None:
    """Store the report as an artifact of the launch's run."""
    if tracked.parent_run_id is None or not store.report_path.exists():
        return
    try:
        mlflow.upload(tracked.parent_run_id, {store.report_path.name: store.report_path.read_bytes()})
    except ChoraleError as error:
        _log.warning("the report is not in MLflow: %s", error)
