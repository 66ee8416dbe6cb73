"""Plans from anywhere: read as written, or refused in one line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.properties import random_cases
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
        b"[]",
        b"{}",
        b'{"name": NaN}',
        b'{"a":' * 200_000,
        b"[" * 200_000,
        b'{"name": ' + b"9" * 5000 + b"}",
        changed(protocol="LL128"),
        changed(collective="sendrecv"),
        changed(reuse_resources="yes"),
        changed(gpus=[]),
        changed(gpus="none"),
        changed(inplace=1),
        changed(min_message_size=-1),
        changed(max_message_size=2**64),
        TEXT.replace('"id": 1', '"id": 2', 1).encode(),
        TEXT.replace('"memory"', '"nvls"', 1).encode(),
        TEXT.replace('"name": "put"', '"name": "fetch"', 1).encode(),
        TEXT.replace('"type": "o"', '"type": "x"', 1).encode(),
        TEXT.replace('"index": 1', '"index": -1', 1).encode(),
        TEXT.replace('"name": "nop"', '"name": "nop", "tbg_info": {}', 1).encode(),
        TEXT.replace('"input_chunks": 3', '"input_chunks": 0', 1).encode(),
        TEXT.replace('"input_chunks": 3', '"input_chunks": true', 1).encode(),
    ],
    ids=lambda text: str(text[:24]),
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(InvalidInput) as refusal:
        parse_plan(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_what_is_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidInput, match="at most 10 bytes"):
        parse_plan(b"{" * 11, most_bytes=10)


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
