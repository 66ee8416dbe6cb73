"""Offsets of simulated clocks: skewed, drifting, behind delays of any kind; and clocks of processes."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.measurement.clocks import MAX_DRIFT, ClockSample, clock_identity, clock_offset
from chorale.synth.errors import CheckFailed, InvalidInput

ROUNDING_S = 2e-9


class Step(NamedTuple):
    """Seconds of a pause before a question, of its way there, and of its answer's way back."""

    pause: float
    there: float
    back: float


delays = st.floats(0, 0.05)
steps_of_delays = st.builds(Step, delays, delays, delays)


def _samples(skew_s: float, drift: float, steps: list[Step]) -> list[ClockSample]:
    """Play questions and answers between true time (the own clock) and a clock at skew + (1 + drift) * time."""
    now, samples = 0.0, []
    for step in steps:
        asked = now + step.pause
        received = asked + step.there
        now = received + step.back
        samples.append(ClockSample(asked, skew_s + (1 + drift) * received, now))
    return samples


@given(
    st.floats(-1000, 1000),
    st.floats(-MAX_DRIFT, MAX_DRIFT),
    st.lists(steps_of_delays, min_size=1, max_size=20),
    st.floats(-5, 5),
)
def test_the_bound_holds_for_any_skew_drift_and_delays(
    skew_s: float, drift: float, steps: list[Step], later: float
) -> None:
    found = clock_offset(_samples(skew_s, drift, steps))
    assert abs(found.offset_s - (skew_s + drift * found.at_s)) <= found.error_s + ROUNDING_S
    own = found.at_s + later
    other = skew_s + (1 + drift) * own
    assert abs(found.to_remote_s(own) - other) <= found.error_at(own) + ROUNDING_S
    assert abs(found.to_local_s(other) - own) <= found.error_at(own) + ROUNDING_S


@given(st.floats(-10, 10), st.lists(steps_of_delays, min_size=2, max_size=10))
def test_the_error_is_never_more_than_half_the_shortest_delay(skew_s: float, steps: list[Step]) -> None:
    samples = _samples(skew_s, 0.0, steps)
    found = clock_offset(samples, max_drift=0.0)
    assert found.error_s <= min(sample.delay_s for sample in samples) / 2 + ROUNDING_S


def test_quick_ways_in_different_samples_bound_it_from_both_sides() -> None:
    there_quick = Step(0.0, 0.001, 0.030)
    back_quick = Step(0.0, 0.030, 0.001)
    samples = _samples(3.0, 0.0, [there_quick, back_quick])
    found = clock_offset(samples)
    assert found.offset_s == pytest.approx(3.0, abs=1e-4)
    assert found.error_s == pytest.approx(0.001, abs=1e-4)
    assert clock_offset(samples[:1]).error_s == pytest.approx(0.0155, abs=1e-4)


def test_a_clock_that_was_set_meanwhile_is_noticed() -> None:
    before = _samples(3.0, 0.0, [Step(0.0, 0.001, 0.001)] * 3)
    after = _samples(3.5, 0.0, [Step(1.0, 0.001, 0.001)])
    with pytest.raises(CheckFailed, match="two clocks must keep within 500 us per second"):
        clock_offset(before + after)


def test_without_samples_there_is_no_offset() -> None:
    with pytest.raises(InvalidInput, match="there are no samples of the clocks to compute an offset from"):
        clock_offset([])


def test_processes_of_one_machine_read_one_clock() -> None:
    assert clock_identity() == clock_identity()
