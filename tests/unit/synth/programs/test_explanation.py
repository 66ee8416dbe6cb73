"""What is said to be behind a wrong result is what was changed in a right program."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import CollectiveName
from chorale.synth.programs import explanation
from chorale.synth.programs.explanation import Explanation, explanations
from chorale.synth.programs.program import Op, Program
from chorale.synth.targets.judge import check_program
from tests.conformance import example_programs as examples
from tests.properties import random_cases
from tests.unit.synth.lowering.programs import block, edited, instructions, lowered, program, step


def explained(made: Program) -> list[Explanation]:
    return [item for item in explanations(made, check_program(made)) if item is not None]


WITHOUT_THE_SUM = {Op.RECV_REDUCE_COPY: Op.RECV, Op.RECV_REDUCE_COPY_SEND: Op.RECV_COPY_SEND}
REDUCING = [
    lowered("hypercube:3", "allreduce"),
    lowered("ring:4", "reduce_scatter", in_place=False),
    lowered("torus:2x3", "allreduce", "msccl-xml", in_place=False),
    examples.ring_allreduce([0, 1, 2]),
]


SUMS = [(made, at) for made in REDUCING for at in instructions(made) if at[3].op in WITHOUT_THE_SUM]


@random_cases(40)
@given(st.integers(0, len(SUMS) - 1))
def test_a_sum_that_is_not_made_is_found(chosen):
    """Where an instruction stores what it receives instead of adding it, every explanation names that instruction."""
    made, (rank, index, number, item) = SUMS[chosen]
    damaged = edited(made, (rank, index, number, replace(item, op=WITHOUT_THE_SUM[item.op])))
    found = explained(damaged)
    assert found
    in_place = item.src == item.dst
    for item_found in found:
        assert not in_place or (rank, index, number) in item_found.positions
        assert "of rank" in item_found.text


def test_a_chunk_that_stays_behind_is_found_where_it_is():
    ranks = [
        [block(1, 1, step("s", "o0"), step("r", "s0"))],
        [block(0, 0, step("s", "o1"), step("r", "o0"))],
    ]
    (found,) = explained(program(CollectiveName.ALLGATHER, 2, *ranks, scratch=1))
    assert found.text == (
        "nothing writes o[1] of rank 0; chunk 1 of rank 1 got as far as s[0] of rank 0, put there by rank 0, "
        "block 0, step 1, where it still is"
    )
    assert found.positions == ((0, 0, 1),)


def test_a_chunk_that_was_overwritten_is_found_with_what_overwrote_it():
    copies = [step("r", "o1"), step("cpy", "o0", "o1")]
    ranks = [[block(1, 1, step("s", "o0"), *copies)], [block(0, 0, step("s", "o1"), step("r", "o0"))]]
    (found,) = explained(program(CollectiveName.ALLGATHER, 2, *ranks))
    assert "put there by rank 0, block 0, step 1, where rank 0, block 0, step 2 overwrote it" in found.text


def test_a_part_that_nothing_moves_and_one_that_was_only_sent():
    idle = [block(None, None)]
    (first, _) = explained(program(CollectiveName.ALLREDUCE, 1, idle, idle))
    assert first.text == (
        "nothing writes o[0] of rank 0; chunk 0 of rank 1 never leaves o[0] of rank 1: no instruction reads it"
    )
    ranks = [[block(1, 1, step("s", "o0"), step("r", "o0"))], [block(0, 0, step("s", "o1"), step("r", "o0"))]]
    (second,) = explained(program(CollectiveName.ALLGATHER, 2, *ranks))[:1]
    assert "chunk 0 of rank 0 was last sent by rank 0, block 0, step 0 (to rank 1)" in second.text


def test_many_missing_parts_are_counted():
    idle = [[block(None, None)] for _ in range(9)]
    first = explained(program(CollectiveName.ALLREDUCE, 1, *idle))[0]
    assert "and 3 more parts are missing" in first.text


def test_both_summands_of_a_doubled_part_are_named():
    swap = [step("s", "o0"), step("rrc", "o0")]
    made = program(CollectiveName.ALLREDUCE, 1, [block(1, 1, *swap * 2)], [block(0, 0, *swap * 2)])
    (found,) = explained(made)
    assert found.text == (
        "chunk 0 of ranks 0, 1 is in both summands; one was sent by rank 1, block 0, step 2; "
        "the other was put there by rank 0, block 0, step 1"
    )


def test_summands_of_different_chunks_are_named():
    there = [block(1, None, step("s", "o1"), step("s", "o0"))]
    here = [block(None, 0, step("rrc", "o0"), step("rrc", "o1"))]
    (found,) = explained(program(CollectiveName.REDUCE, 2, there, here))
    assert found.text == "the summands are parts of different chunks; one was sent by rank 0, block 0, step 0"


def test_an_alltoall_is_explained():
    ranks = [[block(1 - rank, 1 - rank, step("s", "i1"), step("r", "s0"))] for rank in range(2)]
    first, *_ = explained(program(CollectiveName.ALLTOALL, 2, *ranks, scratch=1, in_place=False))
    assert "got as far as" in first.text or "never leaves" in first.text


def test_large_programs_are_not_explained(monkeypatch):
    monkeypatch.setattr(explanation, "MAX_MOVES", 1)
    made = program(
        CollectiveName.ALLREDUCE, 2, [block(None, None, step("cpy", "o0", "o0", count=2))] * 1, [block(1, 1)]
    )
    violations = check_program(made)
    assert explanations(made, violations) == [None] * len(violations)


def test_a_deadlock_names_the_circle():
    ranks = [[block(1 - rank, 1 - rank, step("rrc", "o0"), step("s", "o0"))] for rank in range(2)]
    found = check_program(program(CollectiveName.ALLREDUCE, 1, *ranks))
    assert "they wait in a circle: rank 0 block 0 -> rank 1 block 0 -> rank 0 block 0" in found[0].message


def test_a_deadlock_outside_a_circle_names_who_waits_for_it():
    loops = [block(None, None, step("cpy", "o0", "o0", waits=[(other, 0)])) for other in (1, 0)]
    waiting = block(None, None, step("cpy", "o0", "o0", waits=[(1, 0)]))
    found = check_program(program(CollectiveName.ALLREDUCE, 1, [*loops, waiting], [block(None, None)]))
    assert "rank 0 block 0 -> rank 0 block 1 -> rank 0 block 0" in found[0].message


def test_a_race_names_the_chunk_and_both_instructions():
    made = lowered("hypercube:2", "allreduce")
    racing = []
    for rank, index, number, item in instructions(made):
        if item.waits:
            violations = check_program(edited(made, (rank, index, number, replace(item, waits=()))))
            racing += [violation for violation in violations if violation.rule == "race"]
    assert racing
    for violation in racing:
        assert violation.other is not None
        rank, block, step = violation.other
        assert re.search(
            rf"touches [os]\[\d+\] of rank {rank}, which block {block} touches too at step {step}, and nothing orders",
            violation.message,
        )
