"""Fault injection: the check of trees in symmetric form accepts exactly what the full replay accepts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import CheckFailed
from chorale.synth.methods.forest.symmetric.symmetric_forest import symmetric_forest
from chorale.synth.schedule.schedule import COLUMN_NAMES, Transfers
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases

SPECS = ("torus:4x3", "hypercube:3", "a100:3", "fattree:4", "mi250half:3", "twisted-torus:2x6,3")
NETWORKS = {spec: parse_topology(spec) for spec in SPECS}
WHOLE = {
    (spec, collective): symmetric_forest(topology, collective, "forest", {})
    for spec, topology in NETWORKS.items()
    for collective in (ALLGATHER, REDUCE_SCATTER, ALLREDUCE)
}


def with_part(schedule, **changes):
    """Return `schedule` with changes to its first part."""
    part = schedule.parts[0]
    return replace(schedule, **{"scatter" if part is schedule.scatter else "gather": replace(part, **changes)})


def rules(schedule):
    return {violation.rule for violation in inspect(schedule)[0]}


def with_value(base, name, row, value):
    columns = [column.copy() for column in base.columns]
    columns[COLUMN_NAMES.index(name)][row] = value
    return Transfers(*columns)


@random_cases(150)
@given(st.sampled_from(sorted(NETWORKS)), st.sampled_from([ALLGATHER, REDUCE_SCATTER, ALLREDUCE]), st.data())
def test_what_is_accepted_is_what_the_replay_accepts(spec, collective, data):
    schedule = WHOLE[spec, collective]
    part = schedule.parts[0]
    row = data.draw(st.integers(0, len(part.base) - 1))
    name = data.draw(st.sampled_from(["step", "route", "shard", "lo", "hi", "drop", "twice"]))
    if name in ("drop", "twice"):
        repeats = np.ones(len(part.base), dtype=np.int64)
        repeats[row] = 0 if name == "drop" else 2
        base = part.base.select(np.repeat(np.arange(len(part.base)), repeats))
    elif name == "shard":
        base = with_value(part.base, name, row, int(data.draw(st.sampled_from(list(part.translations.first_ranks)))))
    else:
        chunks = part.chunks_per_shard
        most = {"step": part.steps, "route": len(part.routes), "lo": chunks, "hi": chunks + 1}[name]
        base = with_value(part.base, name, row, data.draw(st.integers(0, most - 1)))
    damaged = with_part(schedule, base=base)
    _, verified = inspect(damaged)
    _, replayed = inspect(damaged.expand())
    assert (verified is None) == (replayed is None)
    if verified is not None:
        assert (verified.cost, verified.link_loads) == (replayed.cost, replayed.link_loads)
    if name == "drop":
        assert verified is None


def test_a_generator_that_keeps_no_links_is_noticed():
    schedule = WHOLE["torus:4x3", ALLGATHER]
    topology = schedule.topology
    shift = np.roll(np.arange(12, dtype=np.int32), -1)  # moves every rank, and tears rows apart
    false = replace(topology, automorphisms=(shift,))
    part = replace(schedule.gather, topology=false, generators=(0,))
    assert rules(replace(schedule, topology=false, gather=part)) == {"symmetry"}


def test_rows_of_other_shards_are_noticed():
    schedule = WHOLE["a100:3", ALLGATHER]
    damaged = with_part(schedule, base=with_value(schedule.gather.base, "shard", 0, 9))
    assert rules(damaged) == {"base-shard"}


def test_a_sum_in_a_gather_is_noticed():
    schedule = WHOLE["a100:3", ALLGATHER]
    damaged = with_part(schedule, base=with_value(schedule.gather.base, "reduce", 0, 1))
    assert rules(damaged) == {"unexpected-reduce"}


def test_broken_routes_are_noticed():
    schedule = WHOLE["a100:3", ALLGATHER]
    links = schedule.gather.routes.link_ids.copy()
    links[1] = links[0]
    damaged = with_part(schedule, routes=replace(schedule.gather.routes, link_ids=links))
    assert rules(damaged) == {"route-broken"}


def test_parts_of_the_wrong_collective_or_network_are_noticed():
    schedule = WHOLE["fattree:4", ALLGATHER]
    assert rules(replace(schedule, collective=ALLREDUCE)) == {"parts"}
    assert "parts" in rules(replace(schedule, topology=parse_topology("fattree:6")))


def test_the_first_fault_is_named():
    schedule = WHOLE["hypercube:3", ALLGATHER]
    base = schedule.gather.base
    with pytest.raises(CheckFailed) as error:
        verify(with_part(schedule, base=base.select(np.arange(len(base) - 1))))
    assert "is missing at rank" in error.value.value
