"""How long a campaign will take: by what was measured before, else by points that are made now."""

from __future__ import annotations

import pytest

from tests.campaigns import small_campaign
from tests.unit.tuner.test_tuning import run
from tuner.campaigns.plan import campaign_plan
from tuner.forecast.forecast import forecast
from tuner.forecast.rates import link_rates
from tuner.home import Home
from tuner.reports.plan_report import duration, plan_lines
from tuner.specs import load_topology
from tuner.tuning import TuneReport

FACTOR = 3.0
"""This machine may do something else while one of the two is timed."""


def seen_s(report: TuneReport) -> float:
    """Seconds from the first suggestion to the last record."""
    return (report.effort["measuring_ms"] + report.effort["beside_measuring_ms"]) * report.effort["trials"] / 1000


def test_the_estimate_holds_what_is_then_seen(home: Home):
    campaign = small_campaign(topology="hypercube:3", budget={"trials": 100})
    topology = load_topology(campaign.topology)
    guessed = forecast(campaign, topology, home)
    assert guessed is not None
    assert (guessed["trials"], guessed["stopped_by"]) == ([12, 12], "the search space")
    report = run(home, campaign)
    low_s, high_s = guessed["stages"]["trials"]
    assert low_s / FACTOR < seen_s(report) < high_s * FACTOR
    assert report.seconds < guessed["seconds"][1] * FACTOR
    known = forecast(campaign, topology, home)
    assert known is not None
    assert known["basis"].startswith("small launch 1 measured the same")
    low_s, high_s = known["stages"]["trials"]
    assert low_s / FACTOR < seen_s(report) < high_s * FACTOR
    other = forecast(small_campaign(topology="hypercube:3", repeats=4), topology, home)
    assert other is not None
    assert "were made here" in other["basis"]


def test_minutes_may_end_it(home: Home):
    live = {"kind": "local", "link_mbps": 1}
    campaign = small_campaign(runner=live, sizes=["1MiB"], budget={"trials": 12, "minutes": 1})
    topology = load_topology("ring:4")
    guessed = forecast(campaign, topology, home)
    assert guessed is not None
    assert guessed["stopped_by"] == "budget.minutes"
    fewest, most = guessed["trials"]
    assert 1 <= fewest < most < 12
    lines = "\n".join(plan_lines(campaign_plan(campaign, topology) | {"estimate": guessed}))
    assert "budget.minutes will end it" in lines
    assert "links of 1 Mbit/s" in lines


def test_a_network_too_large_to_try_has_no_estimate(home: Home):
    campaign = small_campaign(topology="torus:32x32")
    topology = load_topology(campaign.topology)
    assert forecast(campaign, topology, home) is None
    assert "is not known" in "\n".join(plan_lines(campaign_plan(campaign, topology) | {"estimate": None}))


def test_rates_that_are_given_or_guessed(home: Home):
    ring, boxes = load_topology("ring:4"), load_topology("a100:1")
    given = link_rates(small_campaign(runner={"kind": "local", "link_mbps": 50}), ring, home)
    assert (given.low_gbps, given.high_gbps) == (0.05, 0.05)
    guessed = link_rates(small_campaign(runner={"kind": "local"}), ring, home)
    assert guessed.low_gbps < guessed.high_gbps
    paced = link_rates(small_campaign(runner={"kind": "local", "link_mbps": 2400}, topology="a100:1"), boxes, home)
    assert paced.high_gbps == pytest.approx(1e-3)  # 300 GB/s are 2400 Gbit/s


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (35.2, "35 s"), (245.0, "4:05 min"), (7800.0, "2:10 h")]
)
def test_durations_for_people(seconds: float, text: str):
    assert duration(seconds) == text
