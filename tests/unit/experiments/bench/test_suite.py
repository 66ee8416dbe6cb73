"""The regression check: counts and certificates of every benchmark are those expected, whatever the machine."""

import json
from dataclasses import replace

import pytest

from chorale.experiments.bench import suite
from chorale.experiments.bench.suite import BenchmarkOutcome, cost_of
from chorale.synth.errors import CheckFailed, InvalidInput
from tests.command import chorale

BENCHMARKS = [
    pytest.param(
        benchmark,
        id=benchmark.name,
        marks=[pytest.mark.slow, pytest.mark.timeout(1800)] if benchmark.name in ("auto", "commands", "replan") else [],
    )
    for benchmark in suite.BENCHMARKS
]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_facts_are_those_expected(benchmark):
    rows = list(suite.rows_of(benchmark))
    assert [row["case"] for row in rows] == list(suite.expected_facts()[benchmark.name])
    for row in rows:
        assert row["holds"], row
    for facts in suite.expected_facts()["bounds"].values():
        assert facts["flows_fit"]
        assert not facts["flows_fit_in_a_little_less"]


@pytest.mark.parametrize(
    "case", [case for case in suite.command_limits() if case.startswith(("--", "topology", "simulate"))]
)
def test_small_commands_import_no_large_library(case):
    outcome = suite.run_command(case)
    assert outcome.facts == suite.expected_facts()["commands"][case] == {"large_libraries": []}
    assert 10 < outcome.peak_mb < 200


@pytest.mark.parametrize(
    ("changed", "ratio", "is_exact", "holds"),
    [({"steps": 9}, 4.0, True, False), ({}, 3.9, True, False), ({}, 3.9, False, True)],
)
def test_facts_that_differ_and_exact_goals_that_are_missed_do_not_hold(changed, ratio, is_exact, holds):
    case = "bfb allreduce torus:4x4"
    outcome = BenchmarkOutcome(dict(suite.expected_facts()["rings"][case]) | changed, ratio, {})
    (row,) = suite.rows_of(replace(suite.RINGS, goals={case: 4.0}, run=lambda _case: outcome, is_exact=is_exact))
    assert (row["holds"], row["differing"], row["goal_met"]) == (holds, list(changed), ratio == 4.0)


def test_the_command_keeps_a_history_and_refuses_unknown_names(tmp_path, monkeypatch, capsys):
    with pytest.raises(InvalidInput, match="unknown benchmark 'ring'; did you mean 'rings'"):
        suite.chosen(["ring"])
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    for _ in range(2):
        finished = chorale(capsys, "bench", "rings", "--json")
        assert finished.code == 0, finished.stderr
    lines = (tmp_path / "bench.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["rows"] == finished.document["rows"]


def test_a_command_has_costs_and_facts_of_its_own_and_one_that_fails_or_does_not_end_is_told(monkeypatch):
    case = "lower ring allgather ring:3 msccl-xml"
    monkeypatch.setattr(suite, "command_limits", lambda: {case: (50.0, 600)})
    outcome = suite.run_command(case)
    assert set(outcome.facts) == {"large_libraries", "bytes", "sha256"}
    assert outcome.facts["bytes"] > 100
    parts = 50 / min(outcome.seconds["processor"], outcome.seconds["passed"]), 600 / outcome.peak_mb
    assert outcome.ratio == min(parts)
    assert 10 < outcome.peak_mb < 1000
    with pytest.raises(CheckFailed, match=r"must succeed.*circle"):
        cost_of(["synth", "ring", "circle:3"])
    with pytest.raises(CheckFailed, match="must succeed"):
        cost_of(["--version"], timeout_s=0.05)
    held = bytearray(300_000_000)
    assert cost_of(["--version"]).peak_mb < 60 < len(held)


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        ("failures ring:4", {"failures": 2, "without_plan": 0}),
        ("alltoall ring:3", {"within_half_a_percent": True}),
        ("find --nodes 6 --degree 2 --search 0", {"steps_and_bandwidth": [[2, "1"], [3, "5/6"]]}),
    ],
)
def test_facts_are_of_what_was_computed(case, facts, monkeypatch):
    monkeypatch.setattr(suite, "command_limits", lambda: {case: (50.0, None)})
    assert suite.run_command(case).facts == {"large_libraries": [], **facts}
