"""Groups at once: plans that verify, bounds that hold, trees that are cheapest."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    REDUCE_SCATTER,
    CollectiveName,
    parse_collective,
    uneven_collective,
)
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group, network_of_group
from chorale.synth.methods.groups.packing import cheapest_tree, pack_groups, shared_schedules, time_together, tree_cost
from chorale.synth.methods.groups.rings import pack_over_rails
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases


def whole(topology, collective, amount=12):
    return Group("all", collective, tuple(range(topology.compute_count)), amount)


@given(st.integers(2, 5), st.integers(0, 10**6))
@random_cases(25)
def test_trees_are_cheapest_of_all(nodes, seed):
    cost = np.random.default_rng(seed).integers(0, 7, (nodes, nodes)).astype(float)
    parents = [tree for tree in product(range(nodes), repeat=nodes - 1) if spans(tree)]
    least = min(sum(cost[above, node] for node, above in enumerate(tree, 1)) for tree in parents)
    parent = cheapest_tree(cost, 0)
    assert spans(tuple(parent[1:]))
    assert tree_cost(cost, parent) == least
    ring = parse_topology(f"complete:{nodes}")
    prices = [int(cost[link.src, link.dst]) for link in ring.links]
    group = Group("g", ALLGATHER, tuple(range(nodes)), nodes)
    earned = sum(prices)
    closed = closure(cost)
    roots = [
        min(sum(closed[above, node] for node, above in edges(tree, root)) for tree in parents) for root in range(nodes)
    ]
    assert proven_time(ring, [group], prices) == (Fraction(int(sum(roots)), earned) if earned else 0)


def closure(cost):
    closed = cost.copy()
    np.fill_diagonal(closed, 0)
    for middle in range(len(cost)):
        closed = np.minimum(closed, closed[:, middle, None] + closed[middle])
    return closed


def edges(tree, root):
    """Yield (node, parent) of a tree from node 0 with nodes 0 and `root` swapped."""
    swap = {0: root, root: 0}
    for node, above in enumerate(tree, 1):
        yield swap.get(node, node), swap.get(above, above)


def spans(tree):
    for start in range(1, len(tree) + 1):
        node, steps = start, 0
        while node and steps <= len(tree):
            node, steps = tree[node - 1], steps + 1
        if node:
            return False
    return True


@pytest.mark.parametrize("spec", ["ring:4", "mesh:2x2", "uniring:1,4"])
def test_one_group_of_all_ranks_meets_the_optimum_of_its_collective(spec):
    topology = parse_topology(spec)
    for collective in (ALLGATHER, REDUCE_SCATTER):
        shared = shared_schedules(topology, pack_groups(topology, [whole(topology, collective)]))
        best = optimum(topology, collective).time_per_byte * 12
        assert shared.lower <= best <= shared.time
        assert float(shared.lower) == pytest.approx(float(best), rel=1e-3)
        assert shared.gap < Fraction(1, 50)
    rate = alltoall_rate(topology)
    packing = pack_groups(topology, [whole(topology, ALLTOALL)])
    least = Fraction(12, topology.compute_count) / rate.upper
    assert packing.lower <= least
    assert float(packing.lower) == pytest.approx(float(least), rel=1e-3)


def two_by_three():
    """Return tensor-parallel neighbours, data-parallel pairs and experts on all of six ranks."""
    tensor = [Group(f"tp{first}", ALLREDUCE, tuple(range(first, first + 3)), 100) for first in (0, 3)]
    data = [Group(f"dp{first}", REDUCE_SCATTER, (first, first + 3), 60) for first in range(3)]
    return [*tensor, *data, Group("ep", ALLTOALL, tuple(range(6)), 40)]


def test_groups_together_are_near_their_bound_and_better_than_alone():
    topology = parse_topology("ring:6")
    groups = two_by_three()
    packing = pack_groups(topology, groups)
    shared = shared_schedules(topology, packing)
    assert packing.lower == proven_time(topology, groups, packing.prices.tolist())
    assert 0 <= shared.gap < Fraction(1, 100)
    alone = [shared_schedules(topology, pack_groups(topology, [group])).members[0] for group in groups]
    assert time_together(topology, [member.loads for member in alone]) > shared.time
    again = shared_schedules(topology, pack_groups(topology, groups))
    assert [member.verified.schedule.id for member in again.members] == [
        member.verified.schedule.id for member in shared.members
    ]
    loads = [sum(column) for column in zip(*(member.loads for member in shared.members), strict=True)]
    assert all(load <= shared.time * link.bandwidth for load, link in zip(loads, topology.links, strict=True))


def test_every_row_of_a_group_is_needed():
    topology = parse_topology("ring:4")
    shared = shared_schedules(topology, pack_groups(topology, [whole(topology, ALLREDUCE)]), 4)
    schedule = shared.members[0].verified.schedule
    for row in range(len(schedule.transfers)):
        kept = np.arange(len(schedule.transfers)) != row
        assert inspect(replace(schedule, transfers=schedule.transfers.select(kept)))[0]


def test_other_ranks_only_pass_on():
    topology = parse_topology("ring:6")
    group = Group("g", ALLGATHER, (0, 2, 4), 3)
    network = network_of_group(topology, group)
    assert (network.topology.compute_count, network.topology.switch_count) == (3, 3)
    for link, seen in zip(topology.links, network.link.tolist(), strict=True):
        there = network.topology.links[seen]
        names = network.topology.node_ids[there.src], network.topology.node_ids[there.dst]
        assert names == (topology.node_ids[link.src], topology.node_ids[link.dst])
    shared = shared_schedules(topology, pack_groups(topology, [group]))
    assert shared.gap == 0
    assert verify(shared.members[0].verified.schedule)


@pytest.mark.parametrize(
    ("groups", "rule"),
    [
        ([], "no group is given"),
        ([Group("a", ALLGATHER, (0,), 1)], "must have 2 to 64"),
        ([Group("a", ALLGATHER, (0, 9), 1)], "of the ranks 0 to 3"),
        ([Group("a", ALLGATHER, (1, 0), 1)], r"the ranks of a group must be in ascending order, got \(1, 0\) in a"),
        ([Group("a", ALLGATHER, (0, 1), 0)], "must be 1 to 2"),
        ([Group("a", uneven_collective(CollectiveName.ALLGATHERV, (1, 1)), (0, 1), 1)], "groups run"),
        ([Group("a", ALLGATHER, (0, 1), 1)] * 2, "two groups have the same name"),
    ],
)
def test_what_is_no_group_is_refused(groups, rule):
    with pytest.raises(InvalidInput, match=rule):
        pack_groups(parse_topology("ring:4"), groups)


@pytest.mark.parametrize("prices", [[1] * 7, [1] * 7 + [-1], [1] * 7 + [0.5]])
def test_other_prices_prove_nothing(prices):
    topology = parse_topology("ring:4")
    with pytest.raises(CheckFailed):
        proven_time(topology, [whole(topology, ALLGATHER)], prices)


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce"])
@pytest.mark.parametrize(
    "spec", ["scaled(complete:3;link=0>1;factor=1/1000)", "scaled(ring:4;link=2>3;factor=1/50)", "mesh:2x2"]
)
def test_one_group_is_bounded_as_its_collective_is(spec, name):
    """Also where links differ per direction: prices of link pairs alone proved next to nothing there."""
    topology = parse_topology(spec)
    collective = parse_collective(name, 1 if name != "allreduce" else 0)
    shared = shared_schedules(topology, packing := pack_groups(topology, [whole(topology, collective)]))
    assert packing.lower >= lower_bound(topology, collective).value * 12 * Fraction(999, 1000)
    assert packing.lower == proven_time(topology, packing.groups, packing.prices.tolist())
    assert packing.lower <= shared.time <= packing.lower * Fraction(3, 2)


@pytest.mark.parametrize("spec", ["h100:2", "a100:3"])
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "allgather"])
def test_groups_on_boxes_with_rails_meet_their_bound_in_closed_form(spec, name):
    topology = parse_topology(spec)
    ranks = topology.compute_count
    collective = parse_collective(name)
    box = [Group(f"tp{first}", ALLREDUCE, tuple(range(first, first + 8)), 100) for first in range(0, ranks, 8)]
    rails = [Group(f"dp{place}", collective, tuple(range(place, ranks, 8)), 40) for place in range(8)]
    packing = pack_over_rails(topology, (*box, *rails, Group("all", collective, tuple(range(ranks)), 10)))
    shared = shared_schedules(topology, packing)
    assert packing.lower == proven_time(topology, packing.groups, packing.prices.tolist())
    assert packing.lower <= shared.time <= packing.lower * Fraction(101, 100)
