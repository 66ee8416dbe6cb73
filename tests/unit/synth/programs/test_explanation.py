"""Programs are executed, and what is said of deadlocks names the instructions behind them."""

from dataclasses import replace

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.check_execution import execution_violations
from chorale.synth.programs.program import Op, ThreadBlock, Wait
from chorale.synth.targets.judge import check_program
from tests.conformance import example_programs as examples
from tests.unit.synth.lowering.programs import block, program, step


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


def test_a_program_without_instructions_or_connections_is_executed():
    idle = ThreadBlock(None, None, 0, ())
    found = execution_violations(program(CollectiveName.ALLREDUCE, 1, [idle], [idle]))
    assert {item.rule for item in found} == {"result"}


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
