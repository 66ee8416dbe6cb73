"""Programs in XML, ours and others': what runtimes accept, what is damaged or meant to hurt, and judging by size."""

import json
import re
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from defusedxml.ElementTree import fromstring
from hypothesis import given, settings, strategies as st

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.check_structure import structure_violations
from chorale.synth.programs.program import BUFFERS, Op, Program, Wait
from chorale.synth.targets.judge import bounded, check_program, judge, judge_program
from chorale.synth.targets.lift import lift, lift_with_findings, read_checked
from chorale.synth.targets.registry import XML_TARGETS, MscclExecutorXml, MscclXml, OneCclXml, Target, target_named
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.conformance.target_kit import TargetKit
from tests.unit.synth.lowering.programs import block, exchange, lowered, program, step


def msccl(spec: str = "ring:3", collective: str = "allgather", **options: object) -> str:
    return MscclXml().emit(lowered(spec, collective, "msccl-xml", **options))


def oneccl(spec: str = "ring:3", collective: str = "allgather") -> str:
    return OneCclXml().emit(lowered(spec, collective))


FOREIGN_HEAD = 'proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="{coll}" inplace="1"'
STEP = '<step s="{}" type="{}" srcbuf="i" srcoff="{}" dstbuf="i" dstoff="{}" cnt="1" depid="{}" deps="{}" hasdep="{}"/>'


def foreign(*blocks: list[tuple], coll: str = "allreduce", gpus: int = 1) -> str:
    """Two ranks; the first with local `blocks` of steps (type, src, dst, depid, deps, hasdep), the second idle."""
    lines = [f'<algo name="theirs" {FOREIGN_HEAD.format(coll=coll)}>']
    lines.append(
        '<gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="-1" recv="-1" chan="0"></tb></gpu>'
    )
    lines.append('<gpu id="0" i_chunks="2" o_chunks="-1" s_chunks="0">')
    for index, steps in enumerate(blocks):
        lines.append(f'<tb id="{index}" send="-1" recv="-1" chan="0">')
        lines.extend(STEP.format(number, *step) for number, step in enumerate(steps))
        lines.append("</tb>")
    return "\n".join([*lines, "</gpu>", "</algo>"])


def test_ranks_and_blocks_may_come_in_any_order():
    program = lift(foreign([("cpy", 0, 1, -1, -1, 0)]).encode())
    assert [len(rank.blocks[0].instructions) for rank in program.ranks] == [1, 0]
    assert program.ranks[0].output_chunks == 0


def with_bounds(text: str, out_of_place: int, max_bytes: int) -> bytes:
    bounds = f'inplace="1" outofplace="{out_of_place}" minBytes="0" maxBytes="{max_bytes}"'
    return text.replace('inplace="1"', bounds).encode()


def test_the_target_is_that_of_the_runtimes_that_take_a_text():
    text = with_bounds(foreign([], coll="reducescatter"), 0, 2**20)  # the other spelling is the other runtime
    assert (lift(text).collective.name, lift(text).target) == ("reduce_scatter", "msccl-executor-xml")
    text = with_bounds(foreign([]), 0, 2**20)  # what both take is read as the older one
    assert lift(text).target == "msccl-xml"
    assert lift(oneccl().encode()).target == "oneccl-xml"


@pytest.mark.parametrize("xml", [MscclXml(), MscclExecutorXml(), OneCclXml()], ids=lambda xml: xml.name)
class TestTargets(TargetKit):
    @pytest.fixture
    def target(self, xml: Target) -> Target:
        return xml


def test_a_file_for_both_placements_is_checked_for_both():
    """In place nothing is left to do for an allgather of one rank's work; out of place the copy is missing."""
    lifted = lift_with_findings(with_bounds(re.sub(' outofplace=.*maxBytes="[0-9]*"', "", msccl()), 1, 0))
    assert lifted.out_of_place == replace(lifted.program, in_place=False)
    assert check_program(lifted.program) == []
    found = judge(lifted, parse_topology("ring:3")).violations
    assert found
    assert all(violation.message.startswith("out of place: ") for violation in found)


def test_nops_become_waits_of_the_step_that_follows():
    first = [("cpy", 0, 1, -1, -1, 1), ("nop", -1, -1, 1, 0, 0), ("cpy", 0, 1, 2, 0, 1), ("cpy", 0, 1, -1, -1, 1)]
    other = [("cpy", 0, 1, -1, -1, 1)]
    waiter = [("cpy", 0, 1, 0, 2, 0), ("cpy", 0, 1, 0, 1, 0)]
    program = lift(foreign(first, other, other, waiter).encode())
    copies = program.ranks[0].blocks[0].instructions
    assert [item.waits for item in copies] == [(), (Wait(1, 0), Wait(2, 0)), ()]
    # Steps 1 (the nop) and 2 both end with the second instruction.
    assert [item.waits for item in program.ranks[0].blocks[3].instructions] == [(Wait(0, 1),), (Wait(0, 1),)]


def test_a_wait_for_a_step_that_does_not_publish_means_the_next_that_does():
    block = [("cpy", 0, 1, -1, -1, 0), ("re", 0, 1, -1, -1, 0), ("cpy", 0, 1, -1, -1, 1)]
    program = lift(foreign(block, [("cpy", 0, 1, 0, 0, 0)]).encode())
    assert program.ranks[0].blocks[0].instructions[1].op == Op.REDUCE
    assert program.ranks[0].blocks[1].instructions[0].waits == (Wait(0, 2),)


def test_a_checked_program_is_checked_on_its_network():
    text = msccl("ring:4")
    assert read_checked(text.encode(), parse_topology("ring:4")) == lowered("ring:4", "allgather", "msccl-xml")
    with pytest.raises(CheckFailed, match="the topology has 5"):
        read_checked(text.encode(), parse_topology("ring:5"))
    with pytest.raises(CheckFailed, match="uninitialised"):
        read_checked(text.replace('type="r"', 'type="rrc"', 1).encode(), parse_topology("ring:4"))


BOMB = '<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><algo name="&b;"/>'
GOOD = msccl()
OURS = oneccl()
HOSTILE = {
    "entities": BOMB,
    "external": '<!DOCTYPE algo SYSTEM "file:///etc/passwd"><algo name="x"/>',
    "ebcdic": '<?xml version="1.0" encoding="ebcdic-x"?><algo/>',
    "utf-16": GOOD.encode("utf-16"),
    "cp037": GOOD.encode("cp037"),
    "empty": "",
    "not XML": "hello",
    "truncated": GOOD[: len(GOOD) // 2],
    "wrong root": "<gpu/>",
    "two roots of ours": OURS + OURS,
    "unknown format": OURS.replace("oneccl-xml/1", "oneccl-xml/9"),
    "no gpu count": GOOD.replace(' ngpus="3"', ""),
    "huge gpu count": GOOD.replace('ngpus="3"', 'ngpus="999999999999"'),
    "more gpus than any target takes": GOOD.replace(
        "</algo>", '<gpu id="3" i_chunks="1" o_chunks="1" s_chunks="0"/>' * 2**17 + "</algo>"
    ),
    "too few gpus": GOOD.replace('ngpus="3"', 'ngpus="2"'),
    "duplicate gpu": GOOD.replace('<gpu id="1"', '<gpu id="0"'),
    "negative offset": GOOD.replace('srcoff="0"', 'srcoff="-2"', 1),
    "negative chunks": GOOD.replace('nchunksperloop="', 'nchunksperloop="-', 1),
    "octal": GOOD.replace('cnt="1"', 'cnt="010"', 1),
    "endless number": GOOD.replace('cnt="1"', f'cnt="{"9" * 5000}"', 1),
    "unknown buffer": GOOD.replace('srcbuf="o"', 'srcbuf="x"', 1),
    "unknown type": GOOD.replace('type="s"', 'type="ra"', 1),
    "unknown collective": GOOD.replace('coll="allgather"', 'coll="custom"'),
    "unknown protocol": GOOD.replace('proto="Simple"', 'proto="simple"'),
    "unknown flag": GOOD.replace('inplace="1"', 'inplace="yes"', 1),
    "missing attribute": GOOD.replace(' hasdep="0"', "", 1),
    "duplicate attribute": GOOD.replace(' hasdep="0"', ' hasdep="0" hasdep="0"', 1),
    "child of a step": GOOD.replace('hasdep="0"/>', 'hasdep="0"><step/></step>', 1),
    "unknown element in ours": OURS.replace("  <gpu", "  <node/>\n  <gpu", 1),
    "text": GOOD.replace("  <gpu", "words <gpu", 1),
    "many attributes": GOOD.replace("<algo ", "<algo " + " ".join(f'a{k}="1"' for k in range(20)) + " "),
    "huge value": GOOD.replace('name="', 'name="' + "x" * 10**6, 1),
    "unknown attribute of ours": OURS.replace("<step ", '<step extra="1" ', 1),
    "waits with two blanks": OURS.replace("<step ", '<step waits="0:0  0:1" ', 1),
    "deep": "<algo>" * 100_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_refused_in_one_line(kind):
    with pytest.raises(InvalidInput) as caught:
        lift(text if isinstance(text := HOSTILE[kind], bytes) else text.encode())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("start", [b'<algo name="', b"<!--", b"<"])
def test_endless_tags_are_not_kept(start):
    """A file of one tag, of any size: the reading ends after the first slices, and holds no more than these."""
    text = start + b"x" * 64 * 2**20
    tracemalloc.start()
    with pytest.raises(InvalidInput, match=r"at most \d+ bytes"):
        lift(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize("encoding", ["utf-7", "hex", "latin-1", "nonsense"])
def test_a_declaration_of_another_encoding_is_refused(encoding):
    """The parser would decode some itself, and ends with an error of its own for others."""
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n'.encode() + GOOD.encode()
    with pytest.raises(InvalidInput, match="programs are XML in UTF-8, this one is in"):
        lift(text)
    assert lift_with_findings(text.replace(encoding.encode(), b"UTF-8")).program == lift(GOOD.encode())


@pytest.mark.parametrize(
    ("spec", "collective", "in_place"),
    [("biring:4,3", "reduce_scatter", False), ("complete:2", "allreduce", True), ("hypercube:3", "allgather", True)],
)
def test_the_runtimes_accept_what_is_written(spec, collective, in_place):
    options = {"in_place": in_place, "channels": 2, "instances": 1 + in_place, "max_bytes": 2**20}
    words = (MscclXml(), collective, 2**20 + 1), (MscclExecutorXml(), collective.replace("_", ""), 2**20)
    for target, coll, most in words:
        text = target.emit(lowered(spec, collective, target.name, **options))
        assert lift_with_findings(text.encode()).findings == ()
        found = fromstring(text).attrib
        assert (found["coll"], found["minBytes"], found["maxBytes"]) == (coll, "0", str(most))
        assert (found["inplace"], found["outofplace"]) == (("1", "0") if in_place else ("0", "1"))


def test_some_steps_need_nops():
    types = {step.attrib["type"] for step in fromstring(msccl("bipartite:3", "allreduce")).iter("step")}
    assert types == {"s", "r", "rrc", "nop"}


@pytest.mark.parametrize("max_bytes", [0, 2**31 - 1])
def test_the_upper_bound_is_written_as_exclusive_and_a_missing_one_is_that_of_the_runtime(max_bytes):
    text = msccl(max_bytes=max_bytes).replace(' maxBytes="2147483648"', "")
    assert "maxBytes" not in text
    assert lift_with_findings(text.encode()).program.max_bytes == 2**27 - 1


DAMAGE = {
    "declaration": lambda text: '<?xml version="1.0"?>\n' + text,
    "tab": lambda text: text.replace("  <gpu", "\t<gpu", 1),
    "seven spaces too many": lambda text: text.replace(" srcbuf=", 8 * " " + "srcbuf=", 1),
    "blank after the end": lambda text: text.replace("/>", "/ >", 1),
    "blank in a closing tag": lambda text: text.replace("</gpu>", "</gpu >", 1),
    "text": lambda text: text.replace("  <gpu", ";\n  <gpu", 1),
    "long first word of a comment": lambda text: f"<!--{251 * 'x'} -->{text}",
    "line end in a tag": lambda text: text.replace(" send=", "\nsend=", 1),
    "single quotes": lambda text: text.replace('chan="0"', "chan='0'", 1),
    "blanks around =": lambda text: text.replace('chan="0"', 'chan = "0"', 1),
    "entity": lambda text: text.replace('name="', 'name="&lt;', 1),
    "comment": lambda text: text.replace("  <gpu", "<!--k=1 -->\n  <gpu", 1),
    "long value": lambda text: text.replace('name="', 'name="' + "x" * 256, 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_text_that_only_an_xml_parser_would_take_is_reported(kind):
    damaged = DAMAGE[kind](msccl()).encode()
    with pytest.raises(InvalidInput):
        lift(damaged)
    refused = kind in ("blank after the end", "text")
    with pytest.raises(InvalidInput) if refused else nullcontext():
        assert {finding.rule for finding in lift_with_findings(damaged).findings} == {"text"}


TEXTS = [
    target.emit(lowered(spec, collective, target.name, in_place=in_place, max_bytes=2**20)).encode()
    for target in XML_TARGETS
    for spec, collective, in_place in (("ring:3", "allgather", True), ("hypercube:2", "allreduce", False))
]


NUMBERS = ["-1", "0", "1", "2", "5", "72", "216", "32768", "00", "01", "-0", "-2", "+1", "1 ", "1234567890"]
WORDS = [*(op.value for op in Op), "nop", *BUFFERS, "allreduce", "reducescatter", "0:0", "1:0 0:0"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TEXTS), st.data())
def test_a_text_with_another_value_is_written_again_if_it_breaks_no_rule(text, data):
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
    if is_sound and lifted.out_of_place is None:
        again = target.emit(lifted.program).encode()
        assert lift(again) == lifted.program
        assert target.emit(lift(again)).encode() == again


MEBIBYTE = 2**20
PAIR = parse_topology("complete:2")


def text_of(made: Program) -> str:
    target = MscclExecutorXml() if made.target == "msccl-executor-xml" else MscclXml()
    return target.emit(replace(made, origin="", name="pair"))


MESSAGES = text_of(exchange(2))


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
    changed = ACCEPTED[kind](MESSAGES)
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
    with_copies = MESSAGES.replace("    <tb", '    <copy i="0"><copy/></copy>\n    <tb', 2)
    assert notices_of(with_copies.replace("</algo>", "<x/></algo>")) == [
        "readers ignore <copy> under <gpu> (2 of them)",
        "readers ignore <x> under <algo> (1 of them)",
    ]


def test_of_several_documents_the_first_program_is_taken():
    other = text_of(exchange(3))
    assert "3 documents in a row" in notices_of(f"<note/>{MESSAGES}<!-- more -->{other}")[0]
    assert lift_with_findings(f"{MESSAGES}{other}".encode()).program == lift_with_findings(MESSAGES.encode()).program


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        *((MESSAGES + second, None) for second in ("words", "<algo><gpu></algo>", "<!-- open")),
        (MESSAGES + "<a/>" * 64, "at most 64 documents"),
        ("<a/>" * 3, "root element <algo>"),
        (MESSAGES.replace(' coll="allgather"', ""), "must say in coll which collective it is for"),
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
