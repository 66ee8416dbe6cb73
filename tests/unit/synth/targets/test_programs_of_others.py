"""Programs as other tools write them: read as the runtimes' loaders read them, and judged by size."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from defusedxml.ElementTree import fromstring

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_execution import Verdict
from chorale.synth.programs.program import Program
from chorale.synth.targets.judge import bounded, judge, judge_program
from chorale.synth.targets.lift import lift_with_findings, read_checked
from chorale.synth.targets.registry import MscclExecutorXml, MscclXml
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.unit.synth.lowering.programs import block, exchange, program, step

MEBIBYTE = 2**20
PAIR = parse_topology("complete:2")


def text_of(made: Program) -> str:
    target = MscclExecutorXml() if made.target == "msccl-executor-xml" else MscclXml()
    return target.emit(replace(made, origin="", name="pair"))


GOOD = text_of(exchange(2))


def verdict_of(text: str) -> Verdict:
    return judge(lift_with_findings(text.encode()), PAIR)


ACCEPTED = {
    "comments with the longest first word, and other line ends": lambda text: (
        f"<!--{250 * 'x'} -->\n{text}<!-- end -->\n".replace("\n", "\r\n")
    ),
    "comment that says k=1 after its first word": lambda text: "<!-- k=1 -->" + text,
    "comments between elements": lambda text: text.replace("  <tb", "<!--block-->\n  <tb"),
    "blank before the end of elements": lambda text: text.replace("/>", " />"),
    "blanks between attributes": lambda text: text.replace(" srcbuf", "   srcbuf"),
    "steps with an end tag": lambda text: re.sub(r"(<step [^>]*)/>", r"\1></step>", text),
    "bound of 64 bits": lambda text: re.sub(' maxBytes="[0-9]*"', f' maxBytes="{2**60}"', text),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_the_loaders_take_is_taken_without_a_word(kind):
    changed = ACCEPTED[kind](GOOD)
    assert fromstring(changed).attrib["coll"] == "allgather"
    verdict = verdict_of(changed)
    assert verdict.violations == ()
    assert verdict.notices == ()


@pytest.mark.parametrize(
    ("text", "fix"), [("PAR1\x15", "this is a schedule"), ("\x1f\x8b", "unpack"), ("notes", "chorale lower")]
)
def test_other_files_are_named_for_what_they_are(text, fix):
    with pytest.raises(InvalidInput) as caught:
        lift_with_findings(text.encode("latin-1"))
    assert fix in caught.value.way_out


def test_elements_that_no_reader_knows_are_passed_over_with_a_notice():
    with_copies = GOOD.replace("    <tb", '    <copy i="0"><copy/></copy>\n    <tb', 2).replace(
        "</algo>", "<x/></algo>"
    )
    verdict = verdict_of(with_copies)
    assert verdict.violations == ()
    assert [notice.message for notice in verdict.notices] == [
        "readers ignore <copy> under <gpu> (2 of them)",
        "readers ignore <x> under <algo> (1 of them)",
    ]


def test_of_several_documents_the_first_program_is_taken():
    other = text_of(exchange(3))
    verdict = verdict_of(f"<note/>{GOOD}<!-- more -->{other}")
    assert verdict.violations == ()
    assert "3 documents in a row" in verdict.notices[0].message
    assert lift_with_findings(f"{GOOD}{other}".encode()).program == lift_with_findings(GOOD.encode()).program


@pytest.mark.parametrize("second", ["words", "<algo><gpu></algo>", "<!-- open"])
def test_a_broken_second_document_is_refused(second):
    with pytest.raises(InvalidInput):
        lift_with_findings((GOOD + second).encode())


def test_documents_without_end_are_refused():
    with pytest.raises(InvalidInput, match="at most 64 documents"):
        lift_with_findings((GOOD + "<a/>" * 64).encode())
    with pytest.raises(InvalidInput, match="root element <algo>"):
        lift_with_findings(b"<a/>" * 3)


def test_a_program_without_a_collective_is_refused_in_words_that_say_so():
    with pytest.raises(InvalidInput, match="must say in coll which collective it is for"):
        lift_with_findings(GOOD.replace(' coll="allgather"', "").encode())


@pytest.mark.parametrize(
    ("protocol", "count", "size_bytes"),
    # Two messages of Simple fit on a connection, eight of the others; a message is as many chunks as fit into a slot.
    [("Simple", 2, None), ("Simple", 4, 8 * MEBIBYTE), ("LL", 16, 32 * 16384), ("LL128", 9, 18 * 288_000)],
)
def test_the_size_above_which_a_program_hangs(protocol, count, size_bytes):
    verdict = judge_program(exchange(count, protocol=protocol, max_bytes=0))
    assert verdict.violations == ()
    assert verdict.max_bytes == size_bytes
    assert [notice.rule for notice in verdict.notices] == ([] if size_bytes is None else ["deadlock"])


def test_a_bound_that_keeps_from_hanging_is_named_with_the_buffers_that_are_assumed():
    verdict = judge_program(exchange(4, max_bytes=MEBIBYTE))
    assert verdict.max_bytes == 8 * MEBIBYTE
    assert verdict.notices[0].message == (
        "correct at its sizes, up to 1048576 bytes; hangs above 8388608 bytes with buffers of 4194304 bytes"
    )


def test_a_program_only_for_sizes_at_which_it_hangs_is_wrong():
    verdict = judge_program(exchange(4, min_bytes=9 * MEBIBYTE, max_bytes=32 * MEBIBYTE))
    assert {violation.rule for violation in verdict.violations} == {"deadlock"}


def test_programs_of_our_own_engine_have_to_end_however_steps_are_cut():
    made = exchange(4, target="oneccl-xml")
    assert {violation.rule for violation in judge_program(made).violations} == {"deadlock"}
    assert {violation.rule for violation in judge_program(exchange(4, origin="x")).violations} == {"deadlock"}


def test_what_is_given_on_is_for_sizes_at_which_it_cannot_hang():
    made = exchange(4, max_bytes=0)
    assert bounded(made, 8).max_bytes == 8
    assert bounded(replace(made, max_bytes=4), 8).max_bytes == 4
    assert bounded(made, None) is made
    assert read_checked(text_of(made).encode(), PAIR).max_bytes == 8 * MEBIBYTE


def unused_scratch(result: bool) -> Program:
    """An allgather of two that also moves scratch that nobody wrote, to scratch, or over a result."""
    takes = [step("r", "o0"), step("r", "o0" if result else "s1")]
    ranks = [
        [block(1, None, step("s", "o0"), step("s", "s0")), block(None, 1, step("r", "o1"))],
        [block(None, 0, *takes), block(0, None, step("s", "o1"))],
    ]
    return program(CollectiveName.ALLGATHER, 2, *ranks, scratch=2, target="msccl-xml")


def test_moving_what_nobody_wrote_is_harmless_as_long_as_it_reaches_no_result():
    verdict = judge_program(unused_scratch(result=False))
    assert verdict.violations == ()
    assert [(item.rule, item.rank, item.block, item.step) for item in verdict.notices] == [("uninitialised", 0, 0, 1)]
    assert "takes time" in verdict.notices[0].message


def test_a_result_that_comes_from_what_nobody_wrote_is_wrong_and_its_origin_is_named():
    (found,) = judge_program(unused_scratch(result=True)).violations
    assert (found.rule, found.rank, found.block, found.step) == ("uninitialised", 0, 0, 1)
    assert "o[0]" in found.message
    assert "rank 0, block 0, step 1" in found.message


def test_the_commands_say_up_to_which_size_and_lift_writes_the_bound(tmp_path: Path, capsys):
    file, fixed = tmp_path / "pair.xml", tmp_path / "fixed.xml"
    file.write_text(text_of(exchange(4, max_bytes=0)))
    for command in (("lift", "-o", str(fixed)), ("verify",)):
        made = chorale(capsys, *command, str(file), "--spec", "complete:2", "--json")
        assert made.code == 0
        assert (made.document["ok"], made.document["max_bytes"]) == (True, 8 * MEBIBYTE)
        assert made.document["notices"][0]["rule"] == "deadlock"
    assert fromstring(fixed.read_text()).attrib["maxBytes"] == str(8 * MEBIBYTE + 1)


def test_json_of_a_plan_has_no_bound(tmp_path: Path, capsys):
    schedule, plan = tmp_path / "a.json", tmp_path / "plan.json"
    assert chorale(capsys, "synth", "bfb", "ring:3", "-o", str(schedule)).code == 0
    assert chorale(capsys, "lower", str(schedule), "--target", "mscclpp-json", "-o", str(plan)).code == 0
    lifted = chorale(capsys, "lift", str(plan), "--spec", "ring:3", "--json")
    assert json.loads(lifted.stdout)["max_bytes"] is None
