"""Each rule of the executor, as a right plan and as wrong ones."""

import json

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import plan_text
from tests.conformance.plan_cases import CASES, Json, document_of

WRONG = [(name, wrong) for name, case in CASES.items() for wrong in case.wrong]


def rules(document: Json) -> set[str]:
    try:
        return {violation.rule for violation in check_program(parse_plan(json.dumps(document).encode()))}
    except InvalidInput:
        return {"refused"}


@pytest.mark.parametrize("name", CASES)
def test_right_plans_are_right_and_written_again(name):
    plan = parse_plan(json.dumps(document_of(name)).encode())
    assert [violation.message for violation in check_program(plan)] == []
    assert parse_plan(plan_text(plan).encode()) == plan


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{name}: {wrong}" for name, wrong in WRONG])
def test_wrong_plans_break_the_rule(name, wrong):
    assert CASES[name].wrong[wrong][1] in rules(document_of(name, wrong))
