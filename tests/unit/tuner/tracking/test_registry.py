"""Who wins a size class, and which versions are the same."""

from __future__ import annotations

import pytest

from tests.campaigns import complete
from tuner.campaigns.final import Standing
from tuner.campaigns.records import Candidate, SizeResult
from tuner.tracking.registry import PROGRAM_ID, RUNNER, is_same, winners


def tags(runner: str = "local") -> dict[str, str]:
    return {RUNNER: runner, PROGRAM_ID: "p"}


def test_the_same_program_from_another_kind_of_runner_is_another_version() -> None:
    assert is_same(tags(), tags())
    assert not is_same(tags(runner="simulated"), tags())
    assert not is_same({}, tags())


def test_sizes_of_one_class_are_won_together() -> None:
    def standing(channels: int, *times: float) -> Standing:
        pairs = zip((1024, 1536, 4096), times, strict=True)
        sizes = tuple(SizeResult(size, size, (time,), {"ring": (8.0,)}) for size, time in pairs)
        return Standing(complete(Candidate("bfb", channels=channels)), sizes)

    first, second = standing(1, 1.0, 4.0, 8.0), standing(2, 3.0, 2.0, 2.0)
    small, large = winners([first, second])
    assert (small.size_class.exponent, large.size_class.exponent) == (10, 12)
    assert small.trial.candidate.channels == 1  # sqrt(8 * 2) against sqrt(8/3 * 4)
    assert small.speedup == pytest.approx(4.0)
    assert small.time_us == pytest.approx(2e6)
    assert large.trial.candidate.channels == 2
    assert winners([]) == []
