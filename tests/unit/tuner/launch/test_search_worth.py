"""When a search ends by itself."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from chorale.tuner.config.campaign import StopSection
from chorale.tuner.files.home import Home
from chorale.tuner.launch.loop import LOOKS, SearchWorth
from chorale.tuner.reports.tuning import tune_document
from tests.campaigns import small_campaign
from tests.unit.tuner.launch.test_tuning import run

RULE = StopSection(gain=0.01, per=60.0)


def ticking(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += step_s


@pytest.mark.parametrize(
    ("gain", "trial_s", "is_over"), [(0.01, 60.0, False), (0.009, 60.0, True), (0.009, 30.0, False)]
)
def test_it_ends_where_a_minute_is_expected_to_gain_less_than_the_rule(
    gain: float, trial_s: float, is_over: bool
) -> None:
    times = ticking(trial_s)
    worth = SearchWorth(RULE, lambda: next(times))
    worth.begin()
    for finished in range(1, LOOKS + 1):
        assert not worth.is_over
        worth.look(gain, finished)
    assert worth.is_over == is_over
    assert len(worth.notes) == is_over


def test_once_is_not_enough_and_nothing_is_said_of_what_no_model_expects() -> None:
    times = ticking(60.0)
    worth = SearchWorth(RULE, lambda: next(times))
    worth.begin()
    for finished, gain in enumerate((0.0, 1.0, 0.0, None, 1.0, 0.0), 1):
        worth.look(gain, finished)
    assert not worth.is_over
    SearchWorth(None, lambda: next(times)).look(0.0, 1)


def test_a_campaign_ends_before_its_budget_and_says_so(home: Home) -> None:
    """Of 128 points whose times are exact, the model soon knows all."""
    search = {"methods": ["bfb", "ring"], "chunks": {"from": 1, "to": 8}, "channels": {"from": 1, "to": 8}}
    document = tune_document(
        run(home, small_campaign(search=search, budget={"trials": 128}, parallel=1, stop={"gain": "50%", "per": "1s"}))
    )
    assert document["trials"]["complete"] < 100
    assert [note for note in document["overhead"]["notes"] if "1 s more were expected to gain" in note]
    near = document["within_5_percent"]
    assert 1 <= near["trials"] <= document["trials"]["complete"]
    assert 0 < near["seconds"] < document["seconds"]


@pytest.mark.parametrize(
    ("gain", "per", "expected"), [("1%", "1min", (0.01, 60.0)), (0.5, 2, (0.5, 2.0)), ("2.5 %", "2h", (0.025, 7200.0))]
)
def test_shares_and_durations(gain: object, per: object, expected: tuple[float, float]) -> None:
    stop = StopSection.model_validate({"gain": gain, "per": per})
    assert (stop.gain, stop.per) == pytest.approx(expected)


@pytest.mark.parametrize(
    "stop", [{"gain": "0%"}, {"gain": "100%"}, {"gain": "1%", "per": "1day"}, {"gain": "1%", "per": 0}]
)
def test_bad_rules_are_refused(stop: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StopSection.model_validate(stop)
