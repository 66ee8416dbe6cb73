"""The machine: facts that times depend on, a lock with one holder, and offsets between clocks."""

import getpass
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from chorale.runners.measurement.clocks import MAX_DRIFT, ClockSample, clock_identity, clock_offset
from chorale.runners.measurement.machine import environment_id, exclusive, machine_facts
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable


def test_the_facts_say_what_times_depend_on_and_nothing_names_the_host() -> None:
    facts = machine_facts()
    assert {"cpu_model", "cores", "kernel", "architecture", "python", "numpy", "clock_source", "governor"} == set(facts)
    texts = [str(value) for value in facts.values()]
    assert not [name for name in (os.uname().nodename, getpass.getuser()) if name in texts]
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    assert facts["clock_source"] == (path.read_text().strip() if path.exists() else None)
    assert environment_id(facts) == environment_id(machine_facts())
    assert environment_id(facts) != environment_id({**facts, "governor": "another"})
    assert clock_identity() == clock_identity()


HOLD = "import sys, time\nfrom pathlib import Path\nfrom chorale.runners.measurement.machine import exclusive\n"
HOLD += "with exclusive(Path(sys.argv[1]), 1): print('held', flush=True); time.sleep(60)"


def test_one_holds_it_until_its_death_or_an_error_and_what_cannot_be_a_lock_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match="another measurement is running on this machine"), exclusive(lock, 0.2):
            pass
        holder.kill()
        with exclusive(lock, 10.0):
            pass
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock", 0):
        raise ZeroDivisionError
    with exclusive(tmp_path / "lock", 0):
        pass
    with pytest.raises(Unavailable, match="the lock file cannot be written"), exclusive(tmp_path, 0):
        pass


def test_one_who_measures_again_and_again_lets_another_in(tmp_path: Path) -> None:
    lock, done, rounds = tmp_path / "lock", threading.Event(), []

    def first() -> None:
        while not done.is_set():
            with exclusive(lock, 60.0):
                rounds.append(1)
                done.wait(0.1)

    other = threading.Thread(target=first)
    other.start()
    while not rounds:
        time.sleep(0.01)
    try:
        for _ in range(3):
            before = len(rounds)
            with exclusive(lock, 20.0):
                assert len(rounds) - before <= 3
    finally:
        done.set()
        other.join()


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
    assert abs(own + found.offset_s - other) <= found.error_at(own) + ROUNDING_S


@given(st.floats(-10, 10), st.lists(steps_of_delays, min_size=2, max_size=10))
def test_the_error_is_never_more_than_half_the_shortest_delay(skew_s: float, steps: list[Step]) -> None:
    samples = _samples(skew_s, 0.0, steps)
    found = clock_offset(samples, max_drift=0.0)
    assert found.error_s <= min(sample.delay_s for sample in samples) / 2 + ROUNDING_S


def test_quick_ways_bound_it_from_both_sides_and_a_clock_that_was_set_or_not_asked_has_no_offset() -> None:
    there_quick = Step(0.0, 0.001, 0.030)
    back_quick = Step(0.0, 0.030, 0.001)
    samples = _samples(3.0, 0.0, [there_quick, back_quick])
    found = clock_offset(samples)
    assert found.offset_s == pytest.approx(3.0, abs=1e-4)
    assert found.error_s == pytest.approx(0.001, abs=1e-4)
    assert clock_offset(samples[:1]).error_s == pytest.approx(0.0155, abs=1e-4)
    before = _samples(3.0, 0.0, [Step(0.0, 0.001, 0.001)] * 3)
    after = _samples(3.5, 0.0, [Step(1.0, 0.001, 0.001)])
    with pytest.raises(CheckFailed, match="two clocks must keep within 500 us per second"):
        clock_offset(before + after)
    with pytest.raises(InvalidInput, match="there are no samples of the clocks to compute an offset from"):
        clock_offset([])
