"""Lowered programs do what their collective says, fit their target, and wait for nothing in vain."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.fragments import contiguous_runs
from chorale.synth.lowering.lower import lower, with_default_channels
from chorale.synth.lowering.messages import messages_of, streaming_chunks, tree_levels
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector_layout import vector_layout_of
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Op, Program
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.registry import target_named
from tests.properties import random_cases
from tests.strategies import strongly_connected_topologies
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import edited, exchange_schedule, instructions, lowered, verified

COLLECTIVES = ["allgather", "reduce_scatter", "allreduce"]


@pytest.mark.parametrize(
    ("spec", "collective", "in_place", "channels", "instances"),
    [
        ("ring:4", "reduce_scatter", False, 1, 2),
        ("hypercube:3", "allreduce", True, 2, 2),
        ("bipartite:2", "allgather", True, 1, 1),
        ("biring:4,3", "reduce_scatter", True, 1, 1),
        ("complete:2", "allgather", False, 1, 1),
        ("complete:2", "allreduce", False, 2, 1),
        ("torus:2x3", "allgather", True, 1, 1),
        ("torus:2x3", "allgather", False, 2, 2),
        ("uniring:1,3", "allreduce", True, 1, 1),
    ],
)
def test_a_lowered_program_does_what_its_collective_says(spec, collective, in_place, channels, instances):
    program = lowered(spec, collective, in_place=in_place, channels=channels, instances=instances)
    assert check_program(program) == []
    got, wanted = result_of(program, seed=channels + instances, piece=1)
    assert got == wanted


@pytest.mark.parametrize("method", ["ring", "biring"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("in_place", [True, False])
def test_routes_through_other_nodes_become_sends_between_their_ends(method, collective, in_place):
    program = lowered("uniring:1,5", collective, method="ring", in_place=in_place)
    assert check_program(program) == []
    program = lowered("torus:2x3", collective, method=method, in_place=in_place)
    got, wanted = result_of(program, seed=1, piece=71)
    assert got == wanted


@random_cases(40)
@given(
    strongly_connected_topologies(max_nodes=5, max_extra_links=6),
    st.sampled_from([ALLGATHER, REDUCE_SCATTER, ALLREDUCE]),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_programs_on_random_networks_are_right(topology, collective, in_place, channels, instances):
    schedule = synthesize("bfb", topology, collective, Options(chunks=2), SerialExecutor())
    program = lower(schedule, LoweringOptions("oneccl-xml", channels, instances, "Simple", in_place))
    assert check_program(program) == []
    got, wanted = result_of(program, seed=0, piece=1)
    assert got == wanted


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_wait_is_superfluous(collective, in_place):
    program = lowered("torus:2x3", collective, in_place=in_place, channels=2)
    assert check_program(program) == []
    assert any(instruction.waits for *_, instruction in instructions(program))
    for rank, block, step, instruction in instructions(program):
        for index in range(len(instruction.waits)):
            rest = instruction.waits[:index] + instruction.waits[index + 1 :]
            damaged = edited(program, (rank, block, step, replace(instruction, waits=rest)))
            assert {found.rule for found in check_program(damaged)} & {"race", "uninitialised"}


@pytest.mark.parametrize("chunks", [1, 3, 8, 100])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_ranks_that_exchange_what_they_hold_do_not_deadlock(chunks, in_place, protocol):
    options = LoweringOptions("oneccl-xml", in_place=in_place, protocol=protocol)
    program = lower(exchange_schedule(chunks), options)
    assert check_program(program) == []


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_out_of_place_needs_copies_for_the_gathered_own_part_only(collective):
    ops = [item.op for *_, item in instructions(lowered("hypercube:2", collective, in_place=False))]
    assert ops.count(Op.COPY) == (4 if collective == "allgather" else 0)


def test_only_chunks_that_pass_through_take_scratch():
    in_place = lowered("hypercube:3", "reduce_scatter")
    assert [rank.scratch_chunks for rank in in_place.ranks] == [0] * 8
    apart = lowered("hypercube:3", "reduce_scatter", in_place=False)
    share = apart.chunks // 8
    # At distance 3 nothing arrives, so that shard and the own one need no scratch.
    assert all(0 < rank.scratch_chunks <= 6 * share for rank in apart.ranks)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_chunks_of_a_step_are_spread_evenly_over_the_channels(channels):
    program = lowered("ring:4", "allgather", method="ring", channels=channels)
    carried = dict.fromkeys(range(program.channels), 0)
    for rank, block, _, item in instructions(program):
        if item.op.sends:
            carried[program.ranks[rank].blocks[block].channel] += item.count
    assert max(carried.values()) - min(carried.values()) <= len(program.ranks)


def test_parallel_links_take_different_channels():
    program = lowered("biring:4,3", "allgather")
    assert program.channels == 2
    pairs = [(block.send_peer, block.channel) for block in program.ranks[0].blocks if block.send_peer is not None]
    assert len(pairs) == 4
    assert len(set(pairs)) == 4


def test_instances_keep_to_their_own_channels_and_chunks():
    program = lowered("ring:4", "allgather", instances=2)
    share = program.chunks // 4
    of_channel = {}
    for rank, block, _, item in instructions(program):
        half = (item.src.offset % share) // (share // 2)
        of_channel.setdefault(program.ranks[rank].blocks[block].channel, set()).add(half)
    assert all(len(halves) == 1 for halves in of_channel.values())


def test_long_runs_are_cut_at_the_longest_instruction():
    program = lower(verified("ring:4", "allgather", "ring", 200), LoweringOptions("msccl-xml"))
    counts = [item.count for *_, item in instructions(program)]
    assert max(counts) == 71
    assert check_program(program) == []


def test_a_program_that_exceeds_a_limit_names_the_limit_and_the_nearest_parameters_that_fit():
    with pytest.raises(InvalidInput, match=r"60 is above the limit 40") as caught:
        lowered("hypercube:3", "allreduce", "msccl-xml", instances=20, sm_count=40)
    assert "channels 1, instances 20" in str(caught.value)
    assert caught.value.way_out == "channels 1, instances 13 fits"
    assert lowered("hypercube:3", "allreduce", "msccl-xml", instances=13, sm_count=40).channels == 13


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 33}, "channels: 33 is above the limit 32"),
        ({"instances": 900}, "largest chunk offset"),
    ],
)
def test_limits_are_named(options, message):
    with pytest.raises(InvalidInput, match=message):
        lower(verified("ring:4", "allgather", "ring", 12), LoweringOptions("msccl-xml", **options))


def test_too_many_steps_are_refused_with_more_channels_as_the_way_out():
    schedule = verified("ring:4", "allgather", "ring", 7000)
    with pytest.raises(InvalidInput, match="steps of a thread block") as caught:
        lower(schedule, LoweringOptions("msccl-xml"))
    assert "channels 2" in caught.value.way_out


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": 0},
        {"instances": -1},
        {"protocol": "simple"},
        {"min_bytes": 5, "max_bytes": 4},
        {"max_bytes": -1},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidInput):
        LoweringOptions("oneccl-xml", **wrong)


def test_an_unknown_target_is_refused():
    with pytest.raises(InvalidInput, match="choose from msccl-executor-xml, msccl-xml, oneccl-xml"):
        lowered("ring:4", "allgather", "nccl")


def test_more_bytes_than_the_runtime_counts_are_refused():
    with pytest.raises(InvalidInput, match="max_bytes"):
        lowered("ring:4", "allgather", "msccl-xml", max_bytes=2**31)


def test_channels_of_deep_trees_take_ranges_of_time():
    """Of each connection, what travels on a channel is over before the next channel begins."""
    schedule = verified("mi250half:1", "allreduce", "forest")
    options = LoweringOptions("msccl-xml", channels=4)
    messages = messages_of(schedule.schedule, vector_layout_of(schedule.schedule, 1), options)
    assert sorted(set(messages.channel.tolist())) == [0, 1, 2, 3]
    assert (np.diff(messages.channel[np.argsort(messages.step, kind="stable")]) >= 0).mean() > 0.9
    ends = messages.sender * 16 + messages.receiver
    for pair in np.unique(ends):
        assert (np.diff(messages.channel[ends == pair]) >= 0).all()
    assert check_program(lower(schedule, options)) == []


def test_channels_of_trees_of_two_levels_each_way_take_ranges_of_levels():
    schedule = verified("a100:2", "allreduce", "forest").schedule
    assert (tree_levels(schedule), schedule.barriers) == (4, (2,))
    messages = messages_of(schedule, vector_layout_of(schedule, 1), LoweringOptions("msccl-xml", channels=2))
    rails = 2
    assert (messages.channel // rails == messages.step // 2).all()


def test_deep_trees_have_several_channels_where_long_chunks_take_many_loops():
    """Shallow trees and steps have one, and so have chunks that fit in a message."""
    for spec, collective, method in (("a100:1", "allgather", "forest"), ("torus:3x3", "allreduce", "bfb")):
        options = LoweringOptions("oneccl-xml", channels=9)
        assert with_default_channels(verified(spec, collective, method), options).channels == 1
    deep = verified("mi250half:1", "allreduce", "forest")
    assert with_default_channels(deep, LoweringOptions("msccl-xml")).channels > 1
    assert with_default_channels(deep, LoweringOptions("msccl-xml", max_bytes=2**20)).channels == 1
    assert with_default_channels(deep, LoweringOptions("msccl-xml", chunks=66)).channels == 1
    assert with_default_channels(deep, LoweringOptions("msccl-xml", sm_count=5)).channels == 1


@pytest.mark.parametrize("method", ["bfb", "forest"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("in_place", [True, False])
def test_finer_chunks_move_the_same_data(method, collective, in_place):
    schedule = verified("torus:2x3", collective, method)
    chunks = 3 * schedule.schedule.chunks_per_shard
    plain = lower(schedule, LoweringOptions("oneccl-xml", in_place=in_place))
    finer = lower(schedule, LoweringOptions("oneccl-xml", in_place=in_place, chunks=chunks))
    assert finer.chunks == 3 * plain.chunks
    assert finer.origin == plain.origin == schedule.schedule.id
    assert _sent(finer) == {ends: 3 * count for ends, count in _sent(plain).items()}
    assert check_program(finer) == []


def _sent(program: Program) -> Counter[tuple[int, int | None]]:
    sent: Counter[tuple[int, int | None]] = Counter()
    for rank, block, _, item in instructions(program):
        sent[rank, program.ranks[rank].blocks[block].send_peer] += item.count if item.op.sends else 0
    return +sent


def test_transfers_of_high_trees_are_cut_where_steps_allow_it():
    schedule = verified("mi250:2", "allgather", "forest").schedule
    vector, limits = vector_layout_of(schedule, 1), target_named("msccl-xml").limits
    cut = vector.split_transfers(streaming_chunks(schedule, vector, limits)).transfers
    length = cut.hi.astype(int) - cut.lo
    assert length.max() < (vector.transfers.hi - vector.transfers.lo).max()
    assert length.sum() == (vector.transfers.hi.astype(int) - vector.transfers.lo).sum()
    ends = schedule.routes.sources(schedule.topology.links)[cut.route] * 32
    ends += schedule.routes.destinations(schedule.topology.links)[cut.route]
    assert np.bincount(ends).max() <= 192
    few = replace(limits, steps=8)
    assert streaming_chunks(schedule, vector, few) == (vector.transfers.hi - vector.transfers.lo).max()


def test_a_stretch_is_cut_into_the_longest_pieces_and_what_is_left():
    first, length = contiguous_runs((np.array([4, 5, 6, 7, 8, 9, 10, 20, 21]),), 3)
    assert (first.tolist(), length.tolist()) == ([0, 3, 6, 7], [3, 3, 1, 2])
