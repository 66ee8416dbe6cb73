"""Contests decide what is proved, name no program that is not faster, and say what is missing."""

import numpy as np
import pytest

from chorale.tuner.replay.campaign import NOISES, Noise
from chorale.tuner.statistics.contest import ContestRules, SizeContest, SizeVerdict

REPEATS = 5


def verdict_of(contest: SizeContest) -> SizeVerdict:
    verdict = contest.verdict()
    assert verdict is not None
    return verdict


def held(true_s: dict[str, float], noise: str, seed: int) -> SizeVerdict:
    """Hold a contest between programs with these times, the first is the library."""
    names = list(true_s)
    contest = SizeContest(4096, names[:1], names[1:])
    random, launch = np.random.default_rng(seed), 0
    while (batch := contest.batch)[0]:
        for _ in range(batch[1]):
            times = np.array([[true_s[name]] for name in batch[0]])
            drawn = Noise.parse(noise).draw(times, REPEATS, launch, random)[:, 0]
            contest.add(dict(zip(batch[0], drawn.tolist(), strict=True)))
            launch += 1
    return verdict_of(contest)


@pytest.mark.parametrize("noise", NOISES)
def test_what_is_clearly_best_is_named_under_every_noise(noise):
    for seed in range(10):
        verdict = held({"library": 1.0, "a": 0.9, "b": 0.5, "c": 2.0}, noise, seed)
        assert (verdict.decision, verdict.name) == ("program", "b")
        assert verdict.speedup_low <= verdict.speedup <= verdict.speedup_high


@pytest.mark.parametrize("noise", NOISES)
def test_no_program_is_named_where_all_are_equal(noise):
    verdicts = [held({"library": 1.0, "a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, noise, seed) for seed in range(60)]
    assert sum(verdict.name is not None for verdict in verdicts) <= 1
    covered = sum(verdict.speedup_low <= 1 <= verdict.speedup_high for verdict in verdicts)
    assert covered >= 0.93 * len(verdicts) - 2


@pytest.mark.parametrize("noise", [noise for noise in NOISES if noise != "none"])
def test_decided_entries_are_within_the_tolerance(noise):
    true_s = {"library": 1.0, "a": 0.80, "b": 0.82, "c": 0.84, "d": 0.9}
    verdicts = [held(true_s, noise, seed) for seed in range(40)]
    wrong = [v for v in verdicts if v.is_decided and (true_s[v.name] if v.name else 1.0) > 1.02 * 0.80 * 1.0001]
    assert len(wrong) <= 2


def test_contests_of_few_launches_of_outliers_and_of_no_times():
    contest = SizeContest(4096, ["library"], ["a"], ContestRules(batches=(1,)))
    contest.add({"library": [1.0, 1.0], "a": [0.5, 0.5]})
    verdict = verdict_of(contest)
    assert (contest.batch[0], verdict.decision, verdict.has_interval) == ((), "undecided", False)
    assert verdict.speedup_low < 1e-9 < verdict.speedup == 2.0 < 1e9 < verdict.speedup_high
    contest = SizeContest(4096, ["library"], ["a", "b"])
    for slow in (1.0, 3.0, 1.0):
        contest.add({"library": [1.0, 1.01], "a": [0.9 * slow, 0.91 * slow], "b": [0.95, 0.96]})
    assert verdict_of(contest).outliers == ("a in launch 2",)
    contest = SizeContest(4096, ["library"], ["a"])
    contest.add({"library": [1.0], "a": [float("nan")]})
    verdict = verdict_of(contest)
    assert (verdict.decision, verdict.name) == ("undecided", None)


def test_without_noise_four_launches_decide_and_with_it_more_are_wanted():
    verdict = held({"library": 1.0, "a": 0.90, "b": 0.89}, "none", 0)
    assert (verdict.decision, verdict.name, verdict.launches) == ("program", "b", 4)
    library = held({"library": 1.0, "a": 1.05}, "none", 0)
    assert (library.decision, library.name, library.baseline) == ("library", None, "library")
    verdict = held({"library": 1.0, "a": 0.97, "b": 0.95}, "lognormal:0.15", 3)
    assert verdict.decision == "undecided"
    assert min(verdict.more_launches, verdict.more_seconds, verdict.behind - 0.02) > 0
