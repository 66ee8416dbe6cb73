"""The kernel that runs calls of a plan accepts exactly what the run on objects accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import in_python
from chorale.synth.programs.plans.calls import CROWDED, SOUND, WRONG, verdict_on_calls
from chorale.synth.programs.plans.check_execution import plan_execution_violations
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.plans.run import PlanRun
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.conformance.plan_cases import CASES, document_of
from tests.unit.synth.programs.plans.examples import SMALL, edited, made, operations

LOWERED = {
    "packets": made("ring:4", "allreduce", protocol="LL"),
    "packets through ports": made("ring:4", "allgather", protocol="LL", ranks_per_box=2),
    "ports": made("hypercube:3", "allreduce", ranks_per_box=4),
    "reads": made("ring:4", "allreduce", reads=True),
    "groups": made("ring:4", "allreduce", block_group=4),
    "pipelines": made("ring:3", "allgather", pipeline_bytes=65536),
}


def calls_of(plan: ExecutionPlan) -> int:
    return 3 if plan.settings.double_scratch else 2


def by_kernel(plan: ExecutionPlan) -> list[int]:
    """Return the verdict with pipelines of one part, and of two."""
    return [verdict_on_calls(plan, parts, calls_of(plan)) for parts in (1, 2)]


def by_objects(plan: ExecutionPlan) -> list[int]:
    return [WRONG if PlanRun(plan, parts, calls_of(plan)).violations() else SOUND for parts in (1, 2)]


@pytest.mark.parametrize("name", LOWERED)
def test_lowered_plans_are_sound(name):
    plan = parse_plan(LOWERED[name].encode())
    assert by_kernel(plan) == by_objects(plan) == [SOUND, SOUND]


@pytest.mark.parametrize("name", CASES)
def test_all_kinds_of_operations_are_sound(name):
    plan = parse_plan(json.dumps(document_of(name)).encode())
    assert by_kernel(plan) == by_objects(plan) == [SOUND, SOUND]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_plans_get_the_same_verdict(data):
    plan = data.draw(st.sampled_from([*SMALL, *(parse_plan(text.encode()) for text in LOWERED.values())]))
    for _ in range(data.draw(st.integers(1, 2))):
        plan = _damaged(plan, data)
    if not plan_structure_violations(plan):
        assert by_kernel(plan) == by_objects(plan)


def _damaged(plan: ExecutionPlan, data: Any) -> ExecutionPlan:
    spots = list(operations(plan))
    spot, other = data.draw(st.sampled_from(spots)), data.draw(st.sampled_from(spots))
    how = data.draw(st.sampled_from(["drop", "repeat", "take another"]))
    return edited(plan, spot, *{"drop": (), "repeat": (spot[3], spot[3]), "take another": (other[3],)}[how])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_operations_of_all_kinds_get_the_same_verdict(data):
    document = document_of(data.draw(st.sampled_from(sorted(CASES))))
    rank = data.draw(st.integers(0, len(document["gpus"]) - 1))
    blocks = document["gpus"][rank]["threadblocks"]
    ops = blocks[data.draw(st.integers(0, len(blocks) - 1))]["ops"]
    if not ops:
        return
    at = data.draw(st.integers(0, len(ops) - 1))
    ops[at : at + 1] = data.draw(st.sampled_from([[], [ops[at], ops[at]], [ops[0]]]))
    try:
        plan = parse_plan(json.dumps(document).encode())
    except InvalidInput:
        return
    if not plan_structure_violations(plan):
        assert by_kernel(plan) == by_objects(plan)


def test_what_is_on_its_way_gets_more_room_up_to_a_limit():
    """More signals wait to be heard than there are blocks, for which there is room at first."""
    plan = parse_plan(made("hypercube:3", "allreduce").encode())
    owners = sum(len(body.blocks) for body in plan.ranks)
    assert verdict_on_calls(plan, 1, 2) == SOUND
    assert verdict_on_calls(plan, 1, 2, 3 * owners * (owners + len(plan.ranks))) == CROWDED


def test_a_plan_beyond_the_limit_of_clocks_is_no_fault_of_its_own(monkeypatch):
    monkeypatch.setattr("chorale.synth.programs.plans.calls.LATEST_TIME", 3)
    [found] = plan_execution_violations(SMALL[0])
    assert found.rule == "size"
    assert "clock entries" in found.message


def test_without_machine_code_objects_are_run(monkeypatch):
    monkeypatch.setattr("chorale.synth.programs.plans.check_execution.verdict_on_calls", None)
    wrong = edited(SMALL[1], next(spot for spot in operations(SMALL[1]) if spot[3].action is Action.NOP))
    with in_python():
        assert plan_execution_violations(SMALL[1]) == []
        assert [each.rule for each in plan_execution_violations(wrong)] == ["race"]


def test_what_goes_wrong_in_a_plan_too_large_for_objects_is_refused_without_a_place(monkeypatch):
    monkeypatch.setattr("chorale.synth.programs.plans.check_execution.MAX_ENTRIES_OF_OBJECTS", 100)
    wrong = edited(SMALL[1], next(spot for spot in operations(SMALL[1]) if spot[3].action is Action.NOP))
    assert plan_execution_violations(SMALL[1]) == []
    [found] = plan_execution_violations(wrong)
    assert (found.rule, found.rank) == ("size", None)
    assert found.message.startswith("it goes wrong; clock entries:")
