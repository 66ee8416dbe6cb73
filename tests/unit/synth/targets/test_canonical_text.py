"""Programs written from columns, and read into columns: as instruction by instruction."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import BUFFERS, BufferRef, Op, Wait
from chorale.synth.targets import xml_writing
from chorale.synth.targets.lift import fitting_targets, lift, read_xml
from chorale.synth.targets.registry import XML_TARGETS, target_named
from chorale.synth.targets.xml_writing import rank_text
from tests.reference.fitting_by_reading import fitting_by_reading, read_by_parser
from tests.reference.program_text import rank_text as reference_text
from tests.unit.synth.lowering.programs import exchange_schedule, lowered
from tests.unit.synth.programs.random_columns import ranks

MADE = [
    (
        target.name,
        target.emit(lowered(spec, collective, target.name, method, in_place=in_place, max_bytes=2**20)).encode(),
    )
    for target in XML_TARGETS
    for spec, method in (("ring:3", "bfb"), ("bipartite:3", "bfb"), ("hypercube:3", "swing"), ("complete:4", "forest"))
    for collective in ("allgather", "reduce_scatter", "allreduce")
    for in_place in (True, False)
]
TEXTS = [text for _, text in MADE]


@settings(deadline=None)
@given(ranks(), st.integers(0, 4000), st.booleans())
def test_text_of_columns_is_that_of_instructions(rank, number, single_wait):
    text = rank_text(number, rank, single_wait)
    assert text == reference_text(number, replace(rank, blocks=tuple(rank.blocks)), single_wait)


def test_numbers_of_all_lengths_are_written():
    made = lowered("ring:3", "allgather")
    rank = made.ranks[0]
    block = rank.blocks[0]
    item = block.instructions[0]
    for number in (0, 9, 10, 9999, 10_000, 10_001, 99_999, 12_345_678, 10**8, 10**12 + 10**4):
        steps = [replace(item, src=BufferRef("o", offset), count=number) for offset in (number, -1, 7, 10_000)]
        many = replace(rank, blocks=(replace(block, instructions=tuple(steps)), *rank.blocks[1:]))
        for single_wait in (True, False):
            assert rank_text(0, many, single_wait) == reference_text(0, many, single_wait)


def test_waits_beyond_what_readers_take_are_not_written(monkeypatch):
    monkeypatch.setattr(xml_writing, "MAX_VALUE_CHARACTERS", 11)
    made = lowered("ring:3", "allgather")
    block = made.ranks[0].blocks[0]
    for waits, fits in (([Wait(0, 0)] * 3, True), ([Wait(0, 0)] * 4, False)):
        item = replace(block.instructions[0], waits=tuple(waits))
        rank = replace(made.ranks[0], blocks=(replace(block, instructions=(item,)),))
        if fits:
            assert 'waits="0:0 0:0 0:0"' in rank_text(0, rank, single_wait=False)
        else:
            with pytest.raises(InvalidInput, match="at most 11 characters"):
                rank_text(0, rank, single_wait=False)


@pytest.mark.parametrize(("name", "text"), MADE, ids=range(len(MADE)))
def test_reading_columns_and_parsing_give_the_same(name, text):
    document = read_xml(text)
    lifted = document.target.assemble(document.attributes, document.body)
    assert lifted == read_by_parser(text, target_named(name))
    assert lifted.findings == ()
    assert fitting_targets(text) == fitting_by_reading(text)


def check_against_the_parser(damaged: bytes) -> None:
    """What is read as columns means the same to the parser, and the targets that take it are the same."""
    try:
        document = read_xml(damaged)
        lifted = document.target.assemble(document.attributes, document.body)
    except InvalidInput:
        return
    assert lifted == read_by_parser(damaged, document.target)
    assert fitting_targets(damaged) == fitting_by_reading(damaged)


CHARACTERS = '<>/="0123456789- abcgipost\n:'


EXAMPLES = pytest.mark.parametrize("examples", [150, pytest.param(1000, marks=[pytest.mark.slow])])


@EXAMPLES
def test_damaged_text_is_read_as_the_parser_reads_it(examples):
    check = given(st.sampled_from(TEXTS), st.data())(damaged_text_is_read_as_the_parser_reads_it)
    settings(max_examples=examples, deadline=None)(check)()


def damaged_text_is_read_as_the_parser_reads_it(text, data):
    """Whatever is read as columns means the same to the parser, and the targets that take it are the same."""
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + data.draw(st.sampled_from([0, 1, 2, 30])))))
    damaged = text[:start] + data.draw(st.text(alphabet=CHARACTERS, max_size=3)).encode() + text[end:]
    check_against_the_parser(damaged)


NUMBERS = st.sampled_from(
    ["-1", "0", "1", "2", "5", "72", "216", "32768", "00", "01", "-0", "-2", "+1", "1 ", "1234567890"]
)


@EXAMPLES
def test_text_with_another_value_is_read_as_the_parser_reads_it(examples):
    check = given(st.sampled_from(TEXTS), st.data())(text_with_another_value_is_read_as_the_parser_reads_it)
    settings(max_examples=examples, deadline=None)(check)()


def text_with_another_value_is_read_as_the_parser_reads_it(text, data):
    """One value of one attribute is another one: most such texts keep their form."""
    quotes = [index for index, byte in enumerate(text) if byte == ord('"')]
    at = 2 * data.draw(st.integers(0, len(quotes) // 2 - 1))
    words = st.sampled_from([*(op.value for op in Op), "nop", *BUFFERS, "allreduce", "reducescatter", "0:0", "1:0 0:0"])
    value = data.draw(st.one_of(NUMBERS, words))
    damaged = text[: quotes[at] + 1] + value.encode() + text[quotes[at + 1] :]
    check_against_the_parser(damaged)


@pytest.mark.parametrize("target", ["oneccl-xml", "msccl-xml"])
def test_numbers_beyond_a_byte_are_read(target):
    program = lower(exchange_schedule(300), LoweringOptions(target))
    text = target_named(target).emit(program).encode()
    assert lift(text).chunks == 300
    assert {rank.output_chunks for rank in lift(text).ranks} == {300}
