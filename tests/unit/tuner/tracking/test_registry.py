"""Who wins a size class, and who takes the alias from whom."""

from __future__ import annotations

import pytest

from tests.campaigns import complete
from tuner.campaigns.final import Standing
from tuner.campaigns.records import Candidate, SizeResult
from tuner.tracking.registry import BASELINES, PROGRAM_ID, RUNNER, SPEEDUP, TIME_US, is_same, outranks, winners


def tags(speedup: float, time_us: float = 100.0, runner: str = "local", baselines: str = "ring") -> dict[str, str]:
    return {SPEEDUP: str(speedup), TIME_US: str(time_us), RUNNER: runner, BASELINES: baselines, PROGRAM_ID: "p"}


@pytest.mark.parametrize(
    ("new", "held", "expected"),
    [
        (tags(2.0), tags(1.5), True),
        (tags(1.5), tags(2.0), False),
        (tags(2.0), tags(2.0), False),
        (tags(1.1), tags(9.0, runner="simulated"), True),
        (tags(9.0, runner="simulated"), tags(1.1), False),
        (tags(9.0, runner="simulated"), tags(8.0, runner="simulated"), True),
        (tags(1.0, time_us=50.0, baselines="biring"), tags(3.0, time_us=60.0), True),
        (tags(3.0, time_us=70.0, baselines="biring"), tags(1.0, time_us=60.0), False),
        (tags(1.0), {}, True),
    ],
)
def test_ranking(new: dict[str, str], held: dict[str, str], expected: bool) -> None:
    assert outranks(new, held) is expected


def test_the_same_program_from_another_kind_of_runner_is_another_version() -> None:
    assert is_same(tags(1.0), tags(2.0))
    assert not is_same(tags(1.0, runner="simulated"), tags(1.0))
    assert not is_same({}, tags(1.0))


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
