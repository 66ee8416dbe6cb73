"""How long a campaign will take, by launches that measured under the same conditions before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import NOT_KNOWN, campaign_plan, forecast, format_duration, plan_lines
from chorale.tuner.launch.tune import TuneReport
from tests.campaigns import small_campaign
from tests.unit.tuner.launch.test_tuning import run

FACTOR = 3.0
"""This machine may do something else while one of two launches is timed."""


def search_s(report: TuneReport) -> float:
    """Return the seconds from the first suggestion to the last record."""
    return (report.overhead["measuring_ms"] + report.overhead["beside_measuring_ms"]) * report.overhead["trials"] / 1000


def lines_of(campaign: Campaign, estimate: dict[str, Any]) -> str:
    """Return what `chorale tune --dry-run` prints."""
    return "\n".join(plan_lines(campaign_plan(campaign, load_topology(campaign.topology)) | {"estimate": estimate}))


@pytest.mark.alone  # it compares durations
def test_the_estimate_holds_what_earlier_launches_took(home: Home):
    campaign = small_campaign(topology="hypercube:3", budget={"trials": 100})
    topology = load_topology(campaign.topology)
    before = forecast(campaign, topology, home)
    assert (before["trials"], before["stopped_by"]) == (12, "the search space")
    assert (before["seconds"], before["trial_seconds"], before["basis"]) == (None, None, NOT_KNOWN)
    assert NOT_KNOWN in lines_of(campaign, before)
    run(home, campaign)
    after = forecast(campaign, topology, home)
    report = run(home, campaign)
    assert (after["trials"], after["stopped_by"]) == (12, "the search space")
    assert after["basis"] == "mean of small launch 1 under the same conditions"
    assert search_s(report) / FACTOR < after["seconds"] < search_s(report) * FACTOR
    assert after["seconds"] == pytest.approx(12 * after["trial_seconds"], abs=0.02)
    assert "the search takes about" in lines_of(campaign, after)


def test_launches_under_other_conditions_and_damaged_ones_say_nothing(home: Home):
    campaign = small_campaign()
    topology = load_topology(campaign.topology)
    folder = run(home, campaign).folder
    assert forecast(campaign, topology, home)["seconds"] is not None
    assert forecast(small_campaign(repeats=4), topology, home)["seconds"] is None
    journal = folder / "trials.jsonl"
    journal.write_bytes(journal.read_bytes() + b"no record\n")
    (folder.parent / "2").write_text("no folder")
    assert forecast(campaign, topology, home)["basis"] == NOT_KNOWN


def test_minutes_may_end_it(home: Home):
    campaign = small_campaign(budget={"trials": 12, "minutes": 1})
    topology = load_topology("ring:4")
    before = forecast(campaign, topology, home)
    assert before["stopped_by"] == "budget.trials or budget.minutes"
    report = run(home, campaign)
    assert forecast(campaign, topology, home)["stopped_by"] == "budget.trials"
    slow = [dict(json.loads(line)) for line in (report.folder / "trials.jsonl").read_text().splitlines()]
    for number, line in enumerate(record for record in slow if "started_unix_s" in record and "candidate" in record):
        line["started_unix_s"], line["seconds"] = 1e9 + 10 * number, 10.0
    unsealed = [{key: value for key, value in line.items() if key != "crc32"} for line in slow]
    (report.folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in unsealed))
    after = forecast(campaign, topology, home)
    assert (after["trial_seconds"], after["seconds"], after["stopped_by"]) == (10.0, 60.0, "budget.minutes")
    assert "ends by budget.minutes" in lines_of(campaign, after)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (35.2, "35 s"), (245.0, "4:05 min"), (7800.0, "2:10 h")]
)
def test_durations_for_people(seconds: float, text: str):
    assert format_duration(seconds) == text
