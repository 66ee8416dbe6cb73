"""Whole commands as benchmarks: what they took, and what stays the same."""

from __future__ import annotations

import pytest

from chorale.experiments.bench import processes as commands
from chorale.experiments.bench.processes import cost_of
from chorale.synth.errors import CheckFailed


def test_a_command_has_costs_and_facts(monkeypatch):
    case = "lower ring allgather ring:3 msccl-xml"
    monkeypatch.setattr(commands, "command_limits", lambda: {case: (50.0, 600)})
    outcome = commands.run_command(case)
    assert set(outcome.facts) == {"bytes", "sha256"}
    assert outcome.facts["bytes"] > 100
    parts = 50 / min(outcome.seconds["processor"], outcome.seconds["passed"]), 600 / outcome.peak_mb
    assert outcome.ratio == min(parts)
    assert 10 < outcome.peak_mb < 1000


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        ("failures ring:4", {"failures": 2, "without_plan": 0}),
        ("alltoall ring:3", {"within_half_a_percent": True}),
        ("find --nodes 6 --degree 2 --search 0", {"steps_and_bandwidth": [[2, "1"], [3, "5/6"]]}),
    ],
)
def test_facts_are_of_what_was_computed(case, facts, monkeypatch):
    monkeypatch.setattr(commands, "command_limits", lambda: {case: (50.0, None)})
    assert commands.run_command(case).facts == facts


def test_a_process_that_fails_or_does_not_end_is_told():
    with pytest.raises(CheckFailed, match=r"must succeed.*circle"):
        cost_of(["synth", "ring", "circle:3"])
    with pytest.raises(CheckFailed, match="must succeed"):
        cost_of([], code="import time; time.sleep(60)", timeout_s=0.2)


def test_memory_is_that_of_the_process_alone():
    held = bytearray(300_000_000)
    assert cost_of(["--version"]).peak_mb < 60 < len(held)
