"""Programs as other tools write them: read as the runtimes' loaders read them, and judged by size."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from defusedxml.ElementTree import fromstring

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
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


def notices_of(text: str) -> list[str]:
    """Return what is noticed about a text that breaks no rule."""
    verdict = judge(lift_with_findings(text.encode()), PAIR)
    assert verdict.violations == ()
    return [notice.message for notice in verdict.notices]


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
    assert notices_of(changed) == []


@pytest.mark.parametrize(
    ("text", "fix"), [("PAR1\x15", "this is a schedule"), ("\x1f\x8b", "unpack"), ("notes", "chorale lower")]
)
def test_other_files_are_named_for_what_they_are(text, fix):
    with pytest.raises(InvalidInput) as caught:
        lift_with_findings(text.encode("latin-1"))
    assert fix in caught.value.way_out


def test_elements_that_no_reader_knows_are_passed_over_with_a_notice():
    with_copies = GOOD.replace("    <tb", '    <copy i="0"><copy/></copy>\n    <tb', 2)
    assert notices_of(with_copies.replace("</algo>", "<x/></algo>")) == [
        "readers ignore <copy> under <gpu> (2 of them)",
        "readers ignore <x> under <algo> (1 of them)",
    ]


def test_of_several_documents_the_first_program_is_taken():
    other = text_of(exchange(3))
    assert "3 documents in a row" in notices_of(f"<note/>{GOOD}<!-- more -->{other}")[0]
    assert lift_with_findings(f"{GOOD}{other}".encode()).program == lift_with_findings(GOOD.encode()).program


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        *((GOOD + second, None) for second in ("words", "<algo><gpu></algo>", "<!-- open")),
        (GOOD + "<a/>" * 64, "at most 64 documents"),
        ("<a/>" * 3, "root element <algo>"),
        (GOOD.replace(' coll="allgather"', ""), "must say in coll which collective it is for"),
    ],
)
def test_what_is_no_program_is_refused(text, rule):
    with pytest.raises(InvalidInput, match=rule):
        lift_with_findings(text.encode())


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


@pytest.mark.parametrize(
    "changes", [{"min_bytes": 9 * MEBIBYTE, "max_bytes": 32 * MEBIBYTE}, {"target": "oneccl-xml"}, {"origin": "x"}]
)
def test_what_hangs_at_all_its_sizes_or_is_our_own_and_hangs_at_any_is_wrong(changes):
    assert {violation.rule for violation in judge_program(exchange(4, **changes)).violations} == {"deadlock"}


def test_what_is_given_on_is_for_sizes_at_which_it_cannot_hang():
    made = exchange(4, max_bytes=0)
    assert bounded(made, 8).max_bytes == 8
    assert bounded(replace(made, max_bytes=4), 8).max_bytes == 4
    assert bounded(made, None) is made
    assert read_checked(text_of(made).encode(), PAIR).max_bytes == 8 * MEBIBYTE


@pytest.mark.parametrize(("target", "words"), [("s1", ["takes time"]), ("o0", ["o[0]", "rank 0, block 0, step 1"])])
def test_moving_what_nobody_wrote_is_harmless_as_long_as_it_reaches_no_result(target, words):
    ranks = [
        [block(1, None, step("s", "o0"), step("s", "s0")), block(None, 1, step("r", "o1"))],
        [block(None, 0, step("r", "o0"), step("r", target)), block(0, None, step("s", "o1"))],
    ]
    verdict = judge_program(program(CollectiveName.ALLGATHER, 2, *ranks, scratch=2, target="msccl-xml"))
    assert bool(verdict.violations) == (target == "o0")
    (found,) = verdict.violations or verdict.notices
    assert (found.rule, found.rank, found.block, found.step) == ("uninitialised", 0, 0, 1)
    assert all(word in found.message for word in words)


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
