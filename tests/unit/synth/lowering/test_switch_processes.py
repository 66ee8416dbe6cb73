"""Programs in which switches act as processes: right by execution on sets of contributions, and read back as meant."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.build.build import build_program
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import schedule_of_processes, with_first_stored
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.program import Op, Program
from chorale.synth.programs.switch_processes import collective_of_ranks, rank_count, with_idle_switches
from chorale.synth.targets.judge import check_program, judge
from chorale.synth.targets.lift import lift_with_findings
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.pricing import program_time_per_byte

OPTIONS = LoweringOptions("oneccl-xml")
STAR, RAILS, TWO_LEVELS = "able(switch:4,1)", "railclos:2,2,1,2", "able(fattree:2)"


def verified(spec, collective="allreduce", method="in-network"):
    return synthesize(method, parse_topology(spec), parse_collective(collective), None, SerialExecutor())


@pytest.mark.parametrize("options", [{}, {"channels": 2, "instances": 2}, {"fuse": True}], ids=str)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "broadcast", "reduce"])
def test_programs_of_a_star_are_right(collective, options):
    made = verified(STAR, collective)
    built = build_program(made, replace(OPTIONS, **options))
    assert isinstance(built.read_back, Program)
    assert built.read_back.switches == built.program.switches == (4,)
    assert (rank_count(built.program), str(collective_of_ranks(built.program)).split("(")[0]) == (4, collective)
    assert program_time_per_byte(built.program, made.schedule.topology) == made.cost.time_per_byte


@pytest.mark.parametrize("spec", [RAILS, TWO_LEVELS, "usable(h100:1;share=1/2)"])
def test_programs_of_several_switches_are_right(spec):
    made = verified(spec)
    assert made.schedule.is_in_network
    assert build_program(made, OPTIONS).program.switches == tuple(sorted(made.schedule.topology.abilities))


def test_a_switch_adds_what_ranks_send_and_nothing_else():
    program = lower(verified(STAR), OPTIONS)
    switch = [item.op for block in program.ranks[4].blocks for item in block.instructions]
    assert {Op.RECV, Op.RECV_REDUCE_COPY, Op.SEND} == set(switch)
    spoilt = replace(program, ranks=(*program.ranks[:4], _with(program.ranks[4], Op.RECV, Op.RECV_REDUCE_COPY)))
    assert check_program(spoilt)[0].rule == "reduction"  # it has nothing of its own to add to


def _with(body, before, after):
    def changed(item):
        return replace(item, op=after, src=item.dst) if item.op is before else item

    blocks = tuple(replace(block, instructions=tuple(map(changed, block.instructions))) for block in body.blocks)
    return replace(body, blocks=blocks)


def test_the_first_to_arrive_is_stored_chunk_by_chunk():
    def column(*numbers):
        return np.array(numbers, dtype=np.int32)

    given = ChannelMessages(
        step=column(0, 0, 1),
        sender=column(0, 1, 2),
        receiver=column(3, 3, 3),
        channel=column(0, 0, 0),
        first=column(2, 0, 1),
        end=column(4, 3, 5),
        reduces=column(1, 1, 1),
    )
    stored = with_first_stored(given, 3)
    rows = zip(stored.sender.tolist(), stored.first.tolist(), stored.end.tolist(), stored.reduces.tolist(), strict=True)
    assert list(rows) == [(0, 2, 4, 0), (1, 0, 2, 0), (1, 2, 3, 1), (2, 1, 4, 1), (2, 4, 5, 0)]


def test_switches_in_a_row_get_steps_of_their_own():
    schedule = verified(TWO_LEVELS).schedule.expand()
    processes = schedule_of_processes(schedule)
    assert processes.steps > schedule.steps
    assert len(processes.transfers) == len(schedule.transfers)
    received: dict[tuple[int, int, int], int] = {}
    rows = processes.transfers
    for step, src, dst, shard, low, high in zip(
        rows.step.tolist(), processes.src.tolist(), processes.dst.tolist(), rows.shard.tolist(), rows.lo.tolist(),
        rows.hi.tolist(), strict=True,
    ):  # fmt: skip
        for chunk in range(low, high):
            if src >= processes.rank_count:
                assert received[src, shard, chunk] < step
            received[dst, shard, chunk] = max(step, received.get((dst, shard, chunk), 0))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
def test_ranks_alone_are_compared_beside_idle_switches(collective):
    alone = lower(verified(STAR, collective, "forest"), OPTIONS)
    acting = lower(verified(STAR, collective), OPTIONS)
    beside = with_idle_switches(alone, acting.switches)
    assert beside.collective == acting.collective
    assert check_program(beside) == []
    with pytest.raises(InvalidInput, match="in place"):
        with_idle_switches(lower(verified(STAR, collective, "forest"), replace(OPTIONS, in_place=False)), (4,))


@pytest.mark.parametrize(("target", "in_place"), [("msccl-xml", True), ("oneccl-xml", False)])
def test_other_programs_are_refused(target, in_place):
    with pytest.raises(InvalidInput, match=r"programs with switches that add must be in place|must be oneccl-xml"):
        lower(verified(STAR), LoweringOptions(target, in_place=in_place))


def test_programs_name_the_switches_that_can_act():
    built = build_program(verified(STAR), OPTIONS)
    reading = lift_with_findings(built.text.encode())
    rules = {each.rule for each in judge(reading, parse_topology("switch:4,1")).violations}
    assert rules == {"switches"}
    copies_only = judge(reading, parse_topology("able(switch:4,1;reduce=no)")).violations
    assert [each.message for each in copies_only if each.rule == "switches"] == ["rank 4: switch:0 adds, and cannot"]
    for wrong in ("", "4 x", "0 1 2 3 4"):
        text = built.text.replace('switches="4"', f'switches="{wrong}"')
        if wrong:
            with pytest.raises(InvalidInput, match="switches of"):
                lift_with_findings(text.encode())
        else:
            assert judge(lift_with_findings(text.encode()), parse_topology(STAR)).violations[0].rule == "ranks"
