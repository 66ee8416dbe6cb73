"""Cumulative sums of evidence: the bound on false alarms holds, and changes are noticed."""

from __future__ import annotations

import math
import random

import pytest

from chorale.tuner.watch.evidence import Evidence, Hypotheses, threshold_for

_SYMPTOM = Hypotheses(before=0.05, after=0.9)


def _probes_until_alarm(share: float, threshold: float, seed: int, limit: int = 10**6) -> int:
    draw = random.Random(seed)
    evidence = Evidence(_SYMPTOM, threshold)
    return next(n for n in range(1, limit) if evidence.add(draw.random() < share))


@pytest.mark.parametrize("threshold", [3.0, 5.0])
def test_false_alarms_are_no_more_frequent_than_promised(threshold: float) -> None:
    runs = [_probes_until_alarm(_SYMPTOM.before, threshold, seed) for seed in range(200)]
    assert sum(runs) / len(runs) >= math.exp(threshold)


def test_a_change_is_believed_after_few_probes() -> None:
    threshold = threshold_for(probes_per_s=100.0, false_alarms_per_day=1 / 30)
    delays = [_probes_until_alarm(0.95, threshold, seed) for seed in range(50)]
    assert sum(delays) / len(delays) <= 10


def test_symptoms_that_are_forgotten_do_not_count() -> None:
    evidence = Evidence(_SYMPTOM, threshold=6.0)
    for _ in range(1000):
        assert not evidence.add(True)
        assert not any(evidence.add(False) for _ in range(3))
    assert not evidence.is_suspicious
    assert evidence.probes == 0


def test_threshold_is_of_all_probes_of_a_day() -> None:
    assert threshold_for(10.0, 1.0) == pytest.approx(math.log(864_000))
    assert threshold_for(0.0, 1.0) == 0.0
