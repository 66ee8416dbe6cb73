"""The checker must notice every kind of damage to a program, and name the place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, Wait
from chorale.synth.targets.judge import check_program, reachability
from chorale.synth.topology.spec import parse_topology
from tests.properties import random_cases
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import (
    block,
    edited,
    instructions,
    lowered,
    program,
    step,
    with_block,
)

SPECS = ["ring:4", "hypercube:3", "torus:2x3"]
COLLECTIVES = ["allgather", "reduce_scatter", "allreduce"]
TARGETS = ["msccl-xml", "oneccl-xml"]
MANY = random_cases(60)

programs = st.builds(
    lambda spec, collective, target, in_place, channels: lowered(
        spec, collective, target, in_place=in_place, channels=channels
    ),
    st.sampled_from(SPECS),
    st.sampled_from(COLLECTIVES),
    st.sampled_from(TARGETS),
    st.booleans(),
    st.sampled_from([1, 2]),
)


def rules(damaged: Program) -> set[str]:
    return {violation.rule for violation in check_program(damaged)}


def pick(data: st.DataObject, made: Program, want=lambda item: True):
    found = [place for place in instructions(made) if want(place[3])]
    return data.draw(st.sampled_from(found)) if found else None


@MANY
@given(programs, st.data())
def test_a_dropped_step_is_noticed(made, data):
    rank, index, number, _ = pick(data, made)
    assert rules(edited(made, (rank, index, number, None)))


@MANY
@given(programs, st.data())
def test_two_swapped_steps_are_noticed(made, data):
    places = [
        (rank, index)
        for rank, rank_program in enumerate(made.ranks)
        for index, found in enumerate(rank_program.blocks)
        if len(found.instructions) > 1
    ]
    if not places:
        return
    rank, index = data.draw(st.sampled_from(places))
    found = made.ranks[rank].blocks[index]
    first, second = data.draw(st.sampled_from([(i, i + 1) for i in range(len(found.instructions) - 1)]))
    items = list(found.instructions)
    items[first], items[second] = items[second], items[first]
    assert rules(with_block(made, rank, index, replace(found, instructions=tuple(items))))


@MANY
@given(programs, st.data())
def test_a_retargeted_operand_is_noticed(made, data):
    rank, index, number, item = pick(data, made)
    side = "src" if item.op == Op.SEND else "dst"
    old = getattr(item, side)
    offset = data.draw(st.integers(0, made.chunks - 1).filter(lambda value: value != old.offset))
    damaged = replace(item, **{side: BufferRef(old.buffer, offset)})
    assert rules(edited(made, (rank, index, number, damaged)))


@MANY
@given(programs, st.data())
def test_another_peer_is_noticed(made, data):
    rank, index, _, item = pick(data, made, lambda item: item.op.sends or item.op.receives)
    found = made.ranks[rank].blocks[index]
    side = "send_peer" if item.op.sends else "recv_peer"
    others = [peer for peer in range(len(made.ranks)) if peer != getattr(found, side)]
    damaged = replace(found, **{side: data.draw(st.sampled_from(others))})
    assert rules(with_block(made, rank, index, damaged)) & {"connection", "shared connection", "peer"}


@MANY
@given(programs, st.data(), st.sampled_from([-1, 1]))
def test_another_count_is_noticed(made, data, change):
    rank, index, number, item = pick(data, made)
    assert rules(edited(made, (rank, index, number, replace(item, count=item.count + change))))


@MANY
@given(programs, st.data(), st.sampled_from(list(Op)))
def test_a_wrong_operation_is_noticed(made, data, op):
    rank, index, number, item = pick(data, made)
    harmless = {item.op, Op.RECV_COPY_SEND if item.op == Op.RECV else item.op}
    if op not in harmless:
        assert rules(edited(made, (rank, index, number, replace(item, op=op))))


@MANY
@given(programs, st.data())
def test_a_wait_for_what_comes_later_is_noticed(made, data):
    rank, index, number, item = pick(data, made)
    damaged = replace(item, waits=(*item.waits, Wait(index, number)))
    assert rules(edited(made, (rank, index, number, damaged))) == {"deadlock"}


def dropped_wait_rules(made: Program) -> list[set[str]]:
    return [
        rules(edited(made, (rank, index, number, replace(item, waits=item.waits[:at] + item.waits[at + 1 :]))))
        for rank, index, number, item in instructions(made)
        for at in range(len(item.waits))
    ]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("spec", ["ring:4", "hypercube:2"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_dropped_wait_is_noticed(spec, collective, in_place):
    found = dropped_wait_rules(lowered(spec, collective, in_place=in_place))
    assert found
    assert all(found)


def test_in_a_program_from_elsewhere_messages_may_stand_in_for_a_wait():
    """The final value cannot come back before the contribution has left: such a wait is not missed."""
    found = dropped_wait_rules(replace(lowered("hypercube:2", "allreduce"), origin=""))
    assert 0 < sum(map(bool, found)) < len(found)


def test_a_race_names_its_place():
    made = lowered("ring:4", "allgather")
    rank, index, number, item = next(place for place in instructions(made) if place[3].waits)
    (violation,) = check_program(edited(made, (rank, index, number, replace(item, waits=()))))
    waited = item.waits[0]
    assert violation.rule == "race"
    assert (violation.rank, violation.block, violation.step) in ((rank, index, number), (rank, *waited_on(waited)))
    other = {index, waited.block} - {violation.block}
    assert f"which block {other.pop()} touches too" in violation.message


def waited_on(wait: Wait) -> tuple[int, int]:
    return wait.block, wait.step


PAIR = [
    [block(1, 1, step("s", "i1"), step("rrcs", "i0"), step("r", "i1"))],
    [block(0, 0, step("s", "i0"), step("rrcs", "i1"), step("r", "i0"))],
]


def test_the_smallest_fused_allreduce_is_right():
    assert check_program(program(CollectiveName.ALLREDUCE, 2, *PAIR)) == []


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


def exchange(count: int) -> Program:
    """Both ranks send all their chunks, then receive: fits into the connection or not."""
    half = count // 2
    mine = [block(1, 1, step("s", "o0", count=half), step("r", f"o{half}", count=half))]
    other = [block(0, 0, step("s", f"o{half}", count=half), step("r", "o0", count=half))]
    return program(CollectiveName.ALLGATHER, count, mine, other)


def test_an_exchange_that_fits_into_the_connection_is_right():
    assert check_program(exchange(4)) == []
    assert check_program(replace(exchange(16), protocol="LL")) == []


def test_an_exchange_beyond_the_connection_deadlocks_with_small_messages():
    found = check_program(exchange(8))
    assert [violation.rule for violation in found] == ["deadlock", "deadlock"]
    assert "free slot" in found[0].message
    assert "one chunk" in found[0].message


def test_exchanging_without_cutting_would_deadlock():
    """Why lowering cuts instructions short where ranks receive into what they send."""
    both = [
        [
            block(1, None, step("s", "o0", count=3)),
            block(None, 1, step("rrc", "o0", count=3, waits=[(0, 0)])),
        ],
        [
            block(0, None, step("s", "o0", count=3)),
            block(None, 0, step("rrc", "o0", count=3, waits=[(0, 0)])),
        ],
    ]
    assert rules(program(CollectiveName.ALLREDUCE, 3, *both)) == {"deadlock"}


def test_adding_a_contribution_twice_is_noticed():
    twice = [
        [block(1, 1, step("s", "i0"), step("rrc", "i0"))],
        [block(0, 0, step("rrc", "i0"), step("s", "i0"))],
    ]
    (found,) = check_program(program(CollectiveName.ALLREDUCE, 1, *twice))
    assert found.rule == "reduction"
    assert "twice" in found.message


def test_adding_different_chunks_is_noticed():
    mixed = [[block(None, None, step("re", "i0", "i1"))], [block(None, None)]]
    (found,) = check_program(program(CollectiveName.ALLREDUCE, 2, *mixed))
    assert found.rule == "reduction"


def test_reading_before_writing_is_noticed():
    unwritten = [[block(None, None, step("cpy", "s0", "o1"))], [block(None, None)]]
    found = check_program(program(CollectiveName.ALLGATHER, 2, *unwritten, scratch=1))
    (read,) = (violation for violation in found if violation.rule == "uninitialised")
    assert (read.rank, read.block, read.step) == (0, 0, 0)


def test_an_input_that_changes_out_of_place_is_noticed():
    sends = [
        [
            block(1, 1, step("s", "i0"), step("rrc", "i0", "o0")),
            block(None, None, step("cpy", "o0", "i0", waits=[(0, 1)])),
        ],
        [block(0, 0, step("s", "i0"), step("rrc", "i0", "o0"))],
    ]
    found = check_program(program(CollectiveName.ALLREDUCE, 1, *sends, in_place=False))
    assert [violation.rule for violation in found] == ["input changed"]


def test_a_result_that_is_missing_names_the_chunk():
    idle = [[block(None, None)], [block(None, None)]]
    found = check_program(program(CollectiveName.ALLGATHER, 2, *idle))
    assert [violation.message for violation in found] == [
        "rank 0: o[1] holds nothing, must hold chunk 1 of rank 1",
        "rank 1: o[0] holds nothing, must hold chunk 0 of rank 0",
    ]


def test_order_through_another_rank_counts():
    """Rank 0 overwrites what it sent only after the answer that depends on it has come."""
    asks = [
        [block(1, None, step("s", "i0")), block(None, 1, step("r", "i0"))],
        [block(0, 0, step("rrcs", "i0"))],
    ]
    assert check_program(program(CollectiveName.ALLREDUCE, 1, *asks)) == []


BROADCAST = [[block(1, None, step("s", "i0", count=2))], [block(None, 0, step("r", "o0", count=2))]]
REDUCE = [[block(None, 1, step("rrc", "i0", count=2))], [block(0, None, step("s", "i0", count=2))]]
ALLTOALL = [
    [block(1, 1, step("s", "i1"), step("r", "o1")), block(None, None, step("cpy", "i0", "o0"))],
    [block(0, 0, step("s", "i0"), step("r", "o0")), block(None, None, step("cpy", "i1", "o1"))],
]


@pytest.mark.parametrize(
    ("collective", "ranks", "in_place"),
    [
        (CollectiveName.BROADCAST, BROADCAST, True),
        (CollectiveName.REDUCE, REDUCE, True),
        (CollectiveName.ALLTOALL, ALLTOALL, False),
    ],
)
def test_the_other_collectives_are_defined_too(collective, ranks, in_place):
    made = program(collective, 2, *ranks, in_place=in_place)
    assert check_program(made) == []
    silent = [[replace(item, instructions=()) for item in blocks] for blocks in ranks]
    assert {found.rule for found in check_program(program(collective, 2, *silent, in_place=in_place))} == {"result"}


STRUCTURE = {
    "channels": lambda made: replace(made, channels=2),
    "chunks": lambda made: replace(made, chunks=made.chunks + 1),
    "buffers": lambda made: replace(made, ranks=(replace(made.ranks[0], output_chunks=1), *made.ranks[1:])),
    "idle rank": lambda made: replace(made, ranks=(replace(made.ranks[0], blocks=()), *made.ranks[1:])),
    "channel": lambda made: with_block(made, 0, 0, replace(made.ranks[0].blocks[0], channel=-1)),
    "peer": lambda made: with_block(made, 0, 0, replace(made.ranks[0].blocks[0], recv_peer=0)),
    "wait": lambda made: edited(
        made, (0, 0, 0, replace(made.ranks[0].blocks[0].instructions[0], waits=(Wait(0, 99),)))
    ),
    "count": lambda made: edited(made, (0, 0, 0, replace(made.ranks[0].blocks[0].instructions[0], count=0))),
    "operand": lambda made: edited(
        made, (0, 0, 0, replace(made.ranks[0].blocks[0].instructions[0], dst=BufferRef("o", made.chunks)))
    ),
    "connection": lambda made: with_block(made, 0, 0, replace(made.ranks[0].blocks[0], recv_peer=2, instructions=())),
    "shared connection": lambda made: replace(
        made, ranks=(replace(made.ranks[0], blocks=made.ranks[0].blocks * 2), *made.ranks[1:])
    ),
}


@pytest.mark.parametrize("rule", STRUCTURE)
def test_broken_structure_is_named(rule):
    assert rule in rules(STRUCTURE[rule](lowered("ring:4", "allgather")))


def with_new_block(made: Program, *items: Instruction) -> Program:
    blocks = (*made.ranks[0].blocks, block(None, None, *items))
    return replace(made, ranks=(replace(made.ranks[0], blocks=blocks), *made.ranks[1:]))


LIMITS = {
    "channels": lambda made: replace(made, channels=33),
    "thread blocks of a rank": lambda made: replace(
        made, ranks=(replace(made.ranks[0], blocks=made.ranks[0].blocks + 217 * (block(None, None),)), *made.ranks[1:])
    ),
    "steps of a thread block": lambda made: with_block(
        made, 0, 0, replace(made.ranks[0].blocks[0], instructions=made.ranks[0].blocks[0].instructions * 257)
    ),
    "chunks of an instruction": lambda made: edited(
        made, (0, 0, 0, replace(made.ranks[0].blocks[0].instructions[0], count=72))
    ),
    "chunk offset": lambda made: edited(made, (0, 0, 0, step("r", "o32768"))),
    "id of a block that is waited on": lambda made: edited(made, (0, 0, 0, step("r", "o0", waits=[(128, 0)]))),
    "fuse into one": lambda made: with_new_block(made, *[step("re", f"i{k}", "i0") for k in range(16)]),
    "equal counts": lambda made: with_new_block(made, step("re", "i1", "i0"), step("re", "i2", "i0", count=2)),
    "bytes of the vector": lambda made: replace(made, max_bytes=2**31),
}


@pytest.mark.parametrize("words", LIMITS)
def test_limits_of_the_dialect_are_checked(words):
    found = check_program(LIMITS[words](lowered("ring:4", "allgather", "msccl-xml")))
    assert any(words in violation.message for violation in found)


def test_a_send_without_a_path_is_noticed():
    made = lowered("ring:4", "allgather")
    apart = reachability(parse_topology("ring:4"))
    assert check_program(made, apart) == []
    found = check_program(made, lambda source, target: (source, target) != (2, 3))
    assert [violation.message for violation in found] == ["rank 2: sends to rank 3, to which the network has no path"]


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
