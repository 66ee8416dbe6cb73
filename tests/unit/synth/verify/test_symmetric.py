"""Fault injection: the checks of symmetric schedules accept nothing that the full replay refuses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.forest.symmetric import symmetric_forest
from chorale.synth.schedule.schedule import COLUMN_NAMES, Transfers
from chorale.synth.schedule.symmetric import SymmetricSchedule, SymmetricTrees
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import transpose
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases
from tests.symmetric_networks import unequal_torus

SERIAL = SerialExecutor()
COLLECTIVES = (ALLGATHER, REDUCE_SCATTER, ALLREDUCE)
GATHERS = ("torus:4x3", "hypercube:3", "hamming:3,2", "circulant:9,1,2", "dicirculant:3", "bipartite:3")
NETWORKS = {spec: parse_topology(spec) for spec in GATHERS} | {"unequal": unequal_torus()}
TREES = {
    (spec, collective): symmetric_forest(parse_topology(spec), collective, "forest", {})
    for spec in ("torus:4x3", "hypercube:3", "a100:3", "fattree:4", "mi250half:3", "twisted-torus:2x6,3")
    for collective in COLLECTIVES
}


def with_part(schedule, **changes):
    part = schedule.parts[0]
    return replace(schedule, **{"scatter" if part is schedule.scatter else "gather": replace(part, **changes)})


def with_value(schedule, name, row, value):
    columns = [column.copy() for column in schedule.parts[0].base.columns]
    columns[COLUMN_NAMES.index(name)][row] = value
    return with_part(schedule, base=Transfers(*columns))


def rules(schedule):
    return {violation.rule for violation in inspect(schedule)[0]}


def check_damage(schedule, data):
    """Damage a row of the first part; check that what is accepted is right and costs what it says."""
    part = schedule.parts[0]
    row = data.draw(st.integers(0, len(part.base) - 1))
    degree, chunks = int(np.searchsorted(part.topology.links.dst, 1)), part.chunks_per_shard
    are_trees = isinstance(part, SymmetricTrees)
    name = data.draw(st.sampled_from(["step", "route", "shard", "lo", "hi", "drop", "twice"]))
    if name in ("drop", "twice"):
        repeats = np.ones(len(part.base), dtype=np.int64)
        repeats[row] = 0 if name == "drop" else 2
        damaged = with_part(schedule, base=part.base.select(np.repeat(np.arange(len(part.base)), repeats)))
    else:
        shards = part.translations.first_ranks.tolist() if are_trees else range(part.topology.compute_count)
        routes = range(len(part.routes) if are_trees else degree)
        values = {"step": range(part.steps), "route": routes, "shard": shards, "lo": range(chunks)}
        damaged = with_value(schedule, name, row, data.draw(st.sampled_from(values.get(name, range(chunks + 1)))))
    (_, verified), (_, replayed) = inspect(damaged), inspect(damaged.expand())
    if verified is not None:
        assert replayed is not None
        assert (verified.cost, verified.link_loads) == (replayed.cost, replayed.link_loads)
    assert not are_trees or (verified is None) == (replayed is None)
    assert name != "drop" or (verified is None and replayed is None)


@random_cases(200)
@given(st.sampled_from(sorted(NETWORKS)), st.sampled_from(COLLECTIVES), st.data())
def test_gathers_that_are_accepted_are_right_and_cost_what_they_say(spec, collective, data):
    check_damage(symmetric_bfb(NETWORKS[spec], collective, SERIAL, 2), data)


@random_cases(150)
@given(st.sampled_from(list(TREES)), st.data())
def test_trees_that_are_accepted_are_those_that_the_replay_accepts(key, data):
    check_damage(TREES[key], data)


@random_cases(50)
@given(st.sampled_from(sorted(NETWORKS)), st.data())
def test_a_row_that_runs_too_early_is_noticed_by_both(spec, data):
    schedule = symmetric_bfb(NETWORKS[spec], ALLGATHER, SERIAL)
    base = schedule.gather.base
    row = data.draw(st.sampled_from(np.flatnonzero(base.step > 0).tolist()))
    damaged = with_value(schedule, "step", row, base.step[row] - 1)
    assert "sent-before-received" in rules(damaged)
    assert "sent-before-received" in {violation.rule for violation in inspect(damaged.expand())[0]}


def test_a_second_delivery_is_counted_when_gathering_and_refused_when_reducing():
    for collective, fault in ((ALLGATHER, set()), (REDUCE_SCATTER, {"reduced-twice"})):
        schedule = symmetric_bfb(NETWORKS["torus:4x3"], collective, SERIAL)
        base = schedule.parts[0].base
        damaged = with_part(schedule, base=base.select(np.append(np.arange(len(base)), 0)))
        assert rules(damaged) == fault
        if not fault:
            loads = verify(damaged).link_loads
            assert loads == inspect(damaged.expand())[1].link_loads
            assert loads.duplicate_deliveries == 12 * int(base.hi[0] - base.lo[0])


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("step", 200, "column-range"),
        ("route", 4, "column-range"),
        ("shard", 200, "column-range"),
        ("hi", 0, "interval"),
        ("reduce", 1, "column-range"),
    ],
)
def test_rows_out_of_form_are_named(name, value, rule):
    schedule = symmetric_bfb(NETWORKS["torus:4x3"], ALLGATHER, SERIAL)
    assert rule in rules(with_value(schedule, name, 3, value))
    assert "steps" in rules(with_part(schedule, steps=10**12))
    wide = Transfers(*(column.astype(np.uint32) for column in schedule.gather.base.columns))
    assert rules(with_part(schedule, base=wide)) == {"column-type"}


def test_a_symmetry_that_is_none_is_noticed():
    mesh = parse_topology("mesh:5")
    turned = np.roll(np.arange(5, dtype=np.int32), 1)
    schedule = symmetric_bfb(replace(mesh, automorphisms=(turned,)), ALLGATHER, SERIAL)
    assert rules(schedule) == {"symmetry"}
    with pytest.raises(CheckFailed, match="generator 0 does not keep the links of mesh:5"):
        verify(schedule)


def test_parts_of_another_collective_or_network_are_noticed():
    ring, other = parse_topology("uniring:1,5"), parse_topology("ring:5")
    gather = symmetric_bfb(ring, ALLGATHER, SERIAL).gather
    foreign = symmetric_bfb(other, ALLGATHER, SERIAL).gather
    backwards = symmetric_bfb(transpose(ring), ALLGATHER, SERIAL).gather
    assert rules(SymmetricSchedule(ring, ALLREDUCE, None, gather, "bfb", {})) == {"parts"}
    assert rules(SymmetricSchedule(ring, ALLGATHER, None, foreign, "bfb", {})) == {"parts"}
    assert rules(SymmetricSchedule(ring, REDUCE_SCATTER, gather, None, "bfb", {})) == {"parts"}
    assert rules(SymmetricSchedule(ring, REDUCE_SCATTER, backwards, None, "bfb", {})) == set()


def test_damage_to_trees_is_named():
    schedule = TREES["a100:3", ALLGATHER]
    assert rules(with_value(schedule, "shard", 0, 9)) == {"base-shard"}
    assert rules(with_value(schedule, "reduce", 0, 1)) == {"unexpected-reduce"}
    links = schedule.gather.routes.link_ids.copy()
    links[1] = links[0]
    broken = with_part(schedule, routes=replace(schedule.gather.routes, link_ids=links))
    assert rules(broken) == {"route-broken"}
    assert rules(replace(schedule, collective=ALLREDUCE)) == {"parts"}
    assert "parts" in rules(replace(schedule, topology=parse_topology("a100:4")))
    base = schedule.gather.base
    with pytest.raises(CheckFailed, match=r"is missing .* at rank"):
        verify(with_part(schedule, base=base.select(np.arange(len(base) - 1))))
    schedule = TREES["torus:4x3", ALLGATHER]
    shift = np.roll(np.arange(12, dtype=np.int32), -1)  # moves every rank, and tears rows apart
    false = replace(schedule.topology, automorphisms=(shift,))
    part = replace(schedule.gather, topology=false, generators=(0,))
    assert rules(replace(schedule, topology=false, gather=part)) == {"symmetry"}
