"""Creates the reports on a launch: the JSON document of `chorale tune`, and tables for the terminal."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from chorale.runners.api.registry import is_simulated, runner_text
from chorale.runners.api.units import format_ms, format_size
from chorale.tuner.config.campaign import MOST_LAUNCHES
from chorale.tuner.launch.final_round import FIRST_BATCH, final_limit_s
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.trials.records import CompleteTrial, TableEntry, table_ranges, tuning_table


def tune_document(report: TuneReport) -> dict[str, Any]:
    states = Counter(trial.state for trial in report.trials)
    return {
        "campaign": report.launch.campaign["name"],
        "launch": report.launch.number,
        "experiment_id": report.tracked.experiment_id,
        "parent_run_id": report.tracked.parent_run_id,
        "tracking_problem": report.tracked.problem,
        "interrupted": report.interrupted,
        "simulated": is_simulated(report.launch.campaign["runner"]["kind"]),
        "trials": {state: states[state] for state in ("complete", "failed", "pruned")},
        "best": [_best_row(report, choice) for choice in tuning_table_of(report)],
        "answer": [
            {
                "from_bytes": one.first_bytes,
                "to_bytes": one.last_bytes,
                "run": "program" if one.entry.trial else "baseline",
                "baseline": None if one.entry.trial else one.entry.baseline,
                "parameters": one.entry.trial.candidate.parameters if one.entry.trial else None,
                "program_id": one.entry.trial.program_id if one.entry.trial else None,
                "trial_id": one.entry.trial.trial_id if one.entry.trial else None,
            }
            for one in table_ranges(tuning_table_of(report))
        ],
        "deterministic": bool(report.launch.campaign.get("deterministic", False)),
        "overhead": {key: value for key, value in report.overhead.items() if key != "priors"},
        "prior": list(report.overhead.get("priors", [])),
        "seconds": round(report.seconds, 3),
    }


def tune_table(report: TuneReport) -> Table:
    """Return a table of the best choice at each size, with its speed-up over the fastest baseline in the same run."""
    campaign = report.launch.campaign
    baselines = " or ".join(campaign["baselines"])
    name, runner = f"{campaign['name']}: {campaign['collective']}", runner_text(campaign["runner"]["kind"])
    table = Table(title=f"{name} on {campaign['topology']}, {runner}", title_justify="left")
    limited = () if report.limit is None else ("at most", "of limit")
    for heading in ("size", "best", "median", baselines, "speed-up", *limited, "registered"):
        table.add_column(heading, justify="left" if heading == "best" else "right")
    for choice in tuning_table_of(report):
        version = report.versions.get(choice.size_bytes)
        facts = _limit_facts(report, choice)
        table.add_row(
            format_size(choice.size_bytes),
            str(choice.trial.candidate) if choice.trial else choice.baseline,
            format_ms(choice.time_s),
            format_ms(choice.result.baseline_median_s),
            _speedup_text(choice),
            *((f"{facts['most_speedup']:.2f}x", f"{facts['efficiency']:.0%}") if facts else ()),
            f"version {version}" if version else "no",
        )
    return table


def _limit_facts(report: TuneReport, choice: TableEntry) -> dict[str, float]:
    """Return what the links allow at an entry's size: the shortest time, and the highest speed-up over the baseline."""
    if report.limit is None:
        return {}
    least_s = report.limit.least_s(choice.result.measured_bytes)
    return {
        "limit_us": least_s * 1e6,
        "efficiency": least_s / choice.time_s,
        "most_speedup": choice.result.baseline_median_s / least_s,
    }


def _speedup_text(choice: TableEntry) -> str:
    verdict = choice.verdict
    if verdict is None:
        return f"{choice.speedup:.2f}x"
    if not verdict.has_interval:
        return "undecided (one launch has no interval)"
    interval = f"{verdict.speedup_low:.2f} to {verdict.speedup_high:.2f}"
    if choice.trial:  # the program is proven faster than the baselines; other programs may be faster still
        return f"{choice.speedup:.2f}x ({interval})"
    return f"1.00x (others {interval})" if verdict.is_decided else f"undecided ({interval})"


def undecided_lines(report: TuneReport) -> Iterator[str]:
    """Yield a line for each size at which the comparison was undecided, then a line that says how to compare longer.

    A final comparison that has ended cannot be resumed: comparing longer needs a new launch with higher limits.
    """
    final, growth, launches, seconds = report.launch.campaign["final"], 0.0, 0, 0.0
    for choice in tuning_table_of(report):
        verdict = choice.verdict
        if verdict is None or verdict.is_decided:
            continue
        question, runs = f"whether a program is faster than {verdict.baseline}", f"until then {choice.baseline}"
        if choice.trial:
            question, runs = "which program is best", f"this one is proved to be faster than {verdict.baseline}"
        needed = verdict.launches + verdict.more_launches if verdict.has_interval else FIRST_BATCH
        what = f"after {verdict.launches} launches (about {verdict.more_launches} more needed)"
        if not verdict.has_interval:
            what = "after one launch, which does not show how much times vary"
        if needed <= MOST_LAUNCHES:
            growth, launches = max(growth, needed / verdict.launches), max(launches, needed)
            seconds += needed * verdict.more_seconds / max(verdict.more_launches, 1)
        else:
            what = f"after {verdict.launches} launches (it would need more than {MOST_LAUNCHES})"
        yield f"{format_size(choice.size_bytes)}: {question} is undecided {what}; {runs}"
    if launches:
        trials_s = sum(trial.seconds for trial in report.trials if isinstance(trial, CompleteTrial))
        limit_s = final_limit_s(final["minutes"], trials_s, len(report.launch.campaign["sizes"]))
        # Twice as long, because a comparison can only end when its number of launches has doubled
        settings = f"--set final.minutes={math.ceil(max(growth * limit_s, seconds) / 30)}"
        if launches > final["launches"]:
            settings += f" --set final.launches={launches}"
        yield f"to compare longer, tune again with {settings} (--resume would only show this result again)"


def prior_lines(report: TuneReport) -> Iterator[str]:
    for prior in report.overhead.get("priors", []):
        weight = (
            f"used with weight {prior['weight']:.2g}" if prior["weight"] else "dropped, because it predicted nothing"
        )
        yield f"prior from {prior['name']}, {prior['points']} points: {weight}"


def tuning_table_of(report: TuneReport) -> list[TableEntry]:
    campaign = report.launch.campaign
    always = bool(campaign.get("deterministic", False))  # launches by earlier versions do not have this key
    return tuning_table(report.ranked_trials, always or campaign["objective"] == "geomean_speedup", always)


def _best_row(report: TuneReport, choice: TableEntry) -> dict[str, Any]:
    trial, result = choice.trial, choice.result
    row = {
        "size_bytes": choice.size_bytes,
        "parameters": trial.candidate.parameters if trial else None,
        "baseline": choice.baseline,
        "time_us": choice.time_s * 1e6,
        "baseline_time_us": result.baseline_median_s * 1e6,
        "speedup_vs_baseline": choice.speedup,
        "trial_id": trial.trial_id if trial else None,
        "run_id": report.tracked.run_ids.get(trial.trial_id) if trial else None,
        **({"nodes": trial.environment["nodes"]} if trial and trial.environment.get("nodes") else {}),
        "registered_version": report.versions.get(choice.size_bytes),
        **_limit_facts(report, choice),
    }
    if (verdict := choice.verdict) is None:  # there was no final comparison
        return row
    return row | {
        "decision": verdict.decision,
        "confidence": verdict.confidence,
        "leader_speedup": [verdict.speedup_low, verdict.speedup, verdict.speedup_high],
        "behind_best_at_most": verdict.behind,
        "launches": verdict.launches,
        "to_decide": {"launches": verdict.more_launches, "seconds": round(verdict.more_seconds, 3)},
        "outliers": list(verdict.outliers),
    }
