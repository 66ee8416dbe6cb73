"""What the check calls right is right on a weakly ordered executor, whatever comes first; much of the rest is not."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.conformance.plan_cases import CASES, Json, document_of, ops_of
from tests.properties import random_cases
from tests.unit.synth.programs.plans.weak import WeakRun

SEEDS, CALLS = 6, 3


def fails(document: Json, seeds: int = SEEDS) -> bool:
    return not all(WeakRun(document, CALLS, seed).is_right() for seed in range(seeds))


def accepted(document: Json) -> bool:
    try:
        return check_program(parse_plan(json.dumps(document).encode())) == []
    except InvalidInput:
        return False


@pytest.mark.parametrize("name", CASES)
def test_right_plans_are_right_in_any_order(name):
    assert not fails(document_of(name), seeds=20)


SHOWN = [
    ("put", "only relaxed signals after the put"),
    ("put", "a signal before the threads have met"),
    ("put", "nothing says that the put is over"),
    ("put", "nobody waits for the other to begin"),
    ("packets", "without halves of scratch"),
    ("packets by turns", "one half only"),
    ("a source that a port still reads", "no nop before the port reads"),
    ("packets put by a port", "before all threads have written them"),
    ("switch", "nothing says that it is over"),
    ("switch packets", "one half only"),
    ("groups and barriers", "no barrier"),
    ("pipeline", "a semaphore that begins high"),
    ("reduce and send", "no nop between a wait and the sum"),
]


@pytest.mark.parametrize(("name", "wrong"), SHOWN)
def test_wrong_plans_fail_in_some_order(name, wrong):
    """Where a case breaks no rule of the text, some order of threads and writes gives a wrong result, or hangs."""
    assert fails(document_of(name, wrong), seeds=300)


@random_cases(250)
@given(st.data())
def test_what_passes_the_check_is_right_in_any_order(data):
    """Plans with operations left out, doubled, swapped or moved are refused, or right in every order that is tried."""
    document = document_of(data.draw(st.sampled_from(sorted(CASES))))
    for _ in range(data.draw(st.integers(1, 2))):
        _damage(document, data)
    if accepted(document):
        assert not fails(document)


def _damage(document: Json, data: Any) -> None:
    rank = data.draw(st.integers(0, 1))
    block = data.draw(st.integers(0, len(document["gpus"][rank]["threadblocks"]) - 1))
    ops = ops_of(document, rank, block)
    if ops and ops[0]["name"] == "pipeline":
        ops = ops[0]["ops"]
    if not ops:
        return
    at = data.draw(st.integers(0, len(ops) - 1))
    how = data.draw(st.sampled_from(["drop", "double", "swap", "shift", "both ranks"]))
    if how == "drop":
        del ops[at]
    elif how == "double":
        ops.insert(at, copy.deepcopy(ops[at]))
    elif how == "swap":
        other = (at + 1) % len(ops)
        ops[at], ops[other] = ops[other], ops[at]
    elif how == "shift" and ops[at].get("dst_buff"):
        ops[at]["dst_buff"][-1]["index"] = data.draw(st.integers(0, 3))
    elif how == "both ranks":
        for each in range(2):
            others = ops_of(document, each, block)
            others = others[0]["ops"] if others and others[0]["name"] == "pipeline" else others
            if at < len(others):
                del others[at]
