"""Groups at once: plans that verify, bounds that hold, trees that are cheapest."""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

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
from chorale.synth.verify.verify import verify
from tests.properties import random_cases


def whole(topology, collective, amount=12):
    return Group("all", collective, tuple(range(topology.compute_count)), amount)


@given(st.integers(2, 5), st.integers(0, 10**6))
@random_cases(25)
def test_trees_are_cheapest_of_all(nodes, seed):
    cost = np.random.default_rng(seed).integers(0, 7, (nodes, nodes)).astype(float)
    np.fill_diagonal(cost, 0)
    parent = cheapest_tree(cost, 0)
    assert nx.is_arborescence(nx.DiGraph((above, node) for node, above in enumerate(parent.tolist()) if node))
    assert tree_cost(cost, parent) == least_cost(cost, 0)
    ring = parse_topology(f"complete:{nodes}")
    prices = [int(cost[link.src, link.dst]) for link in ring.links]
    group = Group("g", ALLGATHER, tuple(range(nodes)), nodes)
    closed = np.array(nx.floyd_warshall_numpy(graph_of(cost)))
    paid = sum(least_cost(closed, root) for root in range(nodes))
    assert proven_time(ring, [group], prices) == (Fraction(int(paid), sum(prices)) if sum(prices) else 0)


def graph_of(cost):
    graph, nodes = nx.DiGraph(), range(len(cost))
    graph.add_weighted_edges_from((a, b, cost[a, b]) for a in nodes for b in nodes if a != b)
    return graph


def least_cost(cost, root):
    """Return the cost of a cheapest tree from `root`, which nothing may enter."""
    graph = graph_of(cost)
    graph.remove_edges_from(list(graph.in_edges(root)))
    return nx.minimum_spanning_arborescence(graph).size("weight")


@pytest.mark.parametrize("spec", ["mesh:2x2", "uniring:1,4"])
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


def test_groups_together_are_near_their_bound_and_better_than_alone():
    """Tensor-parallel neighbours, data-parallel pairs and experts on all of six ranks."""
    topology = parse_topology("ring:6")
    tensor = [Group(f"tp{first}", ALLREDUCE, tuple(range(first, first + 3)), 100) for first in (0, 3)]
    data = [Group(f"dp{first}", REDUCE_SCATTER, (first, first + 3), 60) for first in range(3)]
    groups = [*tensor, *data, Group("ep", ALLTOALL, tuple(range(6)), 40)]
    packing = pack_groups(topology, groups)
    shared = shared_schedules(topology, packing)
    assert packing.lower == proven_time(topology, groups, packing.prices.tolist())
    assert 0 <= shared.gap < Fraction(1, 100)
    alone = [shared_schedules(topology, pack_groups(topology, [group])).members[0] for group in groups]
    assert time_together(topology, [member.loads for member in alone]) > shared.time
    loads = sum(member.loads.links.astype(object) * member.loads.unit for member in shared.members)
    assert all(load <= shared.time * link.bandwidth for load, link in zip(loads, topology.links, strict=True))


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
        ([Group("a", ALLGATHER, (0,), 1)], "must have 2 to 1024"),
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


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce"])
@pytest.mark.parametrize("spec", ["scaled(complete:3;link=0>1;factor=1/1000)", "mesh:2x2"])
def test_one_group_is_bounded_as_its_collective_is(spec, name):
    """Also where links differ per direction: prices of link pairs alone proved next to nothing there."""
    topology = parse_topology(spec)
    collective = parse_collective(name, 1 if name != "allreduce" else 0)
    shared = shared_schedules(topology, packing := pack_groups(topology, [whole(topology, collective)]))
    prices = packing.prices.tolist()
    assert packing.lower >= lower_bound(topology, collective).value * 12 * Fraction(999, 1000)
    assert packing.lower == proven_time(topology, packing.groups, prices)
    assert packing.lower <= shared.time <= packing.lower * Fraction(3, 2)
    for wrong in (prices[1:], [*prices[1:], -1], [*prices[1:], 0.5]):
        with pytest.raises(CheckFailed):
            proven_time(topology, packing.groups, wrong)


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "allgather", "broadcast", "reduce"])
@pytest.mark.parametrize("spec", ["h100:2", "a100:3"])
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
