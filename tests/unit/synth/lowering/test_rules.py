"""Fault injection: for every rule of docs/reference/programs.md, a program or a file that breaks it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.check_execution import execution_violations
from chorale.synth.programs.program import BufferRef, Op, Program, Wait
from chorale.synth.targets.base import Lifted
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift_with_findings
from chorale.synth.targets.xml_targets import MscclXml
from tests.unit.synth.lowering.faults import (
    EXECUTOR,
    GOOD,
    REDUCES,
    STEP_NOP,
    TEXT,
    WAITING,
    cut,
    exchange,
    first,
    first_block,
    first_rank,
    local,
    rules_of,
    spoiled,
    without_wait,
)
from tests.unit.synth.lowering.programs import block, edited, lowered, program, step

RULES = Path(__file__).parents[4] / "docs" / "reference" / "programs.md"
FAULTS: dict[str, list[Callable[[], Program | Lifted]]] = {
    "text": [
        lambda: cut(" send=", "\r send="),
        lambda: cut("<algo", "<!--a=1--><algo"),
        lambda: cut("</tb>", "</tb >"),
    ],
    "header": [
        lambda: cut(' name="[^"]*"', ""),
        lambda: cut("reducescatter", "reduce_scatter", EXECUTOR),
        lambda: cut(' minBytes="0"', "", EXECUTOR),
    ],
    "never used": [
        lambda: cut('minBytes="0"', 'minBytes="9999999999"'),
        lambda: cut('outofplace="1"', 'outofplace="0"', EXECUTOR),
    ],
    "threads": [lambda: cut(" ngpus", ' nthreads="32" ngpus'), lambda: cut(" ngpus", ' nthreads="96" ngpus')],
    "scratch": [lambda: cut('maxBytes="[0-9]*"', 'maxBytes="1099511627776"')],
    "missing rank": [lambda: cut('  <gpu id="0".*?</gpu>\n', "")],
    "block ids": [lambda: cut('<tb id="0"', '<tb id="90"')],
    "step numbers": [lambda: cut('<step s="0"', '<step s="1"')],
    "nop": [
        lambda: cut('(<step s="0" )', STEP_NOP.format(-1, -1) + r"\1"),
        lambda: cut('(<step s="0" )', STEP_NOP.format(1, 0) + r"\1"),
    ],
    "wait": [
        lambda: first(GOOD, waits=(Wait(0, 99),)),
        lambda: first(GOOD, waits=(Wait(99, 0),)),
        lambda: lift_with_findings(MscclXml().emit(WAITING).replace('hasdep="1"', 'hasdep="0"').encode()),
    ],
    "buffers": [lambda: first_rank(GOOD, input_chunks=GOOD.chunks - 1)],
    "chunks": [lambda: replace(GOOD, chunks=GOOD.chunks + 1)],
    "root": [lambda: replace(local(), collective=Collective(CollectiveName.BROADCAST, 2))],
    "channels": [lambda: replace(GOOD, channels=GOOD.channels + 1)],
    "channel": [lambda: first_block(GOOD, channel=-1), lambda: first_block(GOOD, channel=GOOD.channels)],
    "peer": [
        lambda: first_block(GOOD, send_peer=0),
        lambda: first_block(GOOD, recv_peer=4),
        lambda: first_block(GOOD, send_peer=None, recv_peer=None),
    ],
    "shared connection": [lambda: first_rank(GOOD, blocks=GOOD.ranks[0].blocks * 2)],
    "connection": [
        lambda: first(GOOD, count=GOOD.ranks[0].blocks[0].instructions[0].count + 1),
        lambda: edited(GOOD, (0, 0, 0, None)),
        lambda: first_block(GOOD, channel=0, send_peer=2, recv_peer=2),
    ],
    "count": [lambda: first(GOOD, count=0)],
    "operand": [
        lambda: first(GOOD, op=Op.RECV_REDUCE_COPY, dst=BufferRef("o", GOOD.chunks)),
        lambda: first(GOOD, op=Op.RECV_REDUCE_COPY, src=BufferRef("i", -1)),
        lambda: local(step("cpy", "i18", "o0", count=3)),
    ],
    "overlap": [lambda: local(step("cpy", "i0", "i1", count=2)), lambda: local(step("re", "o3", "i2", count=2))],
    "idle rank": [lambda: first_rank(GOOD, blocks=())],
    "limit": [
        lambda: local(*REDUCES),
        lambda: first_block(GOOD, instructions=GOOD.ranks[0].blocks[0].instructions * 257),
        lambda: first_rank(GOOD, blocks=GOOD.ranks[0].blocks + 217 * (block(None, None),)),
        lambda: replace(GOOD, channels=33),
        lambda: first(GOOD, count=72),
        lambda: first(GOOD, src=BufferRef("i", 32768)),
        lambda: first(GOOD, waits=(Wait(128, 0),)),
        lambda: replace(GOOD, max_bytes=2**31),
        lambda: first_rank(GOOD, blocks=33 * (block(1, None),)),
        lambda: first_rank(GOOD, blocks=65 * (block(None, None, *[step("cpy", "i0", "i0")] * 64),)),
    ],
    "fused reductions": [lambda: local(step("re", "i1", "i0"), step("re", "i2", "i0", count=2))],
    "race": [lambda: without_wait(WAITING)],
    "deadlock": [
        lambda: local(step("cpy", "i0", "i0", waits=[(0, 0)])),
        lambda: exchange(3),
    ],
    "uninitialised": [lambda: local(step("cpy", "s0", "o1"), scratch=1)],
    "reduction": [lambda: local(step("re", "i1", "i0")), lambda: local(step("re", "i0", "i0"))],
    "result": [local],
    "input changed": [lambda: spoiled(in_place=False)],
    "ranks": [lambda: Lifted(lowered("ring:3", "allgather", "msccl-xml"), ())],
}


def documented() -> set[str]:
    table = RULES.read_text().partition("| rule |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE))


def test_every_rule_is_described_and_broken_here():
    assert documented() == {*FAULTS, "route", "size"}


def test_what_all_faults_begin_with_is_right():
    assert check_program(GOOD) == []
    for text in (TEXT, EXECUTOR):
        assert lift_with_findings(text.encode()).findings == ()


@pytest.mark.parametrize(("rule", "number"), [(rule, n) for rule, made in FAULTS.items() for n in range(len(made))])
def test_a_broken_rule_is_named(rule, number):
    assert rule in rules_of(FAULTS[rule][number]())


def test_a_send_without_a_path_is_named():
    """Networks that are read from specs are connected; a checker of others may give its own answer."""
    found = check_program(GOOD, lambda source, target: (source, target) != (0, 1))
    assert {violation.rule for violation in found} == {"route"}


def test_a_program_too_large_for_the_check_is_refused():
    assert {violation.rule for violation in execution_violations(GOOD, max_words=7)} == {"size"}


def test_a_run_of_reductions_that_others_wait_on_is_cut():
    """Sixteen would be joined; a wait for the eighth ends the run there."""
    waiter = block(None, None, step("cpy", "i0", "s0", waits=[(0, 7)]))
    idle = [block(None, None)]
    reducing = block(None, None, *REDUCES)
    made = program(CollectiveName.ALLREDUCE, 20, [reducing, waiter], idle, scratch=1, target="msccl-xml")
    assert "limit" not in {violation.rule for violation in check_program(made)}
    alone = program(CollectiveName.ALLREDUCE, 20, [reducing], idle, target="msccl-xml")
    assert "limit" in {violation.rule for violation in check_program(alone)}
