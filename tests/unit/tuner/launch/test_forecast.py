"""How long the trials of a campaign will take, by launches that measured under the same conditions before."""

from typing import Any

import pytest

from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import NOT_KNOWN, campaign_plan, forecast, format_duration, plan_lines
from chorale.tuner.trials.store import open_store
from tests.campaigns import complete, small_campaign, space_of


def lines_of(campaign: Campaign, estimate: dict[str, Any]) -> str:
    """Return what `chorale tune --dry-run` prints."""
    return "\n".join(plan_lines(campaign_plan(campaign, load_topology(campaign.topology)) | {"estimate": estimate}))


def saved(home: Home, campaign: Campaign, trial_s: float) -> None:
    """Write a launch of four trials that took `trial_s` each, one after the other."""
    store = open_store(campaign, load_topology(campaign.topology), home, resume=False)
    for number, point in enumerate(space_of(campaign).points[:4], 1):
        store.add(complete(point, 1.0, number, seconds=trial_s, started_unix_s=1e9 + trial_s * number))
    store.close()


def test_the_latest_launches_under_the_same_conditions_count(home: Home) -> None:
    campaign, topology = small_campaign(budget={"trials": 8}), load_topology("ring:4")
    before = forecast(campaign, topology, home)
    assert (before["trials"], before["stopped_by"]) == (8, "budget.trials")
    assert (before["seconds"], before["trial_seconds"], before["basis"]) == (None, None, NOT_KNOWN)
    assert NOT_KNOWN in lines_of(campaign, before)
    for trial_s in (400.0, 4.0, 4.0, 4.0):  # the first built everything
        saved(home, campaign, trial_s)
    after = forecast(campaign, topology, home)
    assert (after["trial_seconds"], after["seconds"], after["at_most_seconds"]) == (4.0, 32.0, None)
    assert after["basis"] == "mean of small launch 2, small launch 3, small launch 4 under the same conditions"
    assert "the trials take about 32 s, 4.0 s each, and stop at 8 trials" in lines_of(campaign, after)
    assert forecast(small_campaign(repeats=4), topology, home)["basis"] == NOT_KNOWN
    for journal in home.campaigns.glob("*/*/trials.jsonl"):
        journal.write_bytes(journal.read_bytes() + b"no record\n")
    assert forecast(campaign, topology, home)["basis"] == NOT_KNOWN


def test_minutes_may_end_it(home: Home) -> None:
    campaign = small_campaign(budget={"trials": 8, "minutes": 1}, final={"minutes": 0.5})
    before = forecast(campaign, load_topology("ring:4"), home)
    assert (before["stopped_by"], before["stops_at"]) == ("budget.trials or budget.minutes", "8 trials or 1 min")
    assert (before["seconds"], before["at_most_seconds"]) == (None, 90.0)
    saved(home, campaign, 10.0)
    after = forecast(campaign, load_topology("ring:4"), home)
    assert (after["seconds"], after["stopped_by"], after["stops_at"]) == (70.0, "budget.minutes", "1 min")
    assert "at most 90 s (budget.minutes, then final.minutes)" in lines_of(campaign, after)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (35.2, "35 s"), (245.0, "4:05 min"), (7800.0, "2:10 h")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
