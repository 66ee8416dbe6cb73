"""The report of a launch is one page that needs nothing else and says what was measured."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from chorale.runners.api.base import FailureKind
from chorale.runners.measurement.precision import MedianInterval
from chorale.tuner.launch.launch_report import campaign_page, speedup_interval
from chorale.tuner.launch.progress import Overhead
from chorale.tuner.search.study import importances
from chorale.tuner.tracking.champions import PromotionVerdict
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.records import Candidate, FailedTrial, RankedTrial
from chorale.tuner.trials.tuning_table import Regression, SizeClass, tuning_table
from tests.campaigns import complete, small_campaign

CAMPAIGN = small_campaign(name="small", topology="ring:4").model_dump(by_alias=True, mode="json")
LAUNCH = Launch("launch", 3, {"topology": "t" * 64}, CAMPAIGN, 1e9)
EFFORT = Overhead(lambda: 0.0, trials=2, cpu_s=0.05).document(0.1)
FAST, SLOW = complete(Candidate("bfb"), 0.5, 1), complete(Candidate("ring", channels=2), 2.0, 2)
FAILED = FailedTrial("id", 3, Candidate("biring"), 1e9, 1.0, FailureKind.TIMEOUT, "rank 2 <hangs>")


class Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def page(trials=(FAST, SLOW, FAILED)) -> str:
    standings = [RankedTrial(trial, trial.sizes) for trial in trials if trial.state == "complete"]
    ratio = MedianInterval(0.7, 0.6, 0.8, 0.95, 9)
    verdicts = {SizeClass(12): PromotionVerdict(True, "faster than version 1", "1", ratio)}
    return campaign_page(LAUNCH, trials, tuning_table(standings, together=False), {4096: "7"}, verdicts, EFFORT)


def test_the_page_says_what_was_measured() -> None:
    words = Words()
    words.feed(page())
    cells = [text.strip() for text in words.found]
    for expected in (
        "small, launch 3",
        "4KiB",
        "bfb",
        "4 (2 to 4)",
        "7",
        "promoted",
        "0.7 (0.6 to 0.8)",
        "timeout",
        "50.0",
    ):
        assert expected in cells
    assert "rank 2 <hangs>" in cells  # as text: it was escaped
    assert any('"topology": "ring:4"' in text for text in cells)
    assert "cores" in cells


def test_the_page_needs_nothing_else() -> None:
    words = Words()
    words.feed(page())
    assert all(link.startswith("#") for link in words.links)
    assert "<script" not in page()
    assert not re.search(r"url\((?!#)|@import", page())


def test_a_launch_without_results_has_a_page() -> None:
    assert "No trial is complete" in page([FAILED])


def test_speedups_are_compared_repetition_by_repetition() -> None:
    [choice, _] = tuning_table([RankedTrial(FAST, FAST.sizes)], together=False)
    interval = speedup_interval(choice)
    assert (interval.low, interval.median, interval.high) == (2.0, 4.0, 4.0)


def test_the_parameter_that_decides_is_the_important_one() -> None:
    trials = [
        complete(Candidate("bfb", channels=channels, instances=instances), float(channels), number)
        for number, (channels, instances) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)])
    ]
    found = importances(trials)
    assert list(found) == ["channels", "instances"]
    assert found["channels"] > 0.9
    assert importances(trials[:2]) == {}
    assert importances([complete(Candidate("bfb", channels=channels)) for channels in (1, 2, 3, 4)]) == {}


def test_the_page_names_what_makes_the_whole_slower_only_where_ranks_compute_beside() -> None:
    assert "Refused" not in page()
    refused = [Regression(SLOW, replace(SLOW.sizes[0], times_s=(2.5, 2.6, 2.4)))]
    words = Words()
    words.feed(campaign_page(LAUNCH, [FAST, SLOW], [], {}, {}, EFFORT, refused))
    cells = [text.strip() for text in words.found]
    for expected in (
        "Refused: slower end to end than the baseline",
        "4KiB",
        "ring channels=2",
        "1.25 (1.2 to 1.3)",
        "clearly slower",
    ):
        assert expected in cells
