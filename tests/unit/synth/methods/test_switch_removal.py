"""Removal of switches: nothing is lost, every path is real, and what cannot be done is refused by name."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.network import ForestNetwork, narrow_cuts
from chorale.synth.methods.forest.switch_removal import SplitNetwork, remove_switches
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.forest_networks import network_of, optimal_network
from tests.random_fabrics import random_fabric
from tests.reference.cuts import violated_sink_sides


def carries(network: ForestNetwork) -> bool:
    """Whether every cut holds, tried one by one."""
    arcs = zip(network.src.tolist(), network.dst.tolist(), network.capacity.tolist(), strict=True)
    sinks = range(network.compute_count)
    return next(violated_sink_sides(network.nodes, list(arcs), network.supply.tolist(), sinks), None) is None


def assert_paths_are_real(split: SplitNetwork) -> None:
    """Every piece is a path between the ends of its arc that visits no node twice; loads stay within capacity."""
    original, network, pieces = split.original, split.network, split.pieces
    load = np.zeros(len(original.src), dtype=np.int64)
    for arc in range(len(network.src)):
        total = 0
        for piece in range(pieces.offsets[arc], pieces.offsets[arc + 1]):
            start, units = pieces.start[piece], int(pieces.amount[piece])
            path = pieces.hops[start : start + pieces.length[piece]].tolist()
            visited = [int(original.src[path[0]]), *(int(original.dst[hop]) for hop in path)]
            assert visited[0] == network.src[arc]
            assert visited[-1] == network.dst[arc]
            assert all(original.src[hop] == node for hop, node in zip(path, visited, strict=False))
            assert len(set(visited)) == len(visited)
            assert units > 0
            load[path] += units
            total += units
        assert total == network.capacity[arc]
    assert (load <= original.capacity).all()


def assert_lossless(network: ForestNetwork, patience: int) -> None:
    split = remove_switches(network, patience)
    assert split.network.nodes == network.compute_count
    assert carries(split.network)
    assert_paths_are_real(split)


def merged(topology: Topology) -> Topology:
    """Return `topology` with one link for all parallel ones, so that whole trees need not balance at switches."""
    rates = Counter[tuple[int, int]]()
    for link in topology.links:
        rates[link.src, link.dst] += link.bandwidth  # type: ignore[assignment]
    return replace(topology, links=Links.build(Link(*ends, Fraction(rate)) for ends, rate in rates.items()))


@pytest.mark.parametrize("patience", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_nothing_is_lost_at_the_optimum_and_for_whole_trees(patience: int) -> None:
    unbalanced = 0
    for seed in range(100):
        topology = merged(random_fabric(seed))
        network = optimal_network(topology)
        assert carries(network)
        assert_lossless(network, patience)
        network = optimal_network(topology, 1 + seed // 2 % 2)
        entering, leaving = (np.bincount(ends, network.capacity, network.nodes) for ends in (network.dst, network.src))
        unbalanced += bool((entering != leaving).any())
        assert_lossless(network, patience)
    assert unbalanced > 0


def test_a_switch_with_more_trees_out_than_in_is_refused_by_its_name() -> None:
    arcs = [(0, 3, 1), (3, 1, 1), (3, 2, 1), (1, 0, 1), (2, 0, 1)]
    network = replace(network_of(4, arcs, [1, 0, 0, 0]), compute_count=3)
    with pytest.raises(InvalidInput, match="switch node 3, with 1 trees in and 2 trees out left to join"):
        remove_switches(network, names=[f"node {number}" for number in range(4)])


@pytest.mark.parametrize(
    ("spec", "k", "longest"),
    [
        ("a100:4", 1, 4),
        ("mi250:2", None, 2),
        ("fattree:8", None, 6),
        ("dragonfly:4,2,2", None, 5),
        ("without(a100:16;node=3)", None, 4),
    ],
)
def test_routes_of_fabrics_are_shortest(spec: str, k: int | None, longest: int) -> None:
    split = remove_switches(optimal_network(parse_topology(spec), k))
    assert len(narrow_cuts(split.network, 1)) == 0
    assert split.pieces.length.max() == longest
    assert_paths_are_real(split)
    ranks = split.network.nodes
    assert len(split.network.src) == ranks * (ranks - 1) or spec not in (
        "fattree:8",
        "dragonfly:4,2,2",
    )  # no bottleneck
