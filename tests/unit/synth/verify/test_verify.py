"""The verifier must notice every kind of damage, and agree with the slow replay of sets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName, parse_collective
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.schedule.schedule import COLUMN_NAMES, ColumnBounds, Routes, Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify import replay as general
from chorale.synth.verify.verify import inspect, verify
from tests.reference import set_replay

SERIAL = SerialExecutor()
COLLECTIVES = [ALLGATHER, REDUCE_SCATTER, ALLREDUCE]
SPECS = ["ring:5", "hypercube:3", "torus:2x4", "complete:4", "uniring:1,4"]


def make(spec: str, collective: Collective, method: str = "bfb") -> Schedule:
    return synthesize_unverified(method, parse_topology(spec), collective, None, SERIAL)


def with_columns(schedule: Schedule, **changed: np.ndarray) -> Schedule:
    columns = dict(zip(COLUMN_NAMES, schedule.transfers.columns, strict=True)) | changed
    return replace(schedule, transfers=schedule.bounds.pack([columns[name] for name in COLUMN_NAMES]))


def drop(schedule: Schedule, row: int) -> Schedule:
    keep = np.arange(len(schedule.transfers)) != row
    return replace(schedule, transfers=schedule.transfers.select(keep))


def judged_right_by_sets(schedule: Schedule) -> bool:
    """Whether the slow replay of sets finds no fault; the compiled one must find the same kinds of fault."""
    slow, compiled = set_replay.violations(schedule), general.set_replay_violations(schedule)
    if max(len(slow), len(compiled)) < 20:  # both stop there
        assert {violation.rule for violation in slow} == {violation.rule for violation in compiled}
    return slow == [] if bool(slow) == bool(compiled) else pytest.fail("the replays of sets do not agree")


def accepted(schedule: Schedule) -> bool:
    return inspect(schedule)[1] is not None


schedules = st.builds(make, st.sampled_from(SPECS), st.sampled_from(COLLECTIVES), st.sampled_from(["bfb", "ring"]))


@given(schedules, st.data())
def test_a_dropped_transfer_is_noticed(schedule, data):
    row = data.draw(st.integers(0, len(schedule.transfers) - 1))
    assert not accepted(drop(schedule, row))


@given(schedules, st.data())
def test_any_damage_is_judged_as_the_slow_replay_judges_it(schedule, data):
    """A changed copy is always missed somewhere; a partial sum may reach its root another way, or at another time."""
    bounds, rows = schedule.bounds, schedule.transfers
    name = data.draw(st.sampled_from(["step", "route", "shard", "hi", "reduce"]))
    counts = {"step": bounds.steps, "route": bounds.routes, "shard": bounds.shards, "reduce": 2}
    changed = getattr(rows, name).copy()
    for row in data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4)):
        span = (int(rows.lo[row]) + 1, int(rows.hi[row])) if name == "hi" else (0, counts[name] - 1)
        changed[row] = data.draw(st.integers(*span))
    damaged = with_columns(schedule, **{name: changed})
    assert accepted(damaged) == judged_right_by_sets(damaged)
    is_changed = changed != getattr(rows, name)
    if name == "route":
        is_changed &= (damaged.dst != schedule.dst) & (rows.reduce == 0)
    assert name == "step" or np.count_nonzero(is_changed) != 1 or not accepted(damaged)


@given(st.sampled_from(SPECS), st.sampled_from(COLLECTIVES), st.sampled_from(["bfb", "ring", "biring"]))
def test_what_the_synthesizers_make_is_accepted_by_both_replays(spec, collective, method):
    schedule = make(spec, collective, method)
    assert accepted(schedule)
    assert judged_right_by_sets(schedule)


def test_windows_of_shards_give_the_same_answer(monkeypatch):
    whole = verify(make("torus:2x4", ALLREDUCE))
    monkeypatch.setattr("chorale.synth.verify.verify.MEMORY_BYTES", 1)
    monkeypatch.setattr("chorale.synth.verify.replay.ROWS_AT_ONCE", 7)
    cut = verify(make("torus:2x4", ALLREDUCE))
    assert (cut.cost, cut.link_loads) == (whole.cost, whole.link_loads)
    assert not accepted(drop(make("torus:2x4", ALLREDUCE), 11))


def exchange_allreduce() -> Schedule:
    """Recursive doubling on a square: partners exchange all they have, so sums do not flow along trees."""
    topology = parse_topology("hypercube:2")
    links = list(topology.links)
    rows = [
        (step, route, shard, 0, 1, 1)
        for step, distance in enumerate((1, 2))
        for route, link in enumerate(links)
        if link.src ^ link.dst == distance
        for shard in range(4)
    ]
    bounds = ColumnBounds(2, len(links), 4, 1)
    columns = list(np.array(rows).T)
    routes = Routes.direct(len(links))
    return Schedule(topology, ALLREDUCE, "stepped", 2, 1, bounds.pack(columns), routes, "exchange", {})


def test_exchanges_are_accepted_by_the_replay_of_sets():
    verified = verify(exchange_allreduce())
    assert verified.cost.steps == 2
    assert not accepted(drop(exchange_allreduce(), 0))


def test_a_single_exchange_is_accepted_too():
    topology = parse_topology("complete:2")
    bounds = ColumnBounds(1, 2, 2, 1)
    rows = np.array([(0, route, shard, 0, 1, 1) for route in range(2) for shard in range(2)])
    routes = Routes.direct(2)
    schedule = Schedule(topology, ALLREDUCE, "stepped", 1, 1, bounds.pack(list(rows.T)), routes, "exchange", {})
    assert accepted(schedule)
    assert not accepted(drop(schedule, 3))


def test_exchanging_the_same_partner_twice_is_reducing_twice():
    schedule = exchange_allreduce()
    route = schedule.transfers.route.copy()
    first, second = (schedule.transfers.step == step for step in (0, 1))
    route[second] = route[first]
    rules = {violation.rule for violation in inspect(with_columns(schedule, route=route))[0]}
    assert "reduced-twice" in rules


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("step", 200, "column-range"),
        ("shard", 99, "column-range"),
        ("route", 254, "column-range"),
        ("hi", 9, "column-range"),
        ("hi", 0, "interval"),
    ],
)
def test_values_out_of_range_are_named(column, value, rule):
    schedule = make("ring:5", ALLGATHER)
    changed = getattr(schedule.transfers, column).copy()
    changed[3] = value
    found, verified = inspect(with_columns(schedule, **{column: changed}))
    assert verified is None
    assert rule in {violation.rule for violation in found}


def test_broken_routes_are_named():
    schedule = make("mesh:3x3", ALLGATHER, "ring")
    assert not schedule.routes.is_direct(len(schedule.topology.links))
    lengths = np.diff(schedule.routes.offsets)
    long_route = int(np.argmax(lengths))
    ids = schedule.routes.link_ids.copy()
    position = schedule.routes.offsets[long_route]
    ids[position : position + 2] = ids[position : position + 2][::-1]
    found, _ = inspect(replace(schedule, routes=Routes(schedule.routes.offsets, ids)))
    assert [violation.rule for violation in found] == ["route-broken"]


def test_an_empty_schedule_delivers_nothing():
    schedule = make("ring:4", ALLGATHER)
    empty = replace(schedule, transfers=schedule.transfers.select(slice(0, 0)))
    with pytest.raises(CheckFailed, match="is missing"):
        verify(empty)


def test_broadcast_and_alltoall_have_their_own_terms():
    topology = parse_topology("complete:3")
    routes = Routes.direct(len(topology.links))
    links = list(topology.links)
    from_root = [(0, route, shard, 0, 1, 0) for route, link in enumerate(links) if link.src == 0 for shard in range(3)]
    broadcast = Collective(CollectiveName.BROADCAST, 0)
    bounds = ColumnBounds(1, len(links), 3, 1)
    columns = list(np.array(from_root).T)
    assert accepted(Schedule(topology, broadcast, "stepped", 1, 1, bounds.pack(columns), routes, "direct", {}))
    wrong_root = Collective(CollectiveName.BROADCAST, 1)
    assert not accepted(Schedule(topology, wrong_root, "stepped", 1, 1, bounds.pack(columns), routes, "direct", {}))
    pairs = [(0, route, link.src * 3 + link.dst, 0, 1, 0) for route, link in enumerate(links)]
    alltoall = Collective(CollectiveName.ALLTOALL)
    bounds = ColumnBounds(1, len(links), 9, 1)
    schedule = Schedule(topology, alltoall, "stepped", 1, 1, bounds.pack(list(np.array(pairs).T)), routes, "direct", {})
    assert accepted(schedule)
    assert not accepted(drop(schedule, 0))


@pytest.mark.parametrize("chunks", [2**20, 2**31 - 1])
def test_many_chunks_per_shard_take_no_memory(chunks):
    """Exchanges are replayed by sets, of which one for each chunk would take 64 GiB."""
    schedule = make("hypercube:2", parse_collective("allreduce"), "recursive-doubling")
    rows = schedule.transfers
    columns = {name: getattr(rows, name).astype(np.int64) * chunks for name in ("lo", "hi")}
    fine = with_columns(replace(schedule, chunks_per_shard=chunks), **columns)
    assert accepted(fine)
    assert not accepted(drop(fine, 0))
