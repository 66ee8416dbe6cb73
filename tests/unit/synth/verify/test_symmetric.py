"""Fault injection: the check of symmetric schedules never accepts what the full replay refuses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.schedule import COLUMN_NAMES, Transfers
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import transpose
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases
from tests.symmetric_networks import unequal_torus

SERIAL = SerialExecutor()
NETWORKS = {
    spec: parse_topology(spec)
    for spec in ("torus:4x3", "hypercube:3", "hamming:3,2", "circulant:9,1,2", "dicirculant:3", "bipartite:3")
} | {"unequal": unequal_torus()}


def with_base(schedule, base):
    """Return `schedule` with `base` in the place of the rows of its first part."""
    part = schedule.parts[0]
    damaged = SymmetricGather(part.topology, part.steps, part.chunks_per_shard, base, part.certificate)
    return replace(schedule, **{"scatter" if part is schedule.scatter else "gather": damaged})


def with_value(base, name, row, value):
    columns = [column.copy() for column in base.columns]
    columns[COLUMN_NAMES.index(name)][row] = value
    return Transfers(*columns)


def rules(schedule):
    return {violation.rule for violation in inspect(schedule)[0]}


@random_cases(200)
@given(st.data())
def test_what_is_accepted_is_right_and_costs_what_it_says(data):
    topology = NETWORKS[data.draw(st.sampled_from(sorted(NETWORKS)))]
    collective = data.draw(st.sampled_from([ALLGATHER, REDUCE_SCATTER, ALLREDUCE]))
    schedule = symmetric_bfb(topology, collective, SERIAL, 2)
    part = schedule.parts[0]
    row = data.draw(st.integers(0, len(part.base) - 1))
    degree = int(np.searchsorted(part.topology.links.dst, 1))
    name = data.draw(st.sampled_from(["step", "route", "shard", "lo", "hi", "drop", "twice"]))
    if name in ("drop", "twice"):
        repeats = np.ones(len(part.base), dtype=np.int64)
        repeats[row] = 0 if name == "drop" else 2
        base = part.base.select(np.repeat(np.arange(len(part.base)), repeats))
    else:
        most = {"step": part.steps, "route": degree, "shard": topology.compute_count, "lo": 2, "hi": 3}[name]
        base = with_value(part.base, name, row, data.draw(st.integers(0, most - 1)))
    damaged = with_base(schedule, base)
    _, verified = inspect(damaged)
    _, replayed = inspect(damaged.expand())
    if verified is not None:
        assert replayed is not None
        assert (verified.cost, verified.link_loads) == (replayed.cost, replayed.link_loads)
    if name == "drop":
        assert verified is None
        assert replayed is None


@random_cases(50)
@given(st.sampled_from(sorted(NETWORKS)), st.data())
def test_a_row_that_runs_too_early_is_noticed_by_both(spec, data):
    schedule = symmetric_bfb(NETWORKS[spec], ALLGATHER, SERIAL)
    base = schedule.gather.base
    row = data.draw(st.integers(0, len(base) - 1))
    assume(base.step[row] > 0)
    damaged = with_base(schedule, with_value(base, "step", row, base.step[row] - 1))
    assert "sent-before-received" in rules(damaged)
    assert "sent-before-received" in {violation.rule for violation in inspect(damaged.expand())[0]}


def test_a_second_delivery_is_counted_when_gathering_and_refused_when_reducing():
    for collective, fault in ((ALLGATHER, set()), (REDUCE_SCATTER, {"reduced-twice"})):
        schedule = symmetric_bfb(NETWORKS["torus:4x3"], collective, SERIAL)
        base = schedule.parts[0].base
        damaged = with_base(schedule, base.select(np.append(np.arange(len(base)), 0)))
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
    schedule = symmetric_bfb(parse_topology("torus:4x3"), ALLGATHER, SERIAL)
    assert rule in rules(with_base(schedule, with_value(schedule.gather.base, name, 3, value)))


def test_too_many_steps_are_named():
    gather = symmetric_bfb(parse_topology("torus:4x3"), ALLGATHER, SERIAL).gather
    endless = SymmetricGather(gather.topology, 10**12, gather.chunks_per_shard, gather.base)
    schedule = SymmetricSchedule(gather.topology, ALLGATHER, None, endless, "bfb", {})
    assert "steps" in rules(schedule)


def test_columns_of_another_type_are_named():
    schedule = symmetric_bfb(parse_topology("torus:4x3"), ALLGATHER, SERIAL)
    wide = Transfers(*(column.astype(np.uint32) for column in schedule.gather.base.columns))
    assert rules(with_base(schedule, wide)) == {"column-type"}


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
