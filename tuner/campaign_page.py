"""The report of a launch: one HTML page that needs nothing but itself."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from runners.durations import format_us
from runners.measurement.interval import MedianInterval, ratio_interval
from runners.sizes import format_size
from tuner.campaigns.answer import Choice, baseline_of, size_ranges
from tuner.campaigns.importance import importances
from tuner.campaigns.launch import Launch
from tuner.campaigns.records import CompleteTrial, FailedTrial, TrialRecord
from tuner.campaigns.refusals import Refusal
from tuner.campaigns.size_class import SizeClass
from tuner.plots.report_plots import history_svg, importance_svg, speedup_svg
from tuner.tracking.champions import KEPT_OUT, PROMOTED, Verdict, ratio_text

Row = Sequence[object]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 } th, td { border: 1px solid #ccc; padding: .25rem .6rem }
th { text-align: left; background: #f4f4f4 } pre { background: #f4f4f4; padding: 1rem;
overflow: auto } figure { display: inline-block; margin: .5rem } figure svg { max-width: 100%; height: auto }
"""


def campaign_page(
    launch: Launch,
    trials: Sequence[TrialRecord],
    chosen: Sequence[Choice],
    versions: Mapping[int, str],
    verdicts: Mapping[SizeClass, Verdict],
    effort: Mapping[str, Any],
    refused: Sequence[Refusal] = (),
) -> str:
    """Return the page. `chosen` is the answer at each size, `versions` what was registered by size in bytes, `effort`
    as `Effort.document` has it.
    """
    campaign = launch.campaign
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    title = f"{campaign['name']}, launch {launch.number}"
    network = f"{campaign['collective']} on {campaign['topology']}, {campaign['runner']['kind']} runner"
    parts = [
        f"<h1>{_text(title)}</h1><p>{_text(network)}; {_text(_counts(trials))}.</p>",
        _section("Answer by size range", _ranges(chosen)),
        _section("Speed-up at each size", _speedups(chosen, versions)),
        *([_section("Refused: slower end to end than the baseline", _refused(refused))] if refused else []),
        _section("Promotion", _promotion(verdicts)),
        _section("Search", _pictures(launch, complete, chosen)),
        _section("Failures by kind", _failures(trials)),
        _section("Time of a trial", _effort(effort)),
        _section("Environment", _environment(complete)),
        _section("How to reproduce", _reproduction(launch)),
    ]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def speedup_interval(choice: Choice) -> MedianInterval:
    """Return the speed-up over the fastest baseline, repetition by repetition, of what came closest to it or won."""
    result = choice.result
    return ratio_interval(result.baseline_times_s[baseline_of(result)], result.times_s)


def _ranges(chosen: Sequence[Choice]) -> str:
    rows = []
    for one in size_ranges(chosen):
        last = "without end" if one.last_bytes is None else f"{one.last_bytes} bytes"
        what = str(one.choice.trial.candidate) if one.choice.trial else f"the baseline {one.choice.baseline}"
        rows.append((f"{one.first_bytes} bytes", last, what))
    return _table(("from", "to", "run"), rows)


def _speedups(chosen: Sequence[Choice], versions: Mapping[int, str]) -> str:
    rows = []
    for choice in chosen:
        interval = speedup_interval(choice)
        what = str(choice.trial.candidate) if choice.trial else f"the baseline {choice.baseline}"
        registered = versions.get(choice.size_bytes, "no")
        time = format_us(choice.time_s)
        confidence = f"{interval.confidence:.0%} of {interval.samples} repetitions"
        rows.append((format_size(choice.size_bytes), what, time, ratio_text(interval), confidence, registered))
    note = "<p>Where the baseline is the answer, the speed-up is that of the candidate that came closest to it.</p>"
    return _table(("size", "run", "median", "speed-up", "confidence", "version"), rows) + note


def _refused(refused: Sequence[Refusal]) -> str:
    rows = [
        (
            format_size(one.result.size_bytes),
            one.trial.candidate,
            format_us(one.result.median_s),
            one.baseline,
            format_us(one.result.baseline_median_s),
            ratio_text(one.ratio),
            one.verdict,
        )
        for one in refused
    ]
    headings = ("size", "candidate", "median of both", "baseline", "its median", "time over the baseline's", "verdict")
    return _table(headings, rows)


def _promotion(verdicts: Mapping[SizeClass, Verdict]) -> str:
    rows = []
    for size_class, verdict in sorted(verdicts.items()):
        ratio = "" if verdict.ratio is None else ratio_text(verdict.ratio)
        rows.append((size_class, PROMOTED if verdict.promoted else KEPT_OUT, ratio, verdict.reason))
    return _table(("sizes from", "alias", "time over the champion's", "why"), rows)


def _pictures(launch: Launch, complete: Sequence[CompleteTrial], chosen: Sequence[Choice]) -> str:
    if not complete:
        return "<p>No trial is complete.</p>"
    mattered = importances(complete)
    pictures = [
        ("Speed-up of the answer", speedup_svg({one.size_bytes: speedup_interval(one) for one in chosen})),
        ("Trials over time", history_svg(complete, launch.started_unix_s)),
    ]
    if mattered:
        pictures.append(("Importance of parameters", importance_svg(mattered)))
    return "".join(f"<figure>{svg}<figcaption>{_text(name)}</figcaption></figure>" for name, svg in pictures)


def _failures(trials: Sequence[TrialRecord]) -> str:
    failed = [trial for trial in trials if isinstance(trial, FailedTrial)]
    counts = Counter(trial.failure_kind.value for trial in failed)
    first = {trial.failure_kind.value: trial.message for trial in reversed(failed)}
    return _table(("kind", "trials", "the first says"), [(kind, count, first[kind]) for kind, count in counts.items()])


def _effort(effort: Mapping[str, Any]) -> str:
    if not effort["trials"]:
        return "<p>Nothing was measured by this start of the launch.</p>"
    rows = [
        ("measuring", effort["measuring_ms"], "of a worker"),
        ("besides", effort["beside_measuring_ms"], "from the first suggestion to the last record, less measuring"),
        ("preparing", effort["preparing_ms"], "of the workers, while others measure"),
        *((stage, milliseconds, "of the campaign's process") for stage, milliseconds in effort["stages_ms"].items()),
        ("CPU", effort["cpu_ms"], "of the campaign's process, all of it"),
    ]
    return _table(("what", "ms", "where"), rows)


def _environment(complete: Sequence[CompleteTrial]) -> str:
    facts = complete[-1].environment if complete else {}
    return _table(("fact", "of the latest measurement"), sorted(facts.items()))


def _reproduction(launch: Launch) -> str:
    campaign = json.dumps(launch.campaign, indent=1)
    facts = f"chorale {version('chorale')}, topology {launch.conditions['topology']}, launch {launch.launch_id}"
    words = "Save this as <code>campaign.yaml</code> (JSON is YAML), then <code>chorale tune campaign.yaml</code>."
    return f"<p>{_text(facts)}</p><p>{words}</p><pre>{_text(campaign)}</pre>"


def _counts(trials: Sequence[TrialRecord]) -> str:
    counts = Counter(trial.state for trial in trials)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no trials"


def _section(title: str, content: str) -> str:
    return f"<h2>{_text(title)}</h2>\n{content}"


def _table(headings: Sequence[str], rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{_text(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _text(value: object) -> str:
    return html.escape(str(value))
