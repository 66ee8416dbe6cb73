"""The checker notices every kind of damage to a program, names the place, and says who waits for whom."""

from dataclasses import replace

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.check_execution import execution_violations
from chorale.synth.programs.program import Op, Program, Wait
from chorale.synth.targets.judge import check_program
from tests.conformance import example_programs as examples
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import block, edited, exchange, instructions, lowered, program, step


def rules(damaged: Program) -> set[str]:
    return {violation.rule for violation in check_program(damaged)}


def dropped_wait_rules(made: Program) -> list[set[str]]:
    return [
        rules(edited(made, (rank, index, number, replace(item, waits=item.waits[:at] + item.waits[at + 1 :]))))
        for rank, index, number, item in instructions(made)
        for at in range(len(item.waits))
    ]


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
    first = made.ranks[0].blocks[0]
    copies = replace(first.instructions[-1], op=Op.RECV)
    stored = (*first.instructions[:1], replace(first.instructions[1], op=Op.RECV_COPY_SEND), *first.instructions[2:-1])
    lost = replace(first, instructions=(*stored, copies))
    damaged = replace(made, ranks=(replace(made.ranks[0], blocks=(lost,)), *made.ranks[1:]))
    found = execution_violations(damaged)
    assert {item.rule for item in found} == {"result"}
    assert "chunk 69 of ranks 1, 2, 3, 4, 5, 6, 7, 8, ..., must hold" in found[0].message


def test_waits_are_counted_within_the_rank():
    """Blocks and instructions are numbered through all ranks; the second rank's are not those of the first."""
    ranks = [
        [block(1, None, step("s", "i0")), block(None, None)],
        [block(None, 0, step("rrc", "i0", "s0")), block(None, None, step("cpy", "s0", "o0", waits=[(0, 0)]))],
    ]
    made = replace(
        program(CollectiveName.REDUCE, 1, *ranks, scratch=1), collective=Collective(CollectiveName.REDUCE, 1)
    )
    assert execution_violations(made) == []
    copy = made.ranks[1].blocks[1].instructions[0]
    early = replace(made.ranks[1].blocks[1], instructions=(replace(copy, waits=(Wait(1, 0),)),))
    ranks_early = (made.ranks[0], replace(made.ranks[1], blocks=(made.ranks[1].blocks[0], early)))
    assert {item.rule for item in execution_violations(replace(made, ranks=ranks_early))} == {"deadlock"}
