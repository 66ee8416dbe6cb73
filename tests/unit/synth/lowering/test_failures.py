"""Every failure of the runtimes and every kind of damage, made on purpose: found by its rule, its place is named."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.check_execution import execution_violations
from chorale.synth.programs.program import BufferRef, Op, Program, Wait
from chorale.synth.targets.judge import check_program, judge
from chorale.synth.targets.lift import lift_with_findings
from chorale.synth.targets.registry import Lifted, MscclExecutorXml, MscclXml
from chorale.synth.topology.spec import parse_topology
from tests.conformance import example_programs as examples
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import block, edited, exchange, instructions, lowered, program, step, with_block

GOOD = lowered("ring:4", "reduce_scatter", "msccl-xml", in_place=False)
WAITING = lowered("hypercube:3", "allreduce", "msccl-xml")
TEXT = MscclXml().emit(GOOD)
EXECUTOR = MscclExecutorXml().emit(replace(GOOD, target="msccl-executor-xml"))
REDUCES = [step("re", f"i{chunk}", "i0") for chunk in range(1, 17)]


def first(made: Program, **changes: object) -> Program:
    return edited(made, (0, 0, 0, replace(made.ranks[0].blocks[0].instructions[0], **changes)))


def first_block(made: Program, **changes: object) -> Program:
    return with_block(made, 0, 0, replace(made.ranks[0].blocks[0], **changes))


def first_rank(made: Program, **changes: object) -> Program:
    return replace(made, ranks=(replace(made.ranks[0], **changes), *made.ranks[1:]))


def without_wait(made: Program) -> Program:
    *place, item = next(place for place in instructions(made) if place[3].waits)
    return edited(made, (*place, replace(item, waits=())))


def local(*items: object, in_place: bool = True, scratch: int = 0) -> Program:
    """Return an allreduce of two ranks in which the first only works locally."""
    idle = [block(None, None)]
    made = program(CollectiveName.ALLREDUCE, 20, [block(None, None, *items)], idle, scratch=scratch, target="msccl-xml")
    return replace(made, in_place=in_place)


def cut(pattern: str, new: str, text: str = TEXT) -> Lifted:
    changed = re.sub(pattern, new, text, count=1, flags=re.DOTALL)
    assert changed != text
    return lift_with_findings(changed.encode())


STEP_NOP = (
    '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="i" dstoff="-1" cnt="0" depid="{}" deps="{}" hasdep="0"/>\n'
)


def spoiled(in_place: bool) -> Program:
    """Both swap their vectors; the first writes the sum over its input, too."""
    swap = [step("s", "i0"), step("rrc", "i0", "o0")]
    back = step("cpy", "o0", "i0")
    ranks = [[block(1, 1, *swap, back)], [block(0, 0, *swap)]]
    return program(CollectiveName.ALLREDUCE, 1, *ranks, in_place=in_place)


def rules_of(made: Program | Lifted) -> set[str]:
    if isinstance(made, Program):
        return {violation.rule for violation in check_program(made)}
    return {violation.rule for violation in judge(made, parse_topology("ring:4")).violations}


Fault = Callable[[], Program | Lifted]


def read(text: str | bytes) -> Lifted:
    return lift_with_findings(text if isinstance(text, bytes) else text.encode())


def alltoall_in_place(name: str) -> Lifted:
    made = program(CollectiveName.ALLTOALL, 2, [block(None, None)], [block(None, None)], target="msccl-xml")
    return read(MscclXml().emit(replace(made, name="x")).replace('name="x"', f'name="{name}"'))


def split_send() -> Program:
    """One send of two chunks meets two receives of one."""
    whole = [block(1, None, step("s", "o0", count=2)), block(None, 1, step("r", "o2", count=2))]
    parts = [block(0, None, step("s", "o2", count=2)), block(None, 0, step("r", "o0"), step("r", "o1"))]
    return program(CollectiveName.ALLGATHER, 4, whole, parts)


def circle() -> Program:
    """Two blocks of a rank wait for each other."""
    items = [step("cpy", "o0", "o0", waits=[(other, 0)]) for other in (1, 0)]
    idle = [block(None, None)]
    return program(CollectiveName.ALLREDUCE, 2, [block(None, None, item) for item in items], idle)


def twice() -> Program:
    """The sum of a pair is sent back and added once more."""
    swap = [step("s", "o0"), step("rrc", "o0")]
    return program(CollectiveName.ALLREDUCE, 1, [block(1, 1, *swap * 2)], [block(0, 0, *swap * 2)])


FAILURES: dict[str, tuple[str, Fault]] = {
    "byte order mark": ("text", lambda: read(b"\xef\xbb\xbf" + TEXT.encode())),
    "16 attributes and a blank too many": (
        "text",
        lambda: cut(" ngpus", "".join(f' a{n}="1"' for n in range(5)) + "  ngpus"),
    ),
    "second document with a fault": ("text", lambda: read(TEXT + TEXT.replace("  <gpu", "\t<gpu", 1))),
    "M without a name": ("header", lambda: cut(' name="[^"]*"', "")),
    "M alltoall called 2D": ("header", lambda: alltoall_in_place("2D")),
    "X without outofplace": ("header", lambda: cut(' outofplace="[01]"', "", EXECUTOR)),
    "X with the other word for reduce-scatter": ("header", lambda: cut("reducescatter", "reduce_scatter", EXECUTOR)),
    "M alltoall in place": ("never used", lambda: alltoall_in_place("x")),
    "no size between the bounds": ("never used", lambda: cut('minBytes="0"', 'minBytes="9999999999"')),
    "X for neither placement": ("never used", lambda: cut('outofplace="1"', 'outofplace="0"', EXECUTOR)),
    "nthreads not a power of two": ("threads", lambda: cut(" ngpus", ' nthreads="96" ngpus')),
    "scratch for a terabyte": ("scratch", lambda: cut('maxBytes="[0-9]*"', 'maxBytes="1099511627776"')),
    "vector beyond 32 bits in M": ("limit", lambda: replace(GOOD, max_bytes=2**31)),
    "rank without a gpu element": ("missing rank", lambda: cut('  <gpu id="0".*?</gpu>\n', "")),
    "rank without threadblocks": ("idle rank", lambda: first_rank(GOOD, blocks=())),
    "gap in block ids": ("block ids", lambda: cut('<tb id="0"', '<tb id="90"')),
    "repeated step number": ("step numbers", lambda: cut('<step s="1"', '<step s="0"')),
    "nop without a dependence": ("nop", lambda: cut('(<step s="0" )', STEP_NOP.format(-1, -1) + r"\1")),
    "step without a dependence after a nop": ("nop", lambda: cut('(<step s="0" )', STEP_NOP.format(1, 0) + r"\1")),
    "i_chunks that are not those of the buffer": ("buffers", lambda: first_rank(GOOD, input_chunks=1)),
    "N not a multiple of the ranks": ("chunks", lambda: replace(GOOD, chunks=GOOD.chunks + 1)),
    "channel -1": ("channel", lambda: first_block(GOOD, channel=-1)),
    "channel 32": ("limit", lambda: replace(first_block(GOOD, channel=32), channels=33)),
    "channel above nchannels": ("channel", lambda: first_block(GOOD, channel=GOOD.channels)),
    "nchannels too high": ("channels", lambda: replace(GOOD, channels=GOOD.channels + 1)),
    "257 steps": ("limit", lambda: local(*[step("cpy", "i0", "i0")] * 257)),
    "217 threadblocks": ("limit", lambda: first_rank(GOOD, blocks=217 * (block(None, None),))),
    "wait for block 128": ("limit", lambda: first(GOOD, waits=(Wait(128, 0),))),
    "72 chunks in a step": ("limit", lambda: first(GOOD, count=72)),
    "offset of 17 bits": ("limit", lambda: first(GOOD, src=BufferRef("i", 32768))),
    "last chunk outside the buffer": ("operand", lambda: local(step("cpy", "i18", "o0", count=3))),
    "rrc outside the buffer": ("operand", lambda: first(GOOD, op=Op.RECV_REDUCE_COPY, dst=BufferRef("o", GOOD.chunks))),
    "send to the own rank": ("peer", lambda: first_block(GOOD, send_peer=0, recv_peer=None)),
    "send of a block without a peer": ("peer", lambda: first_block(GOOD, send_peer=None, recv_peer=None)),
    "connection without a receiver": ("connection", lambda: first_block(GOOD, send_peer=2, recv_peer=2)),
    "two blocks on one connection": (
        "shared connection",
        lambda: first_rank(GOOD, blocks=tuple(GOOD.ranks[0].blocks) * 2),
    ),
    "send of 2 for two receives of 1": ("connection", split_send),
    "message left out": ("connection", lambda: edited(GOOD, (0, 0, 0, None))),
    "wait for a step that never publishes": (
        "wait",
        lambda: read(MscclXml().emit(WAITING).replace('hasdep="1"', 'hasdep="0"')),
    ),
    "wait for a step that does not exist": ("wait", lambda: first(GOOD, waits=(Wait(0, 99),))),
    "blocks that wait for each other": ("deadlock", circle),
    "more messages than a connection holds": ("deadlock", lambda: exchange(3, "oneccl-xml")),
    "missing dependence": ("race", lambda: without_wait(WAITING)),
    "scratch read before it is written": ("uninitialised", lambda: local(step("cpy", "s0", "o1"), scratch=1)),
    "16 reductions joined": ("limit", lambda: local(*REDUCES)),
    "joined reductions of different counts": (
        "fused reductions",
        lambda: local(step("re", "i1", "i0"), step("re", "i2", "i0", count=2)),
    ),
    "copy onto itself, moved by one": ("overlap", lambda: local(step("cpy", "i0", "i1", count=2))),
    "contribution counted twice": ("reduction", twice),
    "sum of different chunks": ("reduction", lambda: local(step("re", "i1", "i0"))),
    "nothing done": ("result", local),
    "input overwritten out of place": ("input changed", lambda: spoiled(in_place=False)),
    "topology of other ranks": ("ranks", lambda: Lifted(lowered("ring:3", "allgather", "msccl-xml"), ())),
    "channels of 33": ("limit", lambda: replace(GOOD, channels=33)),
    "33 sending blocks on a channel": ("limit", lambda: first_rank(GOOD, blocks=33 * (block(1, None),))),
    "4097 elements of a rank": (
        "limit",
        lambda: first_rank(GOOD, blocks=65 * (block(None, None, *[step("cpy", "i0", "i0")] * 64),)),
    ),
    "no chunks in a step": ("count", lambda: first(GOOD, count=0)),
    "reduction of what it adds": ("overlap", lambda: local(step("re", "o3", "i2", count=2))),
    "root that is no rank": ("root", lambda: replace(local(), collective=Collective(CollectiveName.BROADCAST, 2))),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_known_failure_is_found(name):
    rule, make = FAILURES[name]
    assert rule in rules_of(make())


RULES = Path(__file__).parents[4] / "docs" / "reference" / "programs.md"


def test_every_rule_is_described_and_broken_here():
    table = RULES.read_text().partition("| rule |")[2].partition("\n\n")[0]
    described = set(re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE))
    assert described == {rule for rule, _ in FAILURES.values()} | {"route", "size"}


def test_what_all_faults_begin_with_is_right():
    assert check_program(GOOD) == []
    for text in (TEXT, EXECUTOR):
        assert lift_with_findings(text.encode()).findings == ()


def test_a_send_without_a_path_is_named_and_what_is_too_large_is_refused():
    """Networks that are read from specs are connected; a checker of others may give its own answer."""
    found = check_program(GOOD, lambda source, target: (source, target) != (0, 1))
    assert {violation.rule for violation in found} == {"route"}
    assert {violation.rule for violation in execution_violations(GOOD, max_words=7)} == {"size"}


def test_a_run_of_reductions_that_others_wait_on_is_cut():
    """Sixteen would be joined; a wait for the eighth ends the run there."""
    waiter = block(None, None, step("cpy", "i0", "s0", waits=[(0, 7)]))
    idle = [block(None, None)]
    reducing = block(None, None, *REDUCES)
    made = program(CollectiveName.ALLREDUCE, 20, [reducing, waiter], idle, scratch=1, target="msccl-xml")
    assert "limit" not in rules_of(made)
    assert "limit" in rules_of(first_rank(made, blocks=(reducing,)))


def test_in_a_program_from_elsewhere_messages_may_stand_in_for_a_wait():
    """The final value cannot come back before the contribution has left: such a wait is not missed."""
    made = replace(lowered("hypercube:2", "allreduce"), origin="")
    found = [rules_of(edited(made, (*place, replace(item, waits=()))))
             for *place, item in instructions(made) if len(item.waits) == 1]  # fmt: skip
    assert 0 < sum(map(bool, found)) < len(found)


def test_a_race_names_its_place():
    made = lowered("ring:4", "allgather")
    rank, index, number, item = next(place for place in instructions(made) if place[3].waits)
    (violation,) = check_program(edited(made, (rank, index, number, replace(item, waits=()))))
    waited = item.waits[0]
    assert violation.rule == "race"
    assert (violation.rank, violation.block, violation.step) in (
        (rank, index, number),
        (rank, waited.block, waited.step),
    )
    other = {index, waited.block} - {violation.block}
    assert f"which block {other.pop()} touches too" in violation.message


def test_every_fused_operation_is_executed():
    """The sum travels round a ring of three: begun, added to, completed and kept, passed on, kept."""
    ring = [
        [block(1, 2, step("s", "i0", count=3), step("rcs", "i0", count=3))],
        [block(2, 0, step("rrs", "i0", count=3), step("r", "i0", count=3))],
        [block(0, 1, step("rrcs", "i0", count=3))],
    ]
    made = program(CollectiveName.ALLREDUCE, 3, *ring)
    assert check_program(made) == []
    got, wanted = result_of(made, seed=0, piece=1)
    assert got == wanted


def test_an_exchange_that_fits_into_the_connection_is_right():
    assert check_program(exchange(2, "oneccl-xml")) == []
    assert check_program(exchange(8, "oneccl-xml", protocol="LL")) == []


def test_a_program_too_large_to_execute_is_not_executed():
    idle = block(None, None)
    busy = block(None, None, *[step("cpy", "i0", "i0", count=4096)] * 10_000)
    wide = [idle] * 20_000
    for chunks, first in ((2**25, [idle]), (4096, [busy]), (1, wide)):
        made = program(CollectiveName.ALLREDUCE, chunks, first, [idle])
        assert [violation.rule for violation in check_program(made)] == ["size"]


def test_a_long_chain_of_waits_against_the_order_of_the_blocks_is_executed():
    length = 3000
    chain = [block(None, None, step("cpy", "i0", "s0", waits=[(index + 1, 0)])) for index in range(length)]
    made = program(CollectiveName.ALLREDUCE, 1, [*chain, block(None, None, step("cpy", "i0", "s0"))], scratch=1)
    assert check_program(made) == []


def test_a_deadlock_names_the_circle():
    ranks = [[block(1 - rank, 1 - rank, step("rrc", "o0"), step("s", "o0"))] for rank in range(2)]
    found = check_program(program(CollectiveName.ALLREDUCE, 1, *ranks))
    assert found[0].message.endswith("they wait in a circle: rank 0 block 0 -> rank 1 block 0 -> rank 0 block 0")


def test_sets_of_more_ranks_than_a_word_holds():
    """A chain of 70 ranks sums up to the last and tells everybody; without one contribution every rank misses it."""
    made = examples.ring_allreduce(range(70))
    assert execution_violations(made) == []
    items = made.ranks[0].blocks[0].instructions
    lost = edited(made, (0, 0, 1, replace(items[1], op=Op.RECV_COPY_SEND)))
    found = execution_violations(edited(lost, (0, 0, len(items) - 1, replace(items[-1], op=Op.RECV))))
    assert {item.rule for item in found} == {"result"}
    assert "chunk 69 of ranks 1, 2, 3, 4, 5, 6, 7, 8, ..., must hold" in found[0].message


def test_waits_are_counted_within_the_rank():
    """Blocks and instructions are numbered through all ranks; the second rank's are not those of the first."""
    ranks = [
        [block(1, None, step("s", "i0")), block(None, None)],
        [block(None, 0, step("rrc", "i0", "s0")), block(None, None, step("cpy", "s0", "o0", waits=[(0, 0)]))],
    ]
    to_1 = Collective(CollectiveName.REDUCE, 1)
    made = replace(program(CollectiveName.REDUCE, 1, *ranks, scratch=1), collective=to_1)
    assert execution_violations(made) == []
    early = edited(made, (1, 1, 0, step("cpy", "s0", "o0", waits=[(1, 0)])))
    assert {item.rule for item in execution_violations(early)} == {"deadlock"}
