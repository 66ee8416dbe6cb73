"""Every collective and kind of schedule becomes a program that does what it says, in every dialect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.programs.program import Op
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import read_checked
from chorale.synth.targets.registry import XML_TARGETS, target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import instructions
from tests.unit.synth.lowering.tree_schedules import hopping_alltoall, trees

ROOTED = [Collective(CollectiveName.BROADCAST, 2), Collective(CollectiveName.REDUCE, 1)]
COLLECTIVES = [ALLGATHER, REDUCE_SCATTER, ALLREDUCE, *ROOTED]
PLACES = pytest.mark.parametrize("in_place", [True, False], ids=["inplace", "outofplace"])


def double_tree(spec: str, collective: Collective, chunks: int | None = None) -> VerifiedSchedule:
    return verify(double_binary_tree(parse_topology(spec), collective).schedule(chunks))


def is_right(schedule: VerifiedSchedule, options: LoweringOptions) -> None:
    """Assert that the program passes the checker after a journey through its text, and calculates what it should."""
    program = lower(schedule, options)
    text = target_named(options.target).emit(program)
    assert read_checked(text.encode(), schedule.schedule.topology) == program
    for piece in (1, 71):
        got, wanted = result_of(program, seed=piece, piece=piece)
        assert got == wanted


@PLACES
@pytest.mark.parametrize("target", [target.name for target in XML_TARGETS])
@pytest.mark.parametrize("kind", ["pipelined", "stepped"])
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_trees(collective, kind, target, in_place):
    is_right(trees("torus:2x3", collective, kind), LoweringOptions(target, in_place=in_place))


@PLACES
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_trees_on_several_channels_and_instances(collective, in_place):
    is_right(trees("hypercube:2", collective), LoweringOptions("msccl-xml", 2, 2, "LL", in_place))


@pytest.mark.parametrize(
    ("spec", "collective", "target", "in_place"),
    [
        ("a100:1", ROOTED[0], "oneccl-xml", False),
        ("dbt:7", ALLREDUCE, "msccl-executor-xml", True),
        ("dbt:7", ROOTED[1], "msccl-xml", False),
        ("torus:3x3", ROOTED[0], "msccl-executor-xml", True),
    ],
    ids=str,
)
def test_double_binary_trees(spec, collective, target, in_place):
    is_right(double_tree(spec, collective, 6), LoweringOptions(target, in_place=in_place))


@PLACES
@pytest.mark.parametrize("target", [target.name for target in XML_TARGETS])
@pytest.mark.parametrize("spec", ["ring:4", "uniring:1,3", "hypercube:3", "a100:1"])
def test_alltoall_along_routes(spec, target, in_place):
    schedule = verify(alltoall_schedule(parse_topology(spec)))
    options = LoweringOptions(target, 2, 1, "Simple", in_place)
    if in_place and target == "msccl-xml":
        with pytest.raises(InvalidInput, match=r"must be out of place.*--outofplace"):
            lower(schedule, options)
    else:
        is_right(schedule, options)


@PLACES
@pytest.mark.parametrize("wait", [0, 1, 2])
@pytest.mark.parametrize("spec", ["ring:4", "torus:2x3"])
def test_alltoall_from_rank_to_rank(spec, wait, in_place):
    is_right(hopping_alltoall(spec, wait), LoweringOptions("oneccl-xml", instances=2, in_place=in_place))


@random_cases(25)
@given(
    st.sampled_from(["ring:5", "torus:2x3", "complete:4", "hypercube:3"]),
    st.sampled_from(COLLECTIVES),
    st.sampled_from(["pipelined", "stepped"]),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_trees_with_any_options(spec, collective, kind, in_place, channels, instances):
    program = lower(trees(spec, collective, kind), LoweringOptions("oneccl-xml", channels, instances, "LL", in_place))
    assert check_program(program) == []
    got, wanted = result_of(program, seed=channels, piece=1, depth=8)
    assert got == wanted


def test_a_tree_for_the_whole_vector_is_cut_as_the_schedule_says():
    program = lower(double_tree("dbt:8", ROOTED[0], 8), LoweringOptions("oneccl-xml"))
    assert program.chunks == 8
    assert {item.count for *_, item in instructions(program)} == {1}


def test_trees_with_roots_of_their_own_move_a_transfer_at_a_time():
    program = lower(trees("ring:4", ALLGATHER), LoweringOptions("oneccl-xml"))
    sends = sum(item.op == Op.SEND for *_, item in instructions(program))
    assert program.chunks == 8
    assert sends == len(trees("ring:4", ALLGATHER).schedule.transfers)


def test_a_rank_sends_by_depth():
    program = lower(trees("ring:6", ALLGATHER), LoweringOptions("oneccl-xml"))
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            distances = [
                min((rank - item.src.offset // 2) % 6, (item.src.offset // 2 - rank) % 6)
                for item in block.instructions
                if item.op == Op.SEND
            ]
            assert distances == sorted(distances)


@PLACES
def test_only_the_root_of_a_reduce_writes_its_buffers(in_place):
    program = lower(double_tree("dbt:6", ROOTED[1]), LoweringOptions("oneccl-xml", in_place=in_place))
    for rank, _, _, item in instructions(program):
        if item.op.writes_dst:
            assert (item.dst.buffer == "s") == (rank != 1)
    assert all(body.scratch_chunks == 0 for body in program.ranks[1:2])


def test_alltoall_in_place_takes_scratch_only_for_what_comes_too_early():
    at_once = lower(verify(alltoall_schedule(parse_topology("ring:4"))), LoweringOptions("oneccl-xml"))
    assert {rank.scratch_chunks for rank in at_once.ranks} == {0}
    late = lower(hopping_alltoall("complete:4", wait=1), LoweringOptions("oneccl-xml"))
    assert {rank.scratch_chunks for rank in late.ranks} == {0}  # a pair starts together, whenever that is


def test_limits_are_named_for_trees_too():
    with pytest.raises(InvalidInput, match="steps of a thread block"):
        lower(double_tree("dbt:4", ROOTED[0], 1200), LoweringOptions("msccl-xml"))
