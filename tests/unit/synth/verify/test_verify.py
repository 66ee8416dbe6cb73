"""The verifier notices every kind of damage and agrees with slow replays, also where switches act; times at a size."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.collective import (
    ALLGATHER,
    ALLREDUCE,
    REDUCE_SCATTER,
    Collective,
    CollectiveName,
    parse_collective,
    uneven_collective,
)
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.schedule.schedule import COLUMN_NAMES, Routes, Schedule, renamed_schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links
from chorale.synth.verify import replay as general
from chorale.synth.verify.replay import ChunkIntervals
from chorale.synth.verify.verified import ScheduleViolation, VerifiedSchedule
from chorale.synth.verify.verify import inspect, verify
from tests.forest_networks import trees_on
from tests.properties import random_cases
from tests.reference.replays import is_right, violations
from tests.unit.synth.lowering.programs import schedule_of

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
    slow, compiled = violations(schedule), general.set_replay_violations(schedule)
    if max(len(slow), len(compiled)) < 20:  # both stop there
        assert {violation.rule for violation in slow} == {violation.rule for violation in compiled}
    return slow == [] if bool(slow) == bool(compiled) else pytest.fail("the replays of sets do not agree")


def rules(schedule: Schedule) -> set[str]:
    return {violation.rule for violation in inspect(schedule)[0]}


def accepted(schedule: Schedule) -> bool:
    return inspect(schedule)[1] is not None


schedules = st.builds(
    make, st.sampled_from(SPECS), st.sampled_from(COLLECTIVES), st.sampled_from(["bfb", "ring", "biring"])
)


@given(schedules, st.data())
def test_what_the_synthesizers_make_is_right_and_a_dropped_transfer_is_noticed(schedule, data):
    assert accepted(schedule)
    assert judged_right_by_sets(schedule)
    assert not accepted(drop(schedule, data.draw(st.integers(0, len(schedule.transfers) - 1))))


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


def test_windows_of_shards_give_the_same_answer(monkeypatch):
    whole = verify(make("torus:2x4", ALLREDUCE))
    monkeypatch.setattr("chorale.synth.verify.verify.MEMORY_BYTES", 1)
    monkeypatch.setattr("chorale.synth.verify.replay.ROWS_AT_ONCE", 7)
    cut = verify(make("torus:2x4", ALLREDUCE))
    assert (cut.cost, cut.link_loads) == (whole.cost, whole.link_loads)
    assert not accepted(drop(make("torus:2x4", ALLREDUCE), 11))


@pytest.mark.parametrize("dimensions", [1, 2])
def test_exchanges_are_accepted_by_the_replay_of_sets(dimensions):
    schedule = make(f"hypercube:{dimensions}", ALLREDUCE, "recursive-doubling")
    assert verify(schedule).cost.steps == dimensions
    assert not accepted(drop(schedule, 0))


def test_exchanging_the_same_partner_twice_is_reducing_twice():
    schedule = make("hypercube:2", ALLREDUCE, "recursive-doubling")
    route = schedule.transfers.route.copy()
    first, second = (schedule.transfers.step == step for step in (0, 1))
    route[second] = route[first]
    assert "reduced-twice" in rules(with_columns(schedule, route=route))


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
    damaged = with_columns(schedule, **{column: changed})
    assert not accepted(damaged)
    assert rule in rules(damaged)


def test_broken_routes_are_named():
    schedule = make("mesh:3x3", ALLGATHER, "ring")
    assert not schedule.routes.is_direct(len(schedule.topology.links))
    lengths = np.diff(schedule.routes.offsets)
    long_route = int(np.argmax(lengths))
    ids = schedule.routes.link_ids.copy()
    position = schedule.routes.offsets[long_route]
    ids[position : position + 2] = ids[position : position + 2][::-1]
    assert rules(replace(schedule, routes=Routes(schedule.routes.offsets, ids))) == {"route-broken"}
    with pytest.raises(CheckFailed, match="is missing"):
        verify(replace(schedule, transfers=schedule.transfers.select(slice(0, 0))))


def test_broadcast_and_alltoall_have_their_own_terms():
    topology = parse_topology("complete:3")
    links = list(enumerate(topology.links))
    from_root = [(0, route, shard, 0, 1, 0) for route, link in links if link.src == 0 for shard in range(3)]
    for root in (0, 1):
        broadcast = parse_collective("broadcast", root)
        assert accepted(schedule_of(topology, broadcast, "stepped", 1, from_root)) == (root == 0)
    pairs = [(0, route, link.src * 3 + link.dst, 0, 1, 0) for route, link in links]
    alltoall = schedule_of(topology, parse_collective("alltoall"), "stepped", 1, pairs)
    assert accepted(alltoall)
    assert not accepted(drop(alltoall, 0))


def test_many_chunks_per_shard_take_no_memory():
    """Exchanges are replayed by sets, of which one for each chunk would take 64 GiB."""
    schedule, chunks = make("hypercube:2", ALLREDUCE, "recursive-doubling"), 2**31 - 1
    rows = schedule.transfers
    columns = {name: getattr(rows, name).astype(np.int64) * chunks for name in ("lo", "hi")}
    fine = with_columns(replace(schedule, chunks_per_shard=chunks), **columns)
    assert accepted(fine)
    assert not accepted(drop(fine, 0))


CHUNKS = 12


def chunked(spec: str, collective: Collective) -> Schedule:
    return synthesize_unverified("bfb", parse_topology(spec), collective, Options(chunks=CHUNKS), SERIAL)


def inspected(schedule: Schedule, few_chunks: int) -> tuple[list[ScheduleViolation], VerifiedSchedule | None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chorale.synth.verify.replay.FEW_CHUNKS", few_chunks)
        return inspect(schedule)


@given(st.builds(chunked, st.sampled_from(SPECS[:3]), st.sampled_from(COLLECTIVES)), st.data())
def test_replays_of_runs_of_chunks_find_what_replays_of_chunks_find(schedule: Schedule, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(schedule.transfers) - 1))
    limits = {"lo": CHUNKS - 1, "hi": CHUNKS, "shard": schedule.shard_count - 1, "step": schedule.steps - 1}
    name = data.draw(st.sampled_from(sorted(limits)))
    changed = getattr(schedule.transfers, name).copy()
    changed[row] = data.draw(st.integers(0, limits[name]))
    damaged = with_columns(schedule, **{name: changed})
    (found, verified), (found_by_chunk, verified_by_chunk) = (inspected(damaged, few) for few in (0, 2 * CHUNKS))
    assert {fault.rule for fault in found} == {fault.rule for fault in found_by_chunk}
    assert (verified is None) == (verified_by_chunk is None)
    if verified is not None and verified_by_chunk is not None:
        assert (verified.cost, verified.link_loads) == (verified_by_chunk.cost, verified_by_chunk.link_loads)


def test_a_missing_run_is_named_by_its_first_chunk_and_counted_in_chunks() -> None:
    schedule = chunked("uniring:1,4", ALLGATHER)
    last = int(np.flatnonzero(schedule.transfers.step == schedule.steps - 1)[0])
    hi = schedule.transfers.hi.copy()
    hi[last] = 8
    (fault,), _ = inspected(with_columns(schedule, hi=hi), 0)
    assert fault.message.startswith("chunk 8 of shard ")
    assert "(4 in all)" in fault.message


def test_thousands_of_chunks_in_few_intervals_take_few_cells() -> None:
    schedule = trees_on(parse_topology("scaled(a100:2;link=0.0-nic:0.0;factor=997/1000)"))
    assert schedule.chunks_per_shard > 500
    cells = ChunkIntervals.of(schedule)
    assert cells.offsets[-1] < 20 * schedule.shard_count
    assert int(cells.size.sum()) == schedule.shard_count * schedule.chunks_per_shard
    assert inspect(schedule)[0] == []


AMOUNTS = [[1, 30, 0, 7], [2, 0, 40, 1], [0, 3, 0, 0], [9, 0, 5, 0]]


@pytest.fixture(name="schedule", scope="module")
def uneven_schedule():
    return traffic_schedule(plan_traffic(parse_topology("ring:4"), traffic_matrix("m", AMOUNTS)))


def test_every_row_is_needed(schedule):
    assert rules(schedule) == set()
    assert sum(schedule.collective.sizes) == sum(map(sum, AMOUNTS))
    for row in range(len(schedule.transfers)):
        assert rules(drop(schedule, row)) in ({"not-delivered"}, {"sent-before-received"})  # the latter by a relay


def test_sizes_that_do_not_fit_are_seen(schedule):
    collective = schedule.collective
    shorter = uneven_collective(collective.name, [max(0, size - 1) for size in collective.sizes])
    longer = uneven_collective(collective.name, [*collective.sizes[:2], 1, *collective.sizes[3:]])
    too_few = uneven_collective(collective.name, collective.sizes[:-1])
    assert rules(replace(schedule, collective=shorter)) == {"sizes"}
    assert rules(replace(schedule, collective=longer)) == {"not-delivered"}
    assert replace(schedule, collective=longer).id != schedule.id
    assert rules(replace(schedule, collective=too_few)) == {"sizes"}


def test_renamed_nodes_take_their_sizes_along(schedule):
    turned = renamed_schedule(schedule, np.array([1, 2, 3, 0]), schedule.topology)
    assert verify(turned).cost == verify(schedule).cost
    sizes = np.array(turned.collective.sizes).reshape(4, 4)
    assert sizes[1].tolist() == [AMOUNTS[0][3], AMOUNTS[0][0], AMOUNTS[0][1], AMOUNTS[0][2]]


@pytest.mark.parametrize("name", [CollectiveName.ALLGATHERV, CollectiveName.ALLGATHER])
def test_sizes_must_be_some_and_are_for_uneven_collectives(name):
    for sizes in ((), (0, 0), (1, -1)) if name == CollectiveName.ALLGATHERV else ((1, 2),):
        with pytest.raises(InvalidInput):
            uneven_collective(name, sizes)


# A switch between three ranks: links 0>3, 1>3, 2>3 and back.
STAR = parse_topology("able(switch:3,10)")


def link_between(topology, src, dst):
    links = topology.links
    return int(np.flatnonzero((links.src == src) & (links.dst == dst))[0])


def star_schedule(rows, topology=STAR, collective=ALLREDUCE, kind="pipelined"):
    """Rows: (step, nodes on the way, whether it adds), each for one chunk of every shard."""
    paths = [[link_between(topology, src, dst) for src, dst in pairwise(nodes)] for _, nodes, _ in rows]
    ranks = range(topology.compute_count)
    columns = [(row[0], index, shard, 0, 1, row[2]) for index, row in enumerate(rows) for shard in ranks]
    return schedule_of(topology, collective, kind, 1, columns, Routes.of_paths(paths))


UP = [(0, (1, 3), 1), (0, (2, 3), 1), (0, (3, 0), 1)]
DOWN = [(1, (0, 3), 0), (1, (3, 1), 0), (1, (3, 2), 0)]


def rule_of(rows, **more):
    found, verified = inspect(star_schedule(rows, **more))
    assert (verified is None) == bool(found)
    return found[0].rule if found else None


def test_a_star_is_right():
    verified = verify(star_schedule(UP + DOWN))
    assert verified.cost.time_per_byte == Fraction(1, 10)
    assert verified.cost.steps == 2
    assert verified.link_loads.largest == verified.link_loads.smallest == 1


def test_a_switch_may_turn_sums_into_results_itself():
    rows = [(0, (rank, 3), 1) for rank in range(3)] + [(0, (3, rank), 0) for rank in range(3)]
    assert verify(star_schedule(rows)).cost.steps == 1


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (UP[1:] + DOWN, "sum-incomplete"),
        ([(1, (1, 3), 1), *UP[1:], *DOWN], "switch-stores"),
        ([*UP[:2], (1, (3, 0), 1), *DOWN], "switch-stores"),
        ([*UP[:2], *DOWN], "sum-incomplete"),
        ([*UP, (1, (0, 3), 0), (1, (3, 1), 0)], "not-delivered"),
        ([*UP, (1, (0, 3), 0)], "switch-leaf"),
        ([*UP, *DOWN[:2], (0, (3, 2), 0)], "switch-stores"),
        ([*UP, (0, (0, 3), 0), (0, (3, 1), 0), (0, (3, 2), 0)], "sent-before-received"),
        ([*UP, *DOWN, (0, (1, 3), 1)], "reduced-twice"),
        ([*UP, *DOWN, (1, (1, 3), 0)], "switch-two-parents"),
        ([(0, (3, 0), 1), *DOWN], "switch-empty"),
    ],
)
def test_what_is_wrong_has_a_name(rows, rule):
    assert rule_of(rows) == rule
    with pytest.raises(CheckFailed):
        verify(star_schedule(rows))


REDUCE = parse_collective("reduce")


def test_switches_do_only_what_they_can():
    for ability, rule in (("multicast=no", "switch-cannot-multicast"), ("reduce=no", "switch-cannot-add")):
        assert rule_of(UP + DOWN, topology=parse_topology(f"able(switch:3,10;{ability})")) == rule
    assert rule_of(UP + DOWN, topology=parse_topology("switch:3,10")) == "route-ends"
    assert rule_of(UP + DOWN, kind="stepped") == "route-ends"
    nothing = [(0, (3, 0), 1), (0, (1, 3, 0), 1), (0, (2, 3, 0), 1)]
    assert rule_of(nothing, collective=REDUCE) == "switch-empty"


def test_two_switches_cannot_feed_each_other():
    """Ranks 0 and 1 at switches 2 and 3; a sum that goes around between the switches never ends."""
    topology = parse_topology("able(switch:2,10)")
    wires = ((0, 2), (1, 3), (2, 3), (2, 1))
    links = [Link(*ends, Fraction(1)) for wire in wires for ends in (wire, wire[::-1])]
    ids = ("0", "1", "s:2", "s:3")
    two = replace(topology, node_ids=ids, links=Links.build(links), automorphisms=(), spec="two")
    two = replace(two, abilities={2: topology.abilities[2], 3: topology.abilities[2]})
    around = [(0, (0, 2), 1), (0, (2, 3), 1), (0, (3, 2), 1)]
    assert rule_of(around, topology=two, collective=REDUCE) == "switch-circle"
    results = [(0, (2, 3), 0), (0, (3, 2), 0), (0, (2, 1), 0)]
    broadcast = parse_collective("broadcast")
    assert rule_of(results, topology=two, collective=broadcast) == "switch-circle"


def test_time_of_adders_and_of_latencies():
    slow = parse_topology("able(switch:3,10;reduce-bandwidth=4)")
    assert verify(star_schedule(UP + DOWN, topology=slow)).cost.time_per_byte == Fraction(1, 4)
    links = [link._replace(latency_s=Fraction(1, 10**6)) for link in STAR.links]
    late = replace(STAR, links=Links.build(links), automorphisms=())
    cost = verify(star_schedule(UP + DOWN, topology=late)).cost
    assert cost.latency_s == Fraction(4, 10**6)  # two links up, two down


@cache
def made(spec, collective):
    return synthesized("in-network", spec, collective).schedule.expand()


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "broadcast", "reduce"])
def test_what_the_method_makes_is_right_by_another_replay(collective):
    schedule = made("able(fattree:4)", collective)
    assert schedule.is_in_network
    assert is_right(schedule)


@pytest.mark.parametrize("seed", range(6))
def test_random_fabrics_are_right_by_another_replay(seed):
    assert is_right(synthesized("in-network", random_able_fabric(seed), ALLREDUCE).schedule.expand())


@random_cases(60)
@given(st.data())
def test_damage_is_judged_as_by_the_other_replay(data):
    spec, collective = (
        data.draw(st.sampled_from(["h100:1", "able(switch:3,10)", "able(h100:1;reduce-bandwidth=100)"])),
        data.draw(st.sampled_from(["allreduce", "allgather"])),
    )
    schedule = made(spec, collective)
    row = data.draw(st.integers(0, schedule.transfer_count - 1))
    columns = [column.copy() for column in schedule.transfers.columns]
    kind = data.draw(st.sampled_from(["drop", "step", "route", "reduce"]))
    if kind == "drop":
        columns = [np.delete(column, row) for column in columns]
    else:
        limit = {"step": schedule.steps, "route": len(schedule.routes), "reduce": 2}[kind]
        columns[COLUMN_NAMES.index(kind)][row] = data.draw(st.integers(0, limit - 1))
    damaged = replace(schedule, transfers=schedule.bounds.pack(columns))
    _, verified = inspect(damaged)
    assert (verified is not None) == is_right(damaged)
