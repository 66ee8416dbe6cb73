"""How soon a search was near its best."""

import pytest

from chorale.runners.api.base import FailureKind
from chorale.tuner.reports.tuning import approach
from chorale.tuner.trials.records import Candidate, CompleteTrial, FailedTrial, TrialRecord
from tests.campaigns import complete


def trial(number: int, time_s: float, start_s: float, seconds: float = 1.0) -> CompleteTrial:
    """Return a trial of which both speed-ups over the baselines are 2 / time_s."""
    return complete(Candidate("bfb", channels=number), time_s, number, started_unix_s=start_s, seconds=seconds)


def test_the_first_trial_within_five_percent_of_the_best_counts() -> None:
    trials = [trial(1, 1.5, 0), trial(2, 1.04, 1), trial(3, 1.2, 2), trial(4, 1.0, 3)]
    soon = approach(trials)
    assert soon is not None
    assert (soon["trials"], soon["seconds"]) == (2, 2.0)


def test_pauses_do_not_count_and_what_overlaps_counts_once() -> None:
    failed = FailedTrial("failed", 2, Candidate("ring"), 0.5, 1.0, FailureKind.CRASH, "made to fail")
    trials: list[TrialRecord] = [trial(1, 1.5, 0), failed, trial(3, 1.0, 1000), trial(4, 1.3, 1001)]
    soon = approach(trials)
    assert soon is not None
    assert soon["trials"] == 3
    assert soon["seconds"] == pytest.approx(2.5)


def test_where_nothing_is_faster_than_the_baselines_they_are_the_best_from_the_start() -> None:
    soon = approach([trial(1, 3.0, 0), trial(2, 2.5, 1)])
    assert soon is not None
    assert soon["trials"] == 1
    assert approach([]) is None
