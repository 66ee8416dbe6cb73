"""Plans from anywhere are read as written, or refused in one line; limits of plans are known before their text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import exceeded_limit
from chorale.synth.programs.plans.plan import Action
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets import mscclpp_text
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_text import LIMITS, parse_plan, plan_text
from tests.properties import random_cases
from tests.unit.synth.lowering.programs import lowered
from tests.unit.synth.programs.plans.examples import made
from tests.unit.synth.programs.plans.weak import WeakRun

TEXT = made("ring:3", "allreduce", in_place=False)


def changed(**changes: object) -> bytes:
    return json.dumps(json.loads(TEXT) | changes).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"\xff\xfe{}",
        b"{}",
        b'{"name": NaN}',
        b'{"a":' * 200_000,
        b'{"name": ' + b"9" * 5000 + b"}",
        changed(protocol="LL128"),
        changed(collective="sendrecv"),
        changed(reuse_resources="yes"),
        changed(gpus=[]),
        changed(inplace=1),
        changed(max_message_size=2**64),
        TEXT.replace('"id": 1', '"id": 2', 1).encode(),
        TEXT.replace('"memory"', '"nvls"', 1).encode(),
        TEXT.replace('"name": "put"', '"name": "fetch"', 1).encode(),
        TEXT.replace('"type": "o"', '"type": "x"', 1).encode(),
        TEXT.replace('"index": 1', '"index": -1', 1).encode(),
        TEXT.replace('"size": 1', '"size": 4294967296', 1).encode(),
        TEXT.replace('"name": "nop"', '"name": "nop", "tbg_info": {}', 1).encode(),
        TEXT.replace('"input_chunks": 3', '"input_chunks": 0', 1).encode(),
    ],
    ids=lambda text: str(text[:24]),
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(InvalidInput) as refusal:
        parse_plan(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_what_is_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidInput, match="at most 67108864 bytes"):
        parse_plan(b"{" * (64 * 2**20 + 1))


VALUES = st.sampled_from([None, True, -1, 0, 1, 2, 7, 2**40, 2**63, "", "i", "o", "s", "nop", "put", [], {}, [0], 1.5])


@random_cases(300)
@given(st.data())
def test_damaged_text_is_refused_or_harmless(data):
    document = json.loads(TEXT)
    node: Any = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 3)) == 0:
            break
        node = node[key]
    node[key] = data.draw(VALUES)
    text = json.dumps(document)
    try:
        found = check_program(parse_plan(text.encode()))
    except InvalidInput:
        return
    assert found or WeakRun(document, 2, 0).is_right()


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
    fields = mscclpp_text.JsonFields(value, "an operation")
    try:
        operation = mscclpp_text._read_operation(fields)
    except InvalidInput:
        return
    assert operation.action.value == value["name"]


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
