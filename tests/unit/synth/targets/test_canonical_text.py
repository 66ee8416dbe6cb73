"""Limits of the text of programs, and which targets take a damaged text."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.check_structure import structure_violations
from chorale.synth.programs.program import BUFFERS, Op, Wait
from chorale.synth.targets import xml_writing
from chorale.synth.targets.lift import fitting_targets, lift, lift_with_findings
from chorale.synth.targets.registry import XML_TARGETS, target_named
from chorale.synth.targets.xml_writing import document_text
from tests.unit.synth.lowering.programs import exchange_schedule, lowered

TEXTS = [
    target.emit(lowered(spec, collective, target.name, in_place=in_place, max_bytes=2**20)).encode()
    for target in XML_TARGETS
    for spec, collective, in_place in (("ring:3", "allgather", True), ("hypercube:2", "allreduce", False))
]


def test_waits_beyond_what_readers_take_are_not_written(monkeypatch):
    monkeypatch.setattr(xml_writing, "MAX_VALUE_CHARACTERS", 11)
    made = lowered("ring:3", "allgather")
    block = made.ranks[0].blocks[0]
    for waits, fits in (([Wait(0, 0)] * 3, True), ([Wait(0, 0)] * 4, False)):
        item = replace(block.instructions[0], waits=tuple(waits))
        rank = replace(made.ranks[0], blocks=(replace(block, instructions=(item,)),))
        if fits:
            assert 'waits="0:0 0:0 0:0"' in document_text({}, [rank], single_wait=False)
        else:
            with pytest.raises(InvalidInput, match="at most 11 characters"):
                document_text({}, [rank], single_wait=False)


NUMBERS = ["-1", "0", "1", "2", "5", "72", "216", "32768", "00", "01", "-0", "-2", "+1", "1 ", "1234567890"]
WORDS = [*(op.value for op in Op), "nop", *BUFFERS, "allreduce", "reducescatter", "0:0", "1:0 0:0"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TEXTS), st.data())
def test_a_text_with_another_value_fits_its_target_if_it_breaks_no_rule(text, data):
    quotes = [index for index, byte in enumerate(text) if byte == ord('"')]
    at = 2 * data.draw(st.integers(0, len(quotes) // 2 - 1))
    value = data.draw(st.sampled_from([*NUMBERS, *WORDS]))
    damaged = text[: quotes[at] + 1] + value.encode() + text[quotes[at + 1] :]
    try:
        lifted = lift_with_findings(damaged)
    except InvalidInput:
        return
    target = target_named(lifted.program.target)
    is_sound = not lifted.findings and not structure_violations(lifted.program, target.limits)
    assert (target.name in fitting_targets(damaged)) == is_sound
    if is_sound and lifted.out_of_place is None:
        again = target.emit(lifted.program).encode()
        assert lift(again) == lifted.program
        assert target.emit(lift(again)).encode() == again


@pytest.mark.parametrize("target", ["oneccl-xml", "msccl-xml"])
def test_numbers_beyond_a_byte_are_read(target):
    program = lower(exchange_schedule(300), LoweringOptions(target))
    text = target_named(target).emit(program).encode()
    assert lift(text).chunks == 300
    assert {rank.output_chunks for rank in lift(text).ranks} == {300}
