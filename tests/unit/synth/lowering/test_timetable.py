"""Timetables keep what must follow one another apart, never let a link lie idle for nothing, and beat depths."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.timetable import FASTEST_CHUNK_TIME, MAX_VISITS, Timetable, timetable_of
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.targets.judge import check_program
from tests.unit.synth.lowering.programs import verified
from tests.unit.synth.lowering.tree_schedules import trees

CASES = [
    trees(spec, name).schedule for spec in ("torus:3x3", "mesh:2x3") for name in (ALLGATHER, REDUCE_SCATTER, ALLREDUCE)
]
CASES += [verified(spec, "allreduce", "forest").schedule for spec in ("mi250half:1", "a100:1", "dragonfly:2,1,1")]


def made(schedule: Schedule) -> Timetable:
    times = timetable_of(schedule, schedule.transfers)
    assert times is not None
    return times


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
    times, rows, busy = made(schedule), schedule.transfers, durations(schedule)
    columns = (schedule.src, schedule.dst, rows.shard, rows.lo, rows.hi, rows.step, times.start, times.step)
    table = list(zip(*(column.tolist() for column in columns), strict=True))
    for (_, dst, shard, low, high, step, start, stretch), own in zip(table, busy, strict=True):
        for src, _, other, first, end, later, begin, its in table:
            if (src, other) == (dst, shard) and low < end and first < high and step < later:
                assert start + max(own) <= begin
                assert stretch < its


@pytest.mark.parametrize(
    "schedule", CASES[:6], ids=lambda schedule: f"{schedule.topology.spec} {schedule.collective.name}"
)
def test_links_take_turns_and_are_never_idle_while_something_is_ready(schedule):
    times, rows, busy = made(schedule), schedule.transfers, durations(schedule)
    order = np.lexsort((times.start, rows.route))
    for one, other in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        if rows.route[one] == rows.route[other]:
            assert times.start[one] + busy[one][0] <= times.start[other]
    ends = {int(start) + own[0] for start, own in zip(times.start, busy, strict=True)}
    assert set(times.start.tolist()) <= ends | {0}
    assert times.end == max(ends)
    assert times.busiest == max(np.bincount(rows.route, weights=[own[0] for own in busy]))
    assert times.end >= times.busiest


def test_depths_alone_take_longer():
    """In the order of the depths all wait for the busiest link of each depth, see docs/guide/programs.md."""
    schedule = verified("mi250:2", "allgather", "forest").schedule
    times, busy = made(schedule), durations(schedule)
    of_step = np.zeros((schedule.steps, len(schedule.topology.links)))
    for step, route, own in zip(schedule.transfers.step, schedule.transfers.route, busy, strict=True):
        of_step[step, schedule.routes.path(route)] += own
    assert times.end < of_step.max(axis=1).sum()


def test_what_a_step_both_takes_and_puts_has_no_timetable():
    schedule = verified("hypercube:2", "allreduce", "recursive-doubling").schedule
    assert timetable_of(schedule, schedule.transfers) is None


def test_very_many_chunks_have_no_timetable():
    schedule = verified("ring:3", "allgather", "forest").schedule
    rows = schedule.transfers.select(slice(0, 1))
    rows = replace(rows, hi=rows.hi + np.uint32(MAX_VISITS // 2 + 1))
    assert timetable_of(schedule, rows) is None


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize("in_place", [True, False])
def test_programs_in_the_order_of_a_timetable_are_right(collective, in_place):
    schedule = verified("torus:4x4", collective, "forest")
    for channels, fuse in ((1, False), (3, False), (2, True)):
        assert (
            check_program(lower(schedule, LoweringOptions("msccl-xml", channels, in_place=in_place, fuse=fuse))) == []
        )
