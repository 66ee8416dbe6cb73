"""A launch in words and numbers: the JSON document of the contract, and the table for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from runners.sizes import format_size
from tuner.campaigns.records import CompleteTrial, SizeResult
from tuner.tuning import TuneReport


def best_per_size(report: TuneReport) -> list[tuple[SizeResult, CompleteTrial]]:
    """Return (result, trial) of the highest speed-up at each size, in the order of the sizes."""
    rows = []
    for index in range(len(report.standings[0].sizes) if report.standings else 0):
        # Among equals the earlier trial wins, as in the registry.
        best = max(report.standings, key=lambda place: (place.sizes[index].speedup, -place.trial.number))
        rows.append((best.sizes[index], best.trial))
    return rows


def tune_document(report: TuneReport) -> dict[str, Any]:
    """Return what `chorale tune --json` prints."""
    states = Counter(trial.state for trial in report.trials)
    return {
        "campaign": report.launch.campaign["name"],
        "launch": report.launch.number,
        "experiment_id": report.tracked.experiment_id,
        "parent_run_id": report.tracked.parent_run_id,
        "tracking_problem": report.tracked.problem,
        "interrupted": report.interrupted,
        "trials": {state: states[state] for state in ("complete", "failed", "pruned")},
        "best": [_best_row(report, size, trial) for size, trial in best_per_size(report)],
        "overhead": dict(report.effort),
        "seconds": round(report.seconds, 3),
    }


def tune_table(report: TuneReport) -> Table:
    """Return the best schedule per size, with its speed-up over the fastest baseline of the same run."""
    campaign = report.launch.campaign
    baselines = " or ".join(campaign["baselines"])
    title = (
        f"{campaign['name']}: {campaign['collective']} on {campaign['topology']}, {campaign['runner']['kind']} runner"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("size", justify="right")
    table.add_column("best")
    for heading in ("median", f"{baselines}", "speed-up", "registered"):
        table.add_column(heading, justify="right")
    for size, trial in best_per_size(report):
        version = report.versions.get(size.size_bytes)
        table.add_row(
            format_size(size.size_bytes),
            str(trial.candidate),
            f"{size.median_s * 1e3:.3g} ms",
            f"{size.baseline_median_s * 1e3:.3g} ms",
            f"{size.speedup:.2f}x",
            f"version {version}" if version else "no",
        )
    return table


def _best_row(report: TuneReport, size: SizeResult, trial: CompleteTrial) -> dict[str, Any]:
    return {
        "size_bytes": size.size_bytes,
        "parameters": trial.candidate.parameters,
        "time_us": size.median_s * 1e6,
        "baseline_time_us": size.baseline_median_s * 1e6,
        "speedup_vs_baseline": size.speedup,
        "trial_id": trial.trial_id,
        "run_id": report.tracked.run_ids.get(trial.trial_id),
        "registered_version": report.versions.get(size.size_bytes),
    }
