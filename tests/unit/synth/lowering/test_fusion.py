"""Fused programs calculate the same with fewer blocks and instructions, and never hang."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.fusion import hanging_blocks
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.strategies import strongly_connected_topologies
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import (
    block,
    exchange_schedule,
    instructions,
    lowered,
    program,
    step,
    verified,
)
from tests.unit.synth.lowering.tree_schedules import trees

PLACES = pytest.mark.parametrize("in_place", [True, False], ids=["inplace", "outofplace"])
ROOTED = [Collective(CollectiveName.BROADCAST, 2), Collective(CollectiveName.REDUCE, 1)]


def ops(made: Program) -> Counter[str]:
    return Counter(item.op.value for *_, item in instructions(made))


def is_right(made: Program, depth: int = 2) -> None:
    assert check_program(made) == []
    for piece in (1, 71):
        got, wanted = result_of(made, seed=piece, piece=piece, depth=depth)
        assert got == wanted


@pytest.mark.parametrize(
    ("collective", "target", "in_place"),
    [
        ("allgather", "msccl-xml", False),
        ("reduce_scatter", "msccl-executor-xml", True),
        ("allreduce", "oneccl-xml", True),
        ("allreduce", "msccl-xml", False),
    ],
)
def test_rings_hand_on_in_one_instruction(collective, target, in_place):
    made = lowered("ring:5", collective, target, method="ring", in_place=in_place, fuse=True)
    chains = (5 * (collective != "allgather"), 5 * (collective != "reduce_scatter"))
    expected = Counter(rrs=3 * chains[0], rrc=chains[0], rcs=3 * chains[1], r=chains[1], s=sum(chains))
    expected["cpy"] = 5 * (collective == "allgather" and not in_place)
    assert ops(made) == +expected
    assert all(rank.scratch_chunks == 0 for rank in made.ranks)
    assert lift(target_named(target).emit(made).encode()) == made
    is_right(made)


@pytest.mark.parametrize(
    ("spec", "method", "collective", "in_place"),
    [
        ("ring:6", "biring", "allreduce", True),
        ("torus:2x3", "bfb", "reduce_scatter", False),
        ("torus:3x3", "bucket", "allgather", False),
        ("torus:3x3", "bucket", "allreduce", True),
    ],
)
def test_steps(spec, method, collective, in_place):
    is_right(lowered(spec, collective, method=method, in_place=in_place, channels=2, instances=2, fuse=True))


@PLACES
@pytest.mark.parametrize("kind", ["pipelined", "stepped"])
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE, *ROOTED], ids=str)
def test_trees(collective, kind, in_place):
    is_right(lower(trees("ring:5", collective, kind), LoweringOptions("oneccl-xml", in_place=in_place, fuse=True)))


@PLACES
@pytest.mark.parametrize("collective", [ALLREDUCE, *ROOTED], ids=str)
def test_double_binary_trees(collective, in_place):
    schedule = verify(double_binary_tree(parse_topology("dbt:8"), collective).schedule(8))
    made = lower(schedule, LoweringOptions("msccl-xml", in_place=in_place, fuse=True))
    assert {"rcs", "rrs"} & set(ops(made))
    is_right(made)


@random_cases(30)
@given(
    strongly_connected_topologies(max_nodes=5, max_extra_links=4),
    st.sampled_from(["allgather", "reduce_scatter", "allreduce"]),
    st.sampled_from(["ring", "bfb"]),
    st.booleans(),
    st.sampled_from(["Simple", "LL"]),
    st.booleans(),
)
def test_random_networks(topology, collective, method, in_place, protocol, is_small):
    schedule = synthesize(method, topology, Collective(CollectiveName(collective)), Options(chunks=2), SerialExecutor())
    most = 2 * topology.compute_count if is_small else None
    options = LoweringOptions("oneccl-xml", 1, 1, protocol, in_place, sm_count=most, fuse=True)
    is_right(lower(schedule, options), depth=2 if protocol == "Simple" else 8)


def test_what_would_hang_is_fused_but_for_one_block():
    """Two chunks around a ring fill both slots of every connection before anyone receives, unless one always does."""
    schedule = verified("ring:4", "allgather", "ring", 2)
    simple = lower(schedule, LoweringOptions("oneccl-xml", fuse=True))
    quick = lower(schedule, LoweringOptions("oneccl-xml", protocol="LL", fuse=True))
    blocks = [len(rank.blocks) for rank in simple.ranks]
    assert sorted(blocks) == [1, 1, 1, 2]
    assert 0 < ops(simple)["rcs"] < ops(quick)["rcs"] == 8
    is_right(simple)
    is_right(quick, depth=8)


def test_several_circles_are_broken_apart():
    schedule = verified("ring:6", "allreduce", "biring", 8)
    made = lower(schedule, LoweringOptions("msccl-xml", instances=2, fuse=True))
    assert sorted(len(rank.blocks) for rank in made.ranks) == [4, 4, 4, 4, 4, 8]
    assert ops(made)["rcs"] == ops(made)["rrs"] == 80
    assert not hanging_blocks(made)
    is_right(made)


@PLACES
def test_exchanges_hand_on_to_the_next_partner(in_place):
    made = lower(exchange_schedule(3), LoweringOptions("oneccl-xml", in_place=in_place, fuse=True))
    # Out of place, the first step moves longer pieces than the second, which exchanges what it overwrites.
    assert (ops(made)["rrcs"] > 0) == in_place
    is_right(made)


@pytest.mark.parametrize(("protocol", "free"), [("Simple", False), ("LL", True)])
def test_a_run_without_data_finds_what_hangs(protocol, free):
    ranks = [[block(1 - rank, 1 - rank, step("s", "i0", count=4), step("r", "s0", count=4))] for rank in range(2)]
    made = program(CollectiveName.ALLREDUCE, 4, *ranks, scratch=4, protocol=protocol)
    assert (not hanging_blocks(made)) == free


def test_a_run_without_data_finds_waits_in_a_circle():
    first, second = (block(None, None, step("cpy", "o0", "o1", waits=[(other, 0)])) for other in (1, 0))
    made = program(CollectiveName.ALLREDUCE, 2, [first, second], [block(None, None)])
    assert hanging_blocks(made) == [(0, 0), (0, 1)]
