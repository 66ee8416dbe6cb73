"""Who reaches the final, and who is ranked by what."""

from chorale.tuner.trials.records import (
    MAX_FINALISTS,
    Candidate,
    CompleteTrial,
    FinalComparison,
    SizeResult,
    finalists,
    ranked_trials,
)
from tests.campaigns import complete


def trial(channels: int, small: tuple[float, float], large: tuple[float, float]) -> CompleteTrial:
    """Return a trial with (time, baseline time) at two sizes."""
    pairs = ((4096, small), (65536, large))
    sizes = tuple(SizeResult(size, size, (mine,), {"ring": (ring,)}) for size, (mine, ring) in pairs)
    return complete(Candidate("bfb", channels=channels), sizes=sizes)


def test_leaders_by_speedup_and_by_time_at_every_size_meet() -> None:
    high_speedup = trial(1, (5.0, 50.0), (9.0, 9.0))
    low_time = trial(2, (1.0, 2.0), (9.5, 9.0))
    good_at_large = trial(3, (6.0, 6.0), (2.0, 9.0))
    nowhere = [trial(number, (7.0 + number, 7.0), (20.0 + number, 9.0)) for number in range(4, 12)]
    chosen = finalists([*nowhere, high_speedup, low_time, good_at_large])
    assert all(leader in chosen for leader in (high_speedup, low_time, good_at_large))
    assert len(chosen) <= MAX_FINALISTS


def test_a_shared_measurement_does_not_take_part_twice() -> None:
    first = trial(1, (1.0, 2.0), (1.0, 2.0))
    twin = complete(Candidate("bfb", channels=9), sizes=first.sizes, same_program_as=first.trial_id)
    assert finalists([first, twin]) == [first]


def test_the_final_decides_and_without_one_the_trials_do() -> None:
    lucky, steady = trial(1, (1.0, 9.0), (1.0, 9.0)), trial(2, (2.0, 9.0), (2.0, 9.0))
    results = {lucky.trial_id: steady.sizes, steady.trial_id: lucky.sizes}
    assert [place.sizes for place in ranked_trials([lucky, steady], None)] == [lucky.sizes, steady.sizes]
    ranked = ranked_trials([lucky, steady, trial(3, (3.0, 9.0), (3.0, 9.0))], FinalComparison(results, 3))
    assert [(place.trial, place.sizes) for place in ranked] == [(lucky, steady.sizes), (steady, lucky.sizes)]
