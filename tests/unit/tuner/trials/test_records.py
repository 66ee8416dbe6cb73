"""Trials: derived numbers, and JSON there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.base import FailureKind
from chorale.tuner.trials.records import (
    Candidate,
    FailedTrial,
    PrunedTrial,
    SizeResult,
    TrialRecord,
    trial_codec,
    trial_id,
)
from tests.campaigns import complete

candidates = st.builds(
    Candidate,
    method=st.sampled_from(["bfb", "ring"]),
    k=st.none() | st.integers(1, 9),
    chunks=st.none() | st.integers(1, 9),
    channels=st.integers(1, 9),
    instances=st.integers(1, 9),
    protocol=st.sampled_from(["Simple", "LL", "LL128"]),
)
messages = st.text(max_size=20)
records = st.one_of(
    st.builds(complete, candidates, st.floats(1e-6, 10.0)),
    st.builds(FailedTrial, st.just("a"), st.integers(1, 99), candidates, st.just(1.0), st.just(2.0),
              st.sampled_from(FailureKind), messages),
    st.builds(PrunedTrial, st.just("a"), st.integers(1, 99), candidates, st.just(1.0), st.just(2.0), messages),
)  # fmt: skip


@given(records)
def test_a_record_survives_json(record: TrialRecord) -> None:
    line = trial_codec.dump_json(record)
    assert b"\n" not in line
    assert trial_codec.validate_json(line) == record


def test_speedup_is_the_geometric_mean_over_the_fastest_baseline() -> None:
    times = {"slow": (9.0, 9.0, 9.0), "fast": (8.0, 2.0, 4.0)}
    sizes = (SizeResult(100, 120, (1.0, 2.0, 1.0), times), SizeResult(200, 200, (16.0,), times))
    record = complete(Candidate("bfb"), sizes=sizes)
    assert [size.speedup for size in sizes] == [4.0, 0.25]
    assert record.speedup == pytest.approx(1.0)
    assert sizes[0].algbw_gb_per_s == pytest.approx(120e-9)


def test_trial_ids_differ_by_launch_and_by_every_parameter() -> None:
    plain = Candidate("bfb")
    others = [Candidate("ring"), Candidate("bfb", k=1), Candidate("bfb", chunks=1), Candidate("bfb", channels=2),
              Candidate("bfb", instances=2), Candidate("bfb", protocol="LL")]  # fmt: skip
    ids = [trial_id("one", plain), trial_id("two", plain), *(trial_id("one", other) for other in others)]
    assert len(set(ids)) == len(ids)


def test_a_candidate_shows_what_is_not_plain() -> None:
    assert str(Candidate("bfb", chunks=2, channels=4)) == "bfb chunks=2 channels=4"
    assert str(Candidate("bfb")) == "bfb"
