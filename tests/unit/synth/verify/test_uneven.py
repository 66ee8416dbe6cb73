"""Verification of collectives whose shards have sizes of their own: what is missing, and what is too much."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.schedule.codec import from_json_text, from_parquet, to_json_text, to_parquet
from chorale.synth.schedule.transforms import renamed_schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify

AMOUNTS = [[1, 30, 0, 7], [2, 0, 40, 1], [0, 3, 0, 0], [9, 0, 5, 0]]


@pytest.fixture(scope="module")
def schedule():
    return traffic_schedule(plan_traffic(parse_topology("ring:4"), traffic_matrix("m", AMOUNTS)))


def rules(schedule):
    return {violation.rule for violation in inspect(schedule)[0]}


def test_it_is_right(schedule):
    assert rules(schedule) == set()
    assert sum(schedule.collective.sizes) == sum(map(sum, AMOUNTS))


def test_every_row_is_needed(schedule):
    for row in range(len(schedule.transfers)):
        kept = np.arange(len(schedule.transfers)) != row
        assert rules(replace(schedule, transfers=schedule.transfers.select(kept))) == {"not-delivered"}


def test_sizes_that_do_not_fit_are_seen(schedule):
    collective = schedule.collective
    shorter = uneven_collective(collective.name, [max(0, size - 1) for size in collective.sizes])
    longer = uneven_collective(collective.name, [*collective.sizes[:2], 1, *collective.sizes[3:]])
    too_few = uneven_collective(collective.name, collective.sizes[:-1])
    assert rules(replace(schedule, collective=shorter)) == {"sizes"}
    assert rules(replace(schedule, collective=longer)) == {"not-delivered"}
    assert rules(replace(schedule, collective=too_few)) == {"sizes"}


def test_files_give_the_same_schedule(schedule):
    assert from_parquet(to_parquet(schedule), parse_topology).id == schedule.id
    assert from_json_text(to_json_text(schedule).encode(), parse_topology).id == schedule.id
    other = replace(schedule, collective=uneven_collective(schedule.collective.name, [1] * 16))
    assert other.id != schedule.id


def test_renamed_nodes_take_their_sizes_along(schedule):
    turned = renamed_schedule(schedule, np.array([1, 2, 3, 0]), schedule.topology)
    assert verify(turned).cost == verify(schedule).cost
    sizes = np.array(turned.collective.sizes).reshape(4, 4)
    assert sizes[1].tolist() == [AMOUNTS[0][3], AMOUNTS[0][0], AMOUNTS[0][1], AMOUNTS[0][2]]


@pytest.mark.parametrize("sizes", [(), (0, 0), (1, -1)])
def test_sizes_must_be_some(sizes):
    with pytest.raises(InvalidInput):
        uneven_collective(CollectiveName.ALLGATHERV, sizes)


def test_sizes_are_for_uneven_collectives():
    with pytest.raises(InvalidInput):
        uneven_collective(CollectiveName.ALLGATHER, (1, 2))
