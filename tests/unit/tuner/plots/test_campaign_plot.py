"""The picture of a campaign is a PNG, the same for the same trials."""

from __future__ import annotations

from chorale.tuner.plots.charts import campaign_png
from chorale.tuner.trials.records import Candidate
from tests.campaigns import complete


def test_the_same_trials_give_the_same_picture():
    trials = [complete(Candidate("bfb"), 0.5, 1), complete(Candidate("ring"), 1.0, 2)]
    picture = campaign_png(trials, "small")
    assert picture.startswith(b"\x89PNG")
    assert picture == campaign_png(trials, "small")
    assert picture != campaign_png(trials[:1], "small")
