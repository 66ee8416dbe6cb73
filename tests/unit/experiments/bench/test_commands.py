"""Whole commands as benchmarks: what they took, what stays the same, and the table of a page."""

from __future__ import annotations

import pytest

from chorale.experiments.bench import processes as commands
from chorale.experiments.bench.benchmark import Limit, limits_of, markdown_table
from chorale.experiments.bench.processes import cost_of
from chorale.experiments.bench.suite import BENCHMARKS
from chorale.synth.errors import CheckFailed


def test_a_command_has_costs_and_facts(monkeypatch):
    case = "lower ring allgather ring:3 msccl-xml"
    monkeypatch.setattr(commands, "limits_of", lambda _benchmark: {case: Limit(50.0, 600, "")})
    outcome = commands.run_command(case)
    assert set(outcome.facts) == {"bytes", "sha256"}
    assert outcome.facts["bytes"] > 100
    assert outcome.ratio == 50 / min(outcome.seconds["processor"], outcome.seconds["passed"])
    assert 10 < outcome.peak_mb < 1000


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        ("failures ring:4", {"failures": 2, "without_plan": 0}),
        ("alltoall ring:3", {"within_half_a_percent": True}),
        ("find --nodes 6 --degree 2 --search 0", {"steps_and_bandwidth": [[2, "1"], [3, "5/6"]], "left_out": 0}),
    ],
)
def test_facts_are_of_what_was_computed(case, facts, monkeypatch):
    monkeypatch.setattr(commands, "limits_of", lambda _benchmark: {case: Limit(50.0, None, "")})
    assert commands.run_command(case).facts == facts


def test_a_process_that_fails_or_does_not_end_is_told():
    with pytest.raises(CheckFailed, match=r"must succeed.*circle"):
        cost_of(["synth", "ring", "circle:3"])
    with pytest.raises(CheckFailed, match="must succeed"):
        cost_of([], code="import time; time.sleep(60)", timeout_s=0.2)


def test_memory_is_that_of_the_process_alone():
    held = bytearray(300_000_000)
    assert cost_of(["--version"]).peak_mb < 60 < len(held)


def test_limits_are_of_cases_that_there_are():
    cases = {benchmark.name: benchmark.cases for benchmark in BENCHMARKS}
    for name in ("start", "commands"):
        assert set(limits_of(name)) == set(cases[name])


def test_a_table_says_which_part_of_its_limits_a_command_takes():
    measured = {"benchmark": "start", "case": "--version", "ratio": 0.5, "reference": "python -c pass"}
    exact = {"benchmark": "rings", "case": "bfb", "ratio": 4.0, "reference": "a ring", "seconds": {}, "peak_mb": None}
    measured |= {"seconds": {"ours": 0.075, "passed": 0.3}, "peak_mb": 16.0}
    head, _, first, second = markdown_table([measured, exact]).splitlines()
    assert head.startswith("| benchmark | case | before | processor s |")
    limits = "0.15 s, 40 MB | 0.50, 0.40"
    assert first == f"| start | `--version` | 1.5 s, 209 MB | 0.07 | 0.30 | 16 | {limits} | 0.50 | python -c pass |"
    assert second == "| rings | `bfb` |  |  |  |  |  |  | 4.00 | a ring |"
