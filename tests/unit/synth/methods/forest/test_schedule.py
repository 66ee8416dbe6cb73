"""Schedules from trees: verified on the physical links, at the optimum, within what every link may carry."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.forest import tree_schedule
from chorale.synth.methods.forest.network import Trees, forest_network
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from tests.unit.synth.methods.forest.split.fabrics import random_fabric
from tests.unit.synth.methods.forest.trees_on import trees_on


def with_parallel_links(topology: Topology, seed: int) -> Topology:
    """Return `topology` with some links cut into parallel ones of a third and two thirds."""
    random = np.random.default_rng(seed)
    links = []
    for link in topology.links:
        parts = (Fraction(1, 3), Fraction(2, 3)) if random.integers(0, 2) else (Fraction(1),)
        links += [Link(link.src, link.dst, link.bandwidth * part) for part in parts]
    return Topology(topology.spec, topology.node_ids, topology.compute_count, Links.build(links))


def link_units(schedule: Schedule) -> list[int]:
    """Return the units on each link, added up row by row."""
    units = [0] * len(schedule.topology.links)
    rows = schedule.transfers
    for route, lo, hi in zip(rows.route.tolist(), rows.lo.tolist(), rows.hi.tolist(), strict=True):
        for link in schedule.routes.path(route).tolist():
            units[link] += hi - lo
    return units


@pytest.mark.parametrize("parallel", [False, True])
def test_random_fabrics_reach_their_optimum(parallel: bool) -> None:
    for seed in range(150):
        topology = random_fabric(seed)
        topology = with_parallel_links(topology, seed) if parallel else topology
        best = optimum(topology, ALLGATHER)
        schedule = trees_on(topology, ALLGATHER, best)
        assert verify(schedule).cost.time_per_byte == best.time_per_byte
        assert schedule.trees_per_root == schedule.chunks_per_shard == best.k
        limits = [int(best.trees_per_bandwidth * link.bandwidth) for link in topology.links]
        assert all(units <= limit for units, limit in zip(link_units(schedule), limits, strict=True))


def test_parallel_links_of_unequal_whole_trees_are_filled_one_by_one() -> None:
    topology = Topology(
        "pair", ("0", "1"), 2, Links.build([Link(0, 1, Fraction(1)), Link(0, 1, Fraction(2)), Link(1, 0, Fraction(3))])
    )
    schedule = trees_on(topology, ALLGATHER, fixed_k_optimum(topology, ALLGATHER, 3))
    assert verify(schedule).cost.time_per_byte == Fraction(1, 6)
    assert link_units(schedule) == [3, 2, 1]


@pytest.mark.parametrize("spec", ["a100:2", "mi250half:2", "fattree:4", "ring:5", "railclos:3,4,2,2"])
@pytest.mark.parametrize("root", [0, 3])
def test_a_broadcast_takes_the_optimum_of_its_root(spec: str, root: int) -> None:
    topology, collective = parse_topology(spec), Collective(CollectiveName.BROADCAST, root)
    best = optimum(topology, collective)
    assert verify(trees_on(topology, collective, best)).cost.time_per_byte == best.time_per_byte


def test_trees_of_a_root_take_its_shard_in_their_order() -> None:
    topology = parse_topology("ring:3")
    split = remove_switches(forest_network(topology, Fraction(10), np.full(3, 5)))
    arc = {
        (int(s), int(d)): number for number, (s, d) in enumerate(zip(split.network.src, split.network.dst, strict=True))
    }
    star = [[-1 if node == root else arc[root, node] for node in range(3)] for root in range(3)]
    trees = Trees(np.array([0, 1, 2, 0], np.int32), np.array([2, 5, 5, 3]), np.array(star + star[:1], np.int32))
    schedule = tree_schedule(
        topology, ALLGATHER, Fraction(10), split, trees, method="forest", parameters={}, certificate={}
    )
    verify(schedule)
    rows = schedule.transfers
    intervals = {(int(lo), int(hi)) for shard, lo, hi in zip(rows.shard, rows.lo, rows.hi, strict=True) if shard == 0}
    assert intervals == {(0, 2), (2, 5)}


def test_other_collectives_are_refused() -> None:
    topology = parse_topology("ring:3")
    split = remove_switches(forest_network(topology, Fraction(1), np.ones(3, dtype=np.int64)))
    with pytest.raises(InvalidInput, match="trees make an allgather or broadcast"):
        tree_schedule(
            topology,
            REDUCE_SCATTER,
            Fraction(1),
            split,
            pack_trees(split.network),
            method="forest",
            parameters={},
            certificate={},
        )
