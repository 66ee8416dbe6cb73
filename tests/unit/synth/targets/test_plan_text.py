"""Odd operations of plans are refused, and limits of plans are known before their text is written."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import exceeded_limit
from chorale.synth.programs.plans import translate
from chorale.synth.programs.plans.plan import Action
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets import mscclpp_reading
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import LIMITS, plan_text
from tests.unit.synth.lowering.programs import lowered
from tests.unit.synth.programs.plans.examples import SMALL

ODD = st.sampled_from([None, True, -1, 2**70, 1.5, "i", "zz", [], {}, [0], [[0]], {"index": 0, "size": 1, "type": "i"}])
OPERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from([action.value for action in Action]) | ODD,
        "channel_type": st.sampled_from(["memory", "port", "switch", "none"]) | ODD,
        "channel_ids": st.lists(st.integers(0, 3)) | ODD,
        "semaphore_ids": st.lists(st.integers(0, 3)) | ODD,
        "src_buff": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 9) | ODD, "size": st.integers(0, 9), "type": st.just("o") | ODD}
            )
            | st.fixed_dictionaries({"index": st.integers(0, 9), "size": ODD, "buffer_id": st.integers(0, 3) | ODD})
        )
        | ODD,
        "dst_buff": st.lists(st.just({"type": "s", "index": 1, "size": 1})) | ODD,
        "else": ODD,
    },
)


@given(OPERATIONS)
def test_an_odd_operation_is_read_or_refused_with_what_is_wrong(value):
    fields = mscclpp_reading.JsonFields(value, "an operation")
    try:
        operation = mscclpp_reading._read_operation(fields)
    except InvalidInput:
        return
    assert operation.action.value == value["name"]


def test_a_program_is_translated_once_for_its_limits_and_its_text(monkeypatch):
    program = lowered("ring:4", "allreduce", "mscclpp-json")
    made = []
    monkeypatch.setattr(translate, "_translated", lambda each: made.append(each) or SMALL[0])
    translate._LATEST.clear()
    assert exceeded_limit(program, LIMITS) == ""
    assert plan_of(replace(program, origin="elsewhere")).origin == "elsewhere"
    assert len(made) == 1
    plan_of(replace(program, protocol="LL"))
    plan_of(program)
    assert [each.protocol for each in made] == ["Simple", "LL", "Simple"]
    translate._LATEST.clear()


def test_clocks_beyond_the_check_are_a_limit_that_shows_at_once(monkeypatch):
    program = lowered("ring:4", "allreduce", "mscclpp-json")
    monkeypatch.setattr("chorale.synth.lowering.lower.MAX_CLOCK_ENTRIES", 100)
    assert "clock entries with which order is checked: at least 640 is above the limit 100" in exceeded_limit(
        program, LIMITS
    )


def test_128_ranks_are_lowered_and_more_refused():
    program = lowered("hypercube:7", "allreduce", "mscclpp-json", "recursive-doubling")
    assert len(parse_plan(plan_text(plan_of(program)).encode()).ranks) == 128
    with pytest.raises(InvalidInput, match="256 is above the limit 128"):
        lowered("hypercube:8", "allreduce", "mscclpp-json", "recursive-doubling")
