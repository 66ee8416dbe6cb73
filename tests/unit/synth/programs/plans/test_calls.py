"""Calls of plans of all kinds end well; plans beyond the limits of the check are refused, not judged."""

import json

import pytest

from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.conformance.plan_cases import CASES, document_of
from tests.unit.synth.programs.plans.examples import SMALL, made

LOWERED = {
    "packets": made("ring:4", "allreduce", protocol="LL"),
    "packets through ports": made("ring:4", "allgather", protocol="LL", ranks_per_box=2),
    "ports": made("hypercube:3", "allreduce", ranks_per_box=4),
    "reads": made("ring:4", "allreduce", reads=True),
    "groups": made("ring:4", "allreduce", block_group=4),
    "pipelines": made("ring:3", "allgather", pipeline_bytes=65536),
}


@pytest.mark.parametrize("name", LOWERED)
def test_lowered_plans_are_sound(name):
    assert plan_execution_violations(parse_plan(LOWERED[name].encode())) == []


@pytest.mark.parametrize("name", CASES)
def test_all_kinds_of_operations_are_sound(name):
    assert plan_execution_violations(parse_plan(json.dumps(document_of(name)).encode())) == []


def test_a_plan_beyond_the_limit_of_clocks_is_no_fault_of_its_own(monkeypatch):
    monkeypatch.setattr("chorale.synth.programs.plans.run.MAX_CLOCK_ENTRIES", 3)
    [found] = plan_execution_violations(SMALL[0])
    assert found.rule == "size"
    assert "clock entries" in found.message
