"""Blocks are shared where a device runs few at once, and programs stay right."""

import json
from collections import Counter

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.programs.plans.plan import Action
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Program
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import exchange_schedule, lowered, verified
from tests.unit.synth.lowering.tree_schedules import trees
from tests.unit.synth.programs.plans.examples import made
from tests.unit.synth.programs.plans.weak import WeakRun

PLACES = pytest.mark.parametrize("in_place", [True, False], ids=["inplace", "outofplace"])


def most_blocks(program: Program) -> int:
    return max(len(rank.blocks) for rank in program.ranks)


def is_right(program: Program) -> None:
    assert check_program(program) == []
    for piece in (1, 71):
        got, wanted = result_of(program, seed=piece, piece=piece)
        assert got == wanted


@pytest.mark.parametrize(
    ("collective", "sm_count", "in_place"),
    [
        ("allgather", 3, True),
        ("allgather", 5, False),
        ("allreduce", 4, False),
        ("reduce_scatter", 3, True),
        ("allreduce", 6, True),
    ],
)
def test_steps_on_few_multiprocessors(collective, sm_count, in_place):
    program = lowered("hypercube:3", collective, in_place=in_place, sm_count=sm_count)
    assert most_blocks(program) == sm_count
    is_right(program)


@PLACES
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
def test_trees_on_few_multiprocessors(collective, in_place):
    program = lower(trees("hypercube:3", collective), LoweringOptions("oneccl-xml", 2, in_place=in_place, sm_count=6))
    assert most_blocks(program) == 6
    is_right(program)


@PLACES
@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_exchanges_on_few_multiprocessors(chunks, in_place):
    program = lower(exchange_schedule(chunks), LoweringOptions("oneccl-xml", in_place=in_place, sm_count=2))
    assert most_blocks(program) == 2
    is_right(program)


@PLACES
def test_an_alltoall_needs_one_block_a_peer(in_place):
    schedule = verify(alltoall_schedule(parse_topology("hypercube:3"), chunks=5))
    program = lower(schedule, LoweringOptions("msccl-executor-xml", in_place=in_place, sm_count=7))
    assert most_blocks(program) == 7
    assert all(block.send_peer == block.recv_peer for rank in program.ranks for block in rank.blocks)
    is_right(program)


def test_blocks_are_shared_only_as_far_as_needed():
    program = lowered("hypercube:3", "allgather", sm_count=5)
    for rank in program.ranks:
        both = [block for block in rank.blocks if None not in (block.send_peer, block.recv_peer)]
        assert (len(rank.blocks), len(both)) == (5, 1)
        connections = Counter((block.send_peer, block.channel) for block in rank.blocks if block.send_peer is not None)
        assert set(connections.values()) == {1}


def test_fewer_multiprocessors_than_peers_are_refused_with_what_fits():
    schedule = verified("hypercube:3", "allgather")
    with pytest.raises(InvalidInput, match=r"must run at once: 12 is above the limit 4") as caught:
        lower(schedule, LoweringOptions("oneccl-xml", instances=4, sm_count=4))
    assert "instances 1 fits" in caught.value.way_out
    assert most_blocks(lower(schedule, LoweringOptions("oneccl-xml", instances=1, sm_count=4))) == 4


def test_fewer_channels_and_instances_together_are_a_way_out():
    with pytest.raises(InvalidInput) as caught:
        lowered("hypercube:3", "allgather", channels=2, instances=2, sm_count=3)
    assert caught.value.way_out == "channels 1, instances 1 fits"


def test_a_large_device_runs_more_blocks_than_the_target_assumes():
    schedule = verified("hypercube:3", "allreduce")
    apart = lower(schedule, LoweringOptions("msccl-xml", instances=20, sm_count=132))
    shared = lower(schedule, LoweringOptions("msccl-xml", instances=20))
    assert (most_blocks(apart), most_blocks(shared)) == (120, 108)


def test_connections_take_channels_by_what_they_carry():
    """A broadcast to the ends of a line: the middle links carry most, so they take the most blocks."""
    program = lower(trees("mesh:6", ALLGATHER), LoweringOptions("oneccl-xml", channels=4))
    blocks, work = Counter(), Counter()
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            if block.send_peer is not None:
                blocks[rank, block.send_peer] += 1
                work[rank, block.send_peer] += sum(item.count for item in block.instructions)
    assert blocks[4, 5] == 4  # all but one of six shards cross the last link outwards
    assert blocks[5, 4] == 1  # and one comes back
    assert all(count <= -(-4 * work[pair] // max(work.values())) for pair, count in blocks.items())
    assert len({block.channel for body in program.ranks for block in body.blocks}) == 4
    is_right(program)


@pytest.mark.parametrize("options", [{}, {"reads": True}, {"protocol": "LL"}, {"ranks_per_box": 4}], ids=str)
@pytest.mark.parametrize(("collective", "sm_count"), [("allgather", 6), ("allreduce", 5)])
def test_blocks_are_shared_as_far_as_all_run_at_once(collective, sm_count, options):
    """Those that carry most first; the plan is right by the check, and on a weakly ordered executor."""
    text = made("hypercube:2", collective, block_group=2, sm_count=sm_count, **options)
    plan = parse_plan(text.encode())
    assert all(len(body.blocks) <= sm_count for body in plan.ranks)
    assert {block.is_shared for body in plan.ranks for block in body.blocks} == {True, False}
    assert check_program(plan) == []
    assert WeakRun(json.loads(text), 3, 0).is_right()


def test_blocks_that_carry_most_are_shared_before_others():
    """A reduction to the end of a line: the last of three ranks in a row has least to send."""
    plan = plan_of(lower(trees("mesh:6", ALLGATHER), LoweringOptions("mscclpp-json", block_group=2, sm_count=5)))
    assert check_program(plan) == []
    carried = [
        (block.is_shared, sum(each.targets[0].count for each in block.operations if each.action is Action.PUT))
        for block in plan.ranks[4].blocks
    ]
    least = min(chunks for shared, chunks in carried if shared and chunks)
    assert least >= max(chunks for shared, chunks in carried if not shared)


def test_long_blocks_are_cut_beside_groups_and_in_them():
    options = LoweringOptions("mscclpp-json", block_group=8, sm_count=40, chunks=8)
    plan = plan_of(lower(verified("hypercube:2", "allreduce"), options))
    assert check_program(plan) == []
    shared = [sum(block.is_shared for block in body.blocks) for body in plan.ranks]
    assert any(count > 8 for count in shared)
    assert any(len(body.blocks) - count > 2 for count, body in zip(shared, plan.ranks, strict=True))


def test_groups_for_which_there_is_no_room_are_left_out():
    plan = parse_plan(made("hypercube:2", "allreduce", block_group=64, sm_count=9).encode())
    assert check_program(plan) == []
    assert not any(block.is_shared for body in plan.ranks for block in body.blocks)


@pytest.mark.parametrize("sm_count", [0, -1, 2**20])
def test_wrong_counts_are_refused(sm_count):
    with pytest.raises(InvalidInput, match="sm_count"):
        LoweringOptions("oneccl-xml", sm_count=sm_count)
