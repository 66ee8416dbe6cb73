"""Who answers for a size class."""

from __future__ import annotations

import pytest

from chorale.tuner.tracking.champions import best_programs
from chorale.tuner.trials.records import Candidate, RankedTrial, SizeResult
from tests.campaigns import complete

SIZES = (1024, 1536, 4096)


def standing(channels: int, times: tuple[float, ...], **baselines: float) -> RankedTrial:
    beside = {name.replace("_", ":"): (time,) for name, time in (baselines or {"ring": 8.0}).items()}
    sizes = tuple(SizeResult(size, size, (time,), beside) for size, time in zip(SIZES, times, strict=True))
    return RankedTrial(complete(Candidate("bfb", channels=channels), number=channels), sizes)


def test_sizes_of_one_class_are_won_together() -> None:
    small, large = best_programs([standing(1, (1.0, 4.0, 8.0)), standing(2, (3.0, 2.0, 2.0))])
    assert (small.size_class.exponent, large.size_class.exponent) == (10, 12)
    assert small.stored is not None
    assert small.stored.candidate.channels == 1  # sqrt(8 * 2) against sqrt(8/3 * 4)
    assert small.speedup == pytest.approx(4.0)
    assert small.time_us == pytest.approx(2e6)
    assert large.trial.candidate.channels == 2
    assert best_programs([]) == []


def test_what_no_program_clearly_beats_answers_itself() -> None:
    small, large = best_programs([standing(1, (7.9, 7.9, 4.0), ring=9.0, library_own=8.0)])
    assert (small.baseline, small.library, small.stored) == ("library:own", "own", None)
    assert small.time_us == pytest.approx(8e6)
    assert small.speedup == 1
    assert (large.baseline, large.library) == (None, None)
    [tie, _] = best_programs([standing(1, (8.0, 8.0, 1.0), ring=8.0)])
    assert (tie.baseline, tie.library, tie.stored) == ("ring", None, None)
