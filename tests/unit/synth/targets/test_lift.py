"""Reading programs: what others wrote, what is damaged, and what is meant to hurt."""

import contextlib
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput
from chorale.synth.programs.program import Op, Wait
from chorale.synth.targets.judge import check_program, judge
from chorale.synth.targets.lift import fitting_targets, lift, lift_with_findings, read_checked
from chorale.synth.targets.registry import XML_TARGETS
from chorale.synth.targets.xml_reading import read_document
from chorale.synth.targets.xml_targets import MscclXml, OneCclXml
from chorale.synth.topology.spec import parse_topology
from tests.properties import random_cases
from tests.unit.synth.lowering.programs import lowered


def msccl(spec: str = "ring:3", collective: str = "allgather", **options: object) -> str:
    return MscclXml().emit(lowered(spec, collective, "msccl-xml", **options))


def oneccl(spec: str = "ring:3", collective: str = "allgather") -> str:
    return OneCclXml().emit(lowered(spec, collective))


FOREIGN_HEAD = 'proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="{coll}" inplace="1"'
BOTH = ' outofplace="0" minBytes="0" maxBytes="2147483648"'
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


BOUNDS = 'outofplace="{}" minBytes="0" maxBytes="{}"'


def with_bounds(text: str, out_of_place: int, max_bytes: int) -> bytes:
    return text.replace('inplace="1"', 'inplace="1" ' + BOUNDS.format(out_of_place, max_bytes)).encode()


def test_the_other_spelling_of_reduce_scatter_is_the_other_runtime():
    text = with_bounds(foreign([], coll="reducescatter"), 0, 2**20)
    assert lift(text).collective.name == "reduce_scatter"
    assert lift(text).target == "msccl-executor-xml"
    assert fitting_targets(text) == ["msccl-executor-xml"]


def test_what_both_runtimes_take_is_read_as_the_older_one():
    text = with_bounds(foreign([]), 0, 2**20)
    assert lift(text).target == "msccl-xml"
    assert fitting_targets(text) == ["msccl-executor-xml", "msccl-xml"]


def test_a_file_without_bounds_fits_the_older_runtime_only():
    assert fitting_targets(foreign([]).encode()) == ["msccl-xml"]
    assert fitting_targets(oneccl().encode()) == ["oneccl-xml"]


def test_a_file_for_both_placements_is_checked_for_both():
    """In place nothing is left to do for an allgather of one rank's work; out of place the copy is missing."""
    lifted = lift_with_findings(with_bounds(msccl("ring:3").replace(BOTH, ""), 1, 0))
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
    block = [("cpy", 0, 1, -1, -1, 0), ("cpy", 0, 1, -1, -1, 0), ("cpy", 0, 1, -1, -1, 1)]
    program = lift(foreign(block, [("cpy", 0, 1, 0, 0, 0)]).encode())
    assert program.ranks[0].blocks[1].instructions[0].waits == (Wait(0, 2),)


SILENT = [("cpy", 0, 1, -1, -1, 1), ("cpy", 0, 1, -1, -1, 0)]
FAULTS = {
    "never publishes": [SILENT, [("cpy", 0, 1, 0, 1, 0)]],
    "waits for step 7": [SILENT, [("cpy", 0, 1, 0, 7, 0)]],
    "of block 9": [SILENT, [("cpy", 0, 1, 9, 0, 0)]],
    "a nop must carry": [[("nop", -1, -1, -1, -1, 0), ("cpy", 0, 1, -1, -1, 0)]],
    "after a nop": [SILENT, [("nop", -1, -1, 0, 0, 0), ("cpy", 0, 1, -1, -1, 0)]],
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_hangs_or_misleads_the_runtime_is_a_finding(words):
    text = foreign(*FAULTS[words]).encode()
    findings = lift_with_findings(text).findings
    assert any(words in finding.message for finding in findings)
    with pytest.raises(InvalidInput, match=r"the program is wrong \("):
        lift(text)


def removed(text: str, start: str, count: int = 1) -> str:
    lines = text.splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if line.strip().startswith(start))
    return "".join(lines[:at] + lines[at + count :])


@pytest.mark.parametrize("write", [msccl, oneccl])
def test_a_lost_line_is_a_finding(write):
    text = write("hypercube:2")
    assert {found.rule for found in lift_with_findings(removed(text, "<step").encode()).findings} >= {"step numbers"}
    end = text.index("  </gpu>\n") + len("  </gpu>\n")
    start = text.index("  <gpu")
    without_rank = text[:start] + text[end:]
    assert {found.rule for found in lift_with_findings(without_rank.encode()).findings} == {"missing rank"}
    without_block = text.replace('    <tb id="0"', '    <tb id="50"', 1)
    assert "block ids" in {found.rule for found in lift_with_findings(without_block.encode()).findings}


def test_a_checked_program_is_checked_on_its_network():
    text = msccl("ring:4")
    assert read_checked(text.encode(), parse_topology("ring:4")) == lowered("ring:4", "allgather", "msccl-xml")
    with pytest.raises(CheckFailed, match="the topology has 5"):
        read_checked(text.encode(), parse_topology("ring:5"))
    with pytest.raises(CheckFailed, match="uninitialised"):
        read_checked(text.replace('type="r"', 'type="rrc"', 1).encode(), parse_topology("ring:4"))


BOMB = '<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><algo name="&b;"/>'
EXTERNAL = '<!DOCTYPE algo SYSTEM "file:///etc/passwd"><algo name="x"/>'
GOOD = msccl()
OURS = oneccl()
HOSTILE = {
    "entities": BOMB,
    "external": EXTERNAL,
    "empty": "",
    "blank": "  \n",
    "not XML": "hello",
    "truncated": GOOD[: len(GOOD) // 2],
    "binary": "<\x00\x01\x02",
    "wrong root": "<gpu/>",
    "two roots of ours": OURS + OURS,
    "unknown format": OURS.replace("oneccl-xml/1", "oneccl-xml/9"),
    "no gpu count": GOOD.replace(' ngpus="3"', ""),
    "huge gpu count": GOOD.replace('ngpus="3"', 'ngpus="999999999999"'),
    "more gpus than any target takes": GOOD.replace(
        "</algo>", '<gpu id="3" i_chunks="1" o_chunks="1" s_chunks="0"/>' * 2**17 + "</algo>"
    ),
    "too few gpus": GOOD.replace('ngpus="3"', 'ngpus="2"'),
    "no gpus": GOOD.replace('ngpus="3"', 'ngpus="0"'),
    "duplicate gpu": GOOD.replace('<gpu id="1"', '<gpu id="0"'),
    "duplicate block": GOOD.replace('<tb id="1"', '<tb id="0"', 1),
    "negative count": GOOD.replace('cnt="1"', 'cnt="-1"', 1),
    "negative offset": GOOD.replace('srcoff="0"', 'srcoff="-2"', 1),
    "negative chunks": GOOD.replace('nchunksperloop="', 'nchunksperloop="-', 1),
    "octal": GOOD.replace('cnt="1"', 'cnt="010"', 1),
    "hexadecimal": GOOD.replace('cnt="1"', 'cnt="0x1"', 1),
    "words for numbers": GOOD.replace('cnt="1"', 'cnt="one"', 1),
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
    "unknown root attribute of ours": OURS.replace("<algo ", '<algo extra="1" ', 1),
    "waits in words": OURS.replace("<step ", '<step waits="first" ', 1),
    "waits with two blanks": OURS.replace("<step ", '<step waits="0:0  0:1" ', 1),
    "deep": "<algo>" * 100_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_refused_at_once_in_one_line(kind):
    started = time.process_time()
    with pytest.raises(InvalidInput) as caught:
        lift(HOSTILE[kind].encode())
    assert time.process_time() - started < 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("kind", ["value", "comment", "name", "blanks"])
def test_endless_tags_are_not_kept(kind):
    """A file of one tag, of any size: the reading ends after the first slices, and holds no more than these."""
    size = 64 * 2**20
    text = {
        "value": b'<algo name="' + b"x" * size,
        "comment": b"<!--" + b"x" * size,
        "name": b"<" + b"x" * size,
        "blanks": b"<algo" + b" " * size,
    }[kind]
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(InvalidInput, match=r"at most \d+ bytes"):
        lift(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert time.process_time() - started < 5


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-7", "cp037", "utf-8-sig"])
def test_other_encodings_are_refused_or_named(encoding):
    """Only a byte order mark before UTF-8 can be read at all, and the runtimes' scanner does not take it."""
    text = GOOD.encode(encoding)
    if encoding == "utf-8-sig":
        assert "text" in {finding.rule for finding in lift_with_findings(text).findings}
    elif encoding != "utf-7":  # which is ASCII as long as no + and - stand in it
        with pytest.raises(InvalidInput):
            lift(text)


@pytest.mark.parametrize("encoding", ["utf-7", "shift_jis", "utf-16", "hex", "latin-1", "nonsense"])
def test_a_declaration_of_another_encoding_is_refused(encoding):
    """The parser would decode some itself, and ends with an error of its own for others."""
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n'.encode() + GOOD.encode()
    with pytest.raises(InvalidInput, match="programs are XML in UTF-8, this one is in"):
        lift(text)
    assert lift_with_findings(text.replace(encoding.encode(), b"UTF-8")).program == lift(GOOD.encode())


def test_bytes_in_no_known_encoding_are_refused():
    for text in (b'<?xml version="1.0" encoding="ebcdic-x"?><algo/>', b"<algo name='\xff\xfe'/>"):
        with pytest.raises(InvalidInput):
            lift(text)


def test_too_many_elements_end_the_reading():
    with pytest.raises(InvalidInput, match="at most 10 elements"):
        read_document(GOOD.encode(), lambda _: XML_TARGETS[0].limits, most_elements=10)


def test_too_many_bytes_are_not_parsed():
    with pytest.raises(InvalidInput, match="at most 100 bytes"):
        read_document(GOOD.encode(), lambda _: XML_TARGETS[0].limits, most_bytes=100)


@random_cases(150)
@given(st.sampled_from([GOOD, OURS]), st.data())
def test_damaged_text_never_gives_anything_but_an_answer(text, data):
    """Any replaced stretch either is refused in one line, or gives a program that the checker can judge."""
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 60)))
    middle = data.draw(st.text(alphabet='<>/="0123456789- abcgipost\n', max_size=12))
    damaged = text[:start] + middle + text[end:]
    with contextlib.suppress(ChoraleError):
        lifted = lift_with_findings(damaged.encode())
        violations = [*lifted.findings, *check_program(lifted.program)]
        assert all("\n" not in violation.message for violation in violations)


def test_fused_operations_of_others_are_read():
    text = foreign([("re", 0, 1, -1, -1, 0)])
    assert lift(text.encode()).ranks[0].blocks[0].instructions[0].op == Op.REDUCE
