"""How long a campaign will take, by launches that measured under the same conditions before."""

import json
from typing import Any

import pytest

from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import (
    NOT_KNOWN,
    PHASES_FILE,
    campaign_plan,
    forecast,
    format_duration,
    plan_lines,
    save_phases,
)
from chorale.tuner.launch.progress import PHASES
from chorale.tuner.trials.store import open_store
from tests.campaigns import complete, small_campaign, space_of
from tests.unit.tuner.launch.test_tuning import run

FACTOR = 3.0
"""This machine may do something else while one of two launches is timed."""


def lines_of(campaign: Campaign, estimate: dict[str, Any]) -> str:
    """Return what `chorale tune --dry-run` prints."""
    return "\n".join(plan_lines(campaign_plan(campaign, load_topology(campaign.topology)) | {"estimate": estimate}))


@pytest.mark.slow
@pytest.mark.alone  # it compares durations
def test_the_estimate_holds_what_earlier_launches_took(home: Home) -> None:
    campaign = small_campaign(topology="hypercube:3", budget={"trials": 100})
    topology = load_topology(campaign.topology)
    before = forecast(campaign, topology, home)
    assert (before["trials"], before["stopped_by"]) == (12, "the search space")
    assert (before["seconds"], before["trial_seconds"], before["basis"]) == (None, None, NOT_KNOWN)
    assert before["unknown"] == list(PHASES)
    assert NOT_KNOWN in lines_of(campaign, before)
    run(home, campaign)
    after = forecast(campaign, topology, home)
    report = run(home, campaign)
    assert (after["trials"], after["stopped_by"]) == (12, "the search space")
    assert after["basis"] == "mean of small launch 1 under the same conditions"
    assert after["unknown"] == []
    assert report.seconds / FACTOR < after["seconds"] < report.seconds * FACTOR
    assert after["seconds"] == pytest.approx(sum(after["phases_s"].values()), abs=0.02)
    assert after["phases_s"]["search"] == pytest.approx(12 * after["trial_seconds"], abs=0.02)
    assert "the launch takes about" in lines_of(campaign, after)


@pytest.mark.slow
def test_launches_under_other_conditions_and_damaged_ones_say_nothing(home: Home) -> None:
    campaign = small_campaign()
    topology = load_topology(campaign.topology)
    folder = run(home, campaign).folder
    assert forecast(campaign, topology, home)["seconds"] is not None
    other = forecast(small_campaign(repeats=4), topology, home)
    assert (other["seconds"], other["unknown"]) == (None, ["search", "final", "promotion"])
    assert other["phases_s"]["starting"] is not None
    journal = folder / "trials.jsonl"
    journal.write_bytes(journal.read_bytes() + b"no record\n")
    (folder.parent / "2").write_text("no folder")
    assert forecast(campaign, topology, home)["basis"] == NOT_KNOWN


def test_minutes_may_end_it(home: Home) -> None:
    campaign = small_campaign(budget={"trials": 12, "minutes": 1})
    topology = load_topology("ring:4")
    before = forecast(campaign, topology, home)
    assert before["stopped_by"] == "budget.trials or budget.minutes"
    assert before["stops_at"] == "12 trials or 1 min"
    assert "stops at 12 trials or 1 min; " in lines_of(campaign, before)
    report = run(home, campaign)
    assert forecast(campaign, topology, home)["stopped_by"] == "budget.trials"
    slow = [dict(json.loads(line)) for line in (report.folder / "trials.jsonl").read_text().splitlines()]
    for number, line in enumerate(record for record in slow if "started_unix_s" in record and "candidate" in record):
        line["started_unix_s"], line["seconds"] = 1e9 + 10 * number, 10.0
    unsealed = [{key: value for key, value in line.items() if key != "crc32"} for line in slow]
    (report.folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in unsealed))
    (report.folder / PHASES_FILE).unlink()
    after = forecast(campaign, topology, home)
    assert (after["trial_seconds"], after["seconds"], after["stopped_by"]) == (10.0, None, "budget.minutes")
    assert (after["phases_s"]["search"], after["unknown"]) == (70.0, [phase for phase in PHASES if phase != "search"])
    assert "final, promotion, reporting come on top and are not known" in lines_of(campaign, after)
    assert "of search (budget.minutes), then" in lines_of(campaign, after)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (35.2, "35 s"), (245.0, "4:05 min"), (7800.0, "2:10 h")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def saved(home: Home, campaign: Campaign, phases_s: dict[str, float]) -> None:
    """Write a launch of four trials of 1 s that took `phases_s`."""
    store = open_store(campaign, load_topology(campaign.topology), home, resume=False)
    for number, point in enumerate(space_of(campaign).points[:4], 1):
        store.add(complete(point, 1.0, number, seconds=1.0))
    store.close()
    save_phases(store, phases_s)


TOOK = {"starting": 3.0, "search": 4.0, "final": 10.0, "promotion": 1.0, "reporting": 2.0}


def test_phases_of_earlier_launches_add_up(home: Home) -> None:
    campaign = small_campaign(budget={"trials": 8})
    saved(home, campaign, TOOK)
    estimate = forecast(campaign, load_topology("ring:4"), home)
    assert estimate["phases_s"] == TOOK | {"search": 8.0}
    assert (estimate["seconds"], estimate["unknown"], estimate["at_most_seconds"]) == (24.0, [], None)


@pytest.mark.parametrize(
    ("before", "took_s", "after", "expected_s"),
    [(1.0, 59.0, 2.0, 120.0), (1.0, 30.0, 2.0, 30.0), (1.0, 70.0, 0.5, 40.0), (None, 39.0, 2.0, 120.0)],
)
def test_a_final_that_was_cut_short_would_have_gone_on(
    home: Home, before: float | None, took_s: float, after: float, expected_s: float
) -> None:
    saved(home, small_campaign(final={"minutes": before}), TOOK | {"final": took_s})
    estimate = forecast(small_campaign(final={"minutes": after}), load_topology("ring:4"), home)
    assert estimate["phases_s"]["final"] == expected_s


def test_the_latest_launches_count(home: Home) -> None:
    campaign = small_campaign()
    for search_s in (400.0, 4.0, 4.0, 4.0):  # the first built everything
        saved(home, campaign, TOOK | {"search": search_s})
    estimate = forecast(campaign, load_topology("ring:4"), home)
    assert estimate["trial_seconds"] == 1.0
    assert estimate["basis"] == "mean of small launch 2, small launch 3, small launch 4 under the same conditions"


def test_minutes_are_a_limit_that_is_always_known(home: Home) -> None:
    campaign = small_campaign(budget={"trials": 8, "minutes": 1}, final={"minutes": 0.5})
    estimate = forecast(campaign, load_topology("ring:4"), home)
    assert (estimate["seconds"], estimate["at_most_seconds"]) == (None, 90.0)
    assert "of comparing the best (final.minutes)" in lines_of(campaign, estimate)
