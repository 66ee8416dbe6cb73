"""What to run at which size: the best trial, the baseline where nothing beats it."""

from __future__ import annotations

from chorale.tuner.trials.records import Candidate, RankedTrial, SizeResult
from chorale.tuner.trials.tuning_table import table_ranges, tuning_table
from tests.campaigns import complete

SIZES = (1024, 4096, 16384, 65536)


def standing(number: int, *speedups: float) -> RankedTrial:
    """Return a trial with these speed-ups over the library, which beats the ring."""
    sizes = tuple(
        SizeResult(size, size, (1 / speedup,), {"ring": (2.0,), "library:best": (1.0,)})
        for size, speedup in zip(SIZES, speedups, strict=True)
    )
    return RankedTrial(complete(Candidate("bfb", channels=number), number=number, sizes=sizes), sizes)


def test_each_size_has_its_own_winner_and_the_library_where_it_wins() -> None:
    chosen = tuning_table([standing(1, 0.5, 0.9, 2.0, 1.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    assert [one.trial.number if one.trial else one.baseline for one in chosen] == ["library:best", "library:best", 1, 2]
    assert [one.speedup for one in chosen] == [1.0, 1.0, 2.0, 1.6]
    assert [one.time_s for one in chosen] == [1.0, 1.0, 0.5, 1 / 1.6]


def test_the_answer_is_never_slower_than_a_baseline() -> None:
    for speedups in ((0.1, 0.5, 1.0, 0.99), (1.01, 3.0, 0.2, 7.0)):
        for chosen in tuning_table([standing(1, *speedups)], together=False):
            assert chosen.time_s <= chosen.result.baseline_median_s


def test_one_trial_for_all_sizes_is_the_best_on_the_whole() -> None:
    chosen = tuning_table([standing(1, 3.0, 1.0, 1.0, 1.0), standing(2, 1.5, 1.5, 1.5, 0.9)], together=True)
    assert [one.trial.number if one.trial else one.baseline for one in chosen] == [2, 2, 2, "library:best"]


def test_ranges_cover_every_size_once() -> None:
    ranges = table_ranges(
        tuning_table([standing(1, 0.5, 0.9, 2.0, 2.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    )
    assert [(one.first_bytes, one.last_bytes) for one in ranges] == [(1, 16383), (16384, None)]
    assert [one.entry.trial.number if one.entry.trial else None for one in ranges] == [None, 1]


def test_no_trials_have_no_answer() -> None:
    assert tuning_table([], together=False) == []
    assert table_ranges([]) == []
