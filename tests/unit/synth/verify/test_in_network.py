"""Schedules in which switches act: what is accepted, what each damage is called, costs with adders and latencies."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import CheckFailed
from chorale.synth.schedule.schedule import COLUMN_NAMES, Routes
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases
from tests.reference.replays import is_right
from tests.unit.synth.lowering.programs import schedule_of

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
    violations, verified = inspect(star_schedule(rows, **more))
    assert (verified is None) == bool(violations)
    return violations[0].rule if violations else None


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


SPECS = ["h100:1", "able(switch:3,10)", "able(h100:1;reduce-bandwidth=100)"]


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
    spec, collective = data.draw(st.sampled_from(SPECS)), data.draw(st.sampled_from(["allreduce", "allgather"]))
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
