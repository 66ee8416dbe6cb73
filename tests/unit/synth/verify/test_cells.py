"""Replays of runs of chunks find what replays of single chunks find."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import COLUMN_NAMES, Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.replay import ChunkIntervals
from chorale.synth.verify.verified import ScheduleViolation, VerifiedSchedule
from chorale.synth.verify.verify import inspect
from tests.unit.synth.methods.forest.trees_on import trees_on

CHUNKS = 12


def make(spec: str, collective: Collective) -> Schedule:
    return synthesize_unverified("bfb", parse_topology(spec), collective, Options(chunks=CHUNKS), SerialExecutor())


def with_column(schedule: Schedule, name: str, row: int, value: int) -> Schedule:
    columns = [column.copy() for column in schedule.transfers.columns]
    columns[COLUMN_NAMES.index(name)][row] = value
    return replace(schedule, transfers=schedule.bounds.pack(columns))


def inspected(schedule: Schedule, few_chunks: int) -> tuple[list[ScheduleViolation], VerifiedSchedule | None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chorale.synth.verify.replay.FEW_CHUNKS", few_chunks)
        return inspect(schedule)


schedules = st.builds(
    make,
    st.sampled_from(["ring:5", "torus:2x4", "complete:4", "uniring:1,4"]),
    st.sampled_from([ALLGATHER, REDUCE_SCATTER, ALLREDUCE]),
)


@given(schedules, st.data())
def test_damage_is_judged_alike(schedule: Schedule, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(schedule.transfers) - 1))
    limits = {"lo": CHUNKS - 1, "hi": CHUNKS, "shard": schedule.shard_count - 1, "step": schedule.steps - 1}
    name = data.draw(st.sampled_from(sorted(limits)))
    damaged = with_column(schedule, name, row, data.draw(st.integers(0, limits[name])))
    (found, verified), (found_by_chunk, verified_by_chunk) = (inspected(damaged, few) for few in (0, 2 * CHUNKS))
    assert {fault.rule for fault in found} == {fault.rule for fault in found_by_chunk}
    assert (verified is None) == (verified_by_chunk is None)
    if verified is not None and verified_by_chunk is not None:
        assert (verified.cost, verified.link_loads) == (verified_by_chunk.cost, verified_by_chunk.link_loads)


def test_a_missing_run_is_named_by_its_first_chunk_and_counted_in_chunks() -> None:
    schedule = make("uniring:1,4", ALLGATHER)
    last = int(np.flatnonzero(schedule.transfers.step == schedule.steps - 1)[0])
    shortened = with_column(schedule, "hi", last, 8)
    (fault,), _ = inspected(shortened, 0)
    assert fault.message.startswith("chunk 8 of shard ")
    assert "(4 in all)" in fault.message


def test_thousands_of_chunks_in_few_intervals_take_few_cells() -> None:
    schedule = trees_on(parse_topology("scaled(a100:2;link=0.0-nic:0.0;factor=997/1000)"))
    assert schedule.chunks_per_shard > 500
    cells = ChunkIntervals.of(schedule)
    assert cells.offsets[-1] < 20 * schedule.shard_count
    assert int(cells.size.sum()) == schedule.shard_count * schedule.chunks_per_shard
    assert inspect(schedule)[0] == []
