"""What the report on a launch says about comparisons that decided nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from chorale.tuner.reports.tuning import undecided_lines
from chorale.tuner.statistics.contest import SizeVerdict
from chorale.tuner.trials.records import Candidate, RankedTrial
from tests.campaigns import complete, small_campaign


def report_of(launches: int, more: int, name: str | None, final: dict[str, Any]) -> Any:
    """Return a report on one trial whose comparison at 4 KiB is undecided; it is decided at 64 KiB."""
    trial = complete(Candidate("bfb"))
    name = trial.trial_id if name else None
    parts = "ring", trial.trial_id, 3.75, 3.66, 3.84, 0.1
    undecided = SizeVerdict(4096, "undecided", name, *parts, launches, more_launches=more, more_seconds=7.27)
    verdicts = undecided, SizeVerdict(65536, "program", trial.trial_id, *parts, 4)
    campaign = small_campaign(final=final).model_dump()
    ranked = [RankedTrial(trial, trial.sizes, verdicts)]
    return SimpleNamespace(
        launch=SimpleNamespace(campaign=campaign), trials=(trial,), ranked_trials=ranked, versions={}, limit=None
    )


@pytest.mark.parametrize(
    ("launches", "more", "final", "settings"),
    [
        (4, 1, {}, "final.minutes=2"),
        (4, 4, {"minutes": 5}, "final.minutes=20"),
        (20, 1, {"minutes": 0.01}, "final.minutes=6"),
        (24, 12, {}, "final.minutes=2 --set final.launches=36"),
        (1, 10**6 - 1, {"launches": 1}, "final.minutes=6 --set final.launches=4"),
        (24, 10**6, {}, None),
    ],
)
def test_an_undecided_comparison_says_how_to_compare_longer(launches, more, final, settings):
    """Only with limits that a campaign can have, and never by --resume, which does not compare again."""
    first, *advice = undecided_lines(report_of(launches, more, "proved", final))
    assert first.startswith("4KiB is undecided after ")
    assert first.endswith("until then the program that is proved to be faster than the baseline")
    expected = f"to compare longer, tune again with --set {settings} (--resume would only show this result again)"
    assert advice == ([] if settings is None else [expected])
