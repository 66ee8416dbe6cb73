"""What the report on a launch says about comparisons that decided nothing."""

from types import SimpleNamespace
from typing import Any

from chorale.tuner.reports.tuning import tune_table, undecided_lines
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


def test_an_undecided_comparison_says_how_to_compare_longer():
    """Only with limits that a campaign can have, and never by --resume, which does not compare again."""
    for launches, more, final, settings in (
        (4, 1, {}, "final.minutes=2"),
        (4, 4, {"minutes": 5}, "final.minutes=20"),
        (20, 1, {"minutes": 0.01}, "final.minutes=6"),
        (24, 12, {}, "final.minutes=2 --set final.launches=36"),
        (1, 10**6 - 1, {"launches": 1}, "final.minutes=6 --set final.launches=4"),
        (24, 10**6, {}, None),
    ):
        _, *advice = undecided_lines(report_of(launches, more, "proved", final))
        expected = f"to compare longer, tune again with --set {settings} (--resume would only show this result again)"
        assert advice == ([] if settings is None else [expected])


def test_a_proved_speedup_is_not_called_undecided():
    proved = "which program is best is undecided {}; this one is proved to be faster than ring"
    unproved = "whether a program is faster than ring is undecided {}; until then ring"
    for name, cell, line in (
        ("proved", "3.75x (3.66 to 3.84)", proved),
        (None, "undecided (3.66 to 3.84)", unproved),
    ):
        report = report_of(4, 1, name, {})
        [speedups] = [list(column.cells) for column in tune_table(report).columns if column.header == "speed-up"]
        assert speedups[0] == cell
        assert next(undecided_lines(report)) == "4KiB: " + line.format("after 4 launches (about 1 more needed)")
