"""Lowered programs do what their collective says, fit their target, and wait for nothing in vain; chunks, channels."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.fragments import contiguous_runs
from chorale.synth.lowering.lower import lower, with_default_channels
from chorale.synth.lowering.messages import (
    FASTEST_CHUNK_TIME,
    MAX_VISITS,
    messages_of,
    streaming_chunks,
    timetable_of,
    tree_levels,
)
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector_layout import min_chunks, options_for_sizes, rechunked, vector_layout_of
from chorale.synth.programs.program import Op, Program
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.registry import target_named
from chorale.synth.verify.verify import verify
from tests.unit.synth.lowering.programs import edited, exchange_schedule, instructions, lowered, trees, verified

COLLECTIVES = ["allgather", "reduce_scatter", "allreduce"]


@pytest.mark.parametrize(
    ("collective", "in_place"), [("allgather", False), ("reduce_scatter", True), ("allreduce", True)]
)
def test_no_wait_is_superfluous(collective, in_place):
    program = lowered("torus:2x3", collective, in_place=in_place, channels=2)
    assert check_program(program) == []
    assert any(instruction.waits for *_, instruction in instructions(program))
    for rank, block, step, instruction in instructions(program):
        for index in range(len(instruction.waits)):
            rest = instruction.waits[:index] + instruction.waits[index + 1 :]
            damaged = edited(program, (rank, block, step, replace(instruction, waits=rest)))
            assert {found.rule for found in check_program(damaged)} & {"race", "uninitialised"}


@pytest.mark.parametrize(("chunks", "protocol"), [(100, "Simple"), (8, "LL")])
def test_ranks_that_exchange_what_they_hold_do_not_deadlock(chunks, protocol):
    assert check_program(lower(exchange_schedule(chunks), LoweringOptions("oneccl-xml", protocol=protocol))) == []


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


def test_the_chunks_of_a_step_are_spread_evenly_over_the_channels():
    program = lowered("ring:4", "allgather", method="ring", channels=3)
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


def test_a_program_that_exceeds_a_limit_names_the_limit_and_the_nearest_parameters_that_fit():
    with pytest.raises(InvalidInput, match=r"60 is above the limit 40") as caught:
        lowered("hypercube:3", "allreduce", "msccl-xml", instances=20, sm_count=40)
    assert "channels 1, instances 20" in str(caught.value)
    assert caught.value.way_out == "channels 1, instances 13 fits"
    assert lowered("hypercube:3", "allreduce", "msccl-xml", instances=13, sm_count=40).channels == 13


@pytest.mark.parametrize(
    ("chunks", "options", "message"),
    [
        (12, {"channels": 33}, "channels: 33 is above the limit 32"),
        (12, {"instances": 900}, "largest chunk offset"),
        (7000, {}, r"steps of a thread block.*channels 2"),
        (12, {"max_bytes": 2**31}, "max_bytes"),
    ],
)
def test_limits_are_named(chunks, options, message):
    with pytest.raises(InvalidInput, match=message):
        lower(verified("ring:4", "allgather", "ring", chunks), LoweringOptions("msccl-xml", **options))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"channels": 0}, {"instances": -1}, {"protocol": "simple"}, {"min_bytes": 5, "max_bytes": 4}),
        *({"max_bytes": -1}, {"sm_count": 0}, {"sm_count": 2**20}),
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidInput):
        LoweringOptions("oneccl-xml", **wrong)


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


@pytest.mark.parametrize(
    ("method", "collective", "in_place"), [("bfb", "allgather", True), ("forest", "allreduce", False)]
)
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


@pytest.mark.parametrize(("method", "collective"), [("forest", "allgather"), ("ring", "reduce_scatter")])
def test_even_and_odd_ports_take_even_and_odd_channels(method, collective):
    program = lowered("a100:2", collective, "msccl-xml", method, channels=2)
    for rank, body in enumerate(program.ranks):
        out = [each for each in body.blocks if each.send_peer is not None and each.send_peer // 8 != rank // 8]
        assert {block.channel % 2 for block in out} <= {rank % 2}
    assert check_program(program) == []


def test_a_tree_that_takes_one_rail_keeps_to_one_channel():
    program = lowered("a100:2", "allgather", "msccl-xml", "forest")
    taken: dict[int, set[int]] = {}
    crossed: dict[int, set[int]] = {}
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            for item in block.instructions if block.send_peer is not None else ():
                for chunk in range(item.src.offset, item.src.offset + item.count):
                    taken.setdefault(chunk, set()).add(block.channel)
                    if rank // 8 != block.send_peer // 8:
                        crossed.setdefault(chunk, set()).add(rank % 2)
    assert len(crossed) == program.chunks
    for chunk, rails in crossed.items():
        if len(rails) == 1:
            assert taken[chunk] == rails


@pytest.mark.parametrize(("spec", "method"), [("torus:2x3", "bfb"), ("a100:1", "forest")])
@pytest.mark.parametrize("factor", [Fraction(1, 2), 7])
def test_costs_and_loads_stay_exactly_the_same(spec, method, factor):
    made = verified(spec, "allreduce", method)
    doubled = rechunked(made.schedule, 2 * made.schedule.chunks_per_shard)
    again = verify(rechunked(doubled, int(doubled.chunks_per_shard * factor)))
    assert again.schedule.chunks_per_shard == 2 * made.schedule.chunks_per_shard * factor
    assert (again.cost, again.link_loads) == (made.cost, made.link_loads)


def test_joined_chunks_give_back_the_schedule():
    schedule = verified("torus:2x3", "allgather").schedule
    least = min_chunks(schedule)
    assert schedule.chunks_per_shard % least == 0
    finer = rechunked(schedule, 12 * schedule.chunks_per_shard)
    assert min_chunks(finer) == least
    assert rechunked(finer, schedule.chunks_per_shard).id == schedule.id
    assert rechunked(schedule, None) is schedule


def test_chunks_that_would_cut_transfers_are_refused():
    schedule = verified("ring:4", "allgather", "biring").schedule
    assert min_chunks(schedule) == 2
    with pytest.raises(InvalidInput, match="multiple of 2, got 5; use 4"):
        rechunked(schedule, 5)
    with pytest.raises(InvalidInput, match="use 2"):
        rechunked(schedule, 0)


RING = verified("ring:5", "allreduce", "ring").schedule


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([None, 1, 2, 6]),
)
def test_the_most_instances_and_then_the_most_chunks_that_divide_are_taken(multiples, asked, granule, chunks):
    schedule = rechunked(RING, 4)
    single = 5  # chunks of the vector, one per shard
    sizes = [multiple * single * granule for multiple in multiples]
    chosen = options_for_sizes(schedule, LoweringOptions("oneccl-xml", instances=asked, chunks=chunks), sizes, granule)

    def divide(instances: int, parts: int) -> bool:
        return all(size % (single * instances * parts * granule) == 0 for size in sizes)

    assert chosen.instances == max(n for n in range(1, asked + 1) if divide(n, 1))
    assert chosen.chunks == max(n for n in range(1, (chunks or 4) + 1) if divide(chosen.instances, n))
    assert (chosen.min_bytes, chosen.max_bytes) == (min(sizes), max(sizes))
    program = lower(verify(schedule), chosen)
    assert all(size % (program.chunks * granule) == 0 for size in sizes)


def test_the_nearest_sizes_are_named():
    with pytest.raises(InvalidInput, match=r"multiples of 20 bytes.*got 1024; use 1020 or 1040 bytes"):
        options_for_sizes(RING, LoweringOptions("msccl-xml", instances=2), [40, 1024], 4)
    with pytest.raises(InvalidInput, match=r"got 3; use 20 bytes"):
        options_for_sizes(RING, LoweringOptions("msccl-xml"), [3], 4)


CASES = [trees("torus:3x3", name).schedule for name in (ALLGATHER, REDUCE_SCATTER, ALLREDUCE)]
CASES += [verified(spec, "allreduce", "forest").schedule for spec in ("mi250half:1", "dragonfly:2,1,1")]


def durations(schedule: Schedule) -> list[list[int]]:
    """Return for each transfer how long each link of its route is busy."""
    links, rows = schedule.topology.links, schedule.transfers
    fastest = max(links.bandwidths)
    weight = [-(-FASTEST_CHUNK_TIME * fastest // links.bandwidths[kind]) for kind in links.bandwidth_class.tolist()]
    amounts = (rows.hi.astype(int) - rows.lo).tolist()
    paths = [schedule.routes.path(route).tolist() for route in rows.route.tolist()]
    return [[amount * weight[link] for link in path] for amount, path in zip(amounts, paths, strict=True)]


@pytest.mark.parametrize("schedule", CASES, ids=lambda schedule: f"{schedule.topology.spec} {schedule.collective.name}")
def test_nothing_starts_before_all_that_it_needs_is_through(schedule):
    times, rows, busy = timetable_of(schedule, schedule.transfers), schedule.transfers, durations(schedule)
    columns = (schedule.src, schedule.dst, rows.shard, rows.lo, rows.hi, rows.step, times.start, times.step)
    table = list(zip(*(column.tolist() for column in columns), strict=True))
    for (_, dst, shard, low, high, step, start, stretch), own in zip(table, busy, strict=True):
        for src, _, other, first, end, later, begin, its in table:
            if (src, other) == (dst, shard) and low < end and first < high and step < later:
                assert start + max(own) <= begin
                assert stretch < its


@pytest.mark.parametrize(
    "schedule", CASES[:3], ids=lambda schedule: f"{schedule.topology.spec} {schedule.collective.name}"
)
def test_links_take_turns_and_are_never_idle_while_something_is_ready(schedule):
    times, rows, busy = timetable_of(schedule, schedule.transfers), schedule.transfers, durations(schedule)
    order = np.lexsort((times.start, rows.route))
    for one, other in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        if rows.route[one] == rows.route[other]:
            assert times.start[one] + busy[one][0] <= times.start[other]
    ends = {int(start) + own[0] for start, own in zip(times.start, busy, strict=True)}
    assert set(times.start.tolist()) <= ends | {0}
    assert times.end == max(ends)
    assert times.busiest == max(np.bincount(rows.route, weights=[own[0] for own in busy]))
    assert times.end >= times.busiest


def test_what_a_step_both_takes_and_puts_and_very_many_chunks_have_no_timetable():
    schedule = verified("hypercube:2", "allreduce", "recursive-doubling").schedule
    assert timetable_of(schedule, schedule.transfers) is None
    schedule = verified("ring:3", "allgather", "forest").schedule
    rows = schedule.transfers.select(slice(0, 1))
    rows = replace(rows, hi=rows.hi + np.uint32(MAX_VISITS // 2 + 1))
    assert timetable_of(schedule, rows) is None


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_programs_in_the_order_of_a_timetable_are_right(collective):
    for channels, in_place, fuse in ((1, False, False), (3, True, False), (2, True, True)):
        options = {"channels": channels, "in_place": in_place, "fuse": fuse}
        assert check_program(lowered("torus:4x4", collective, "msccl-xml", "forest", **options)) == []
