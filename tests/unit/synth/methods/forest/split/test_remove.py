"""Removal of switches: nothing is lost, every path is real, and what cannot be done is refused by name."""

import numpy as np
import pytest
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.network import ForestNetwork, narrow_cuts
from chorale.synth.methods.forest.split.splitting_off import SplitNetwork
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.topology.spec import parse_topology
from tests.unit.synth.methods.forest.split.fabrics import carries, optimal_network, random_fabric

SEEDS = range(300)


def assert_paths_are_real(split: SplitNetwork) -> None:
    """Every piece is a path between the ends of its arc that visits no node twice; loads stay within capacity."""
    original, network = split.original, split.network
    load = np.zeros(len(original.src), dtype=np.int64)
    for arc in range(len(network.src)):
        total = 0
        for units, path in split.paths(arc):
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


@pytest.mark.parametrize("patience", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_nothing_is_lost_at_the_optimum(patience: int) -> None:
    for seed in SEEDS:
        network = optimal_network(random_fabric(seed))
        assert carries(network)
        assert_lossless(network, patience)


@pytest.mark.parametrize("patience", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_whole_trees_are_kept_or_a_switch_with_more_out_than_in_is_named(patience: int) -> None:
    refused = unbalanced = 0
    for seed in SEEDS:
        network = optimal_network(random_fabric(seed), 1 + seed % 2)
        entering, leaving = (np.bincount(ends, network.capacity, network.nodes) for ends in (network.dst, network.src))
        unbalanced += bool((entering != leaving).any())
        try:
            assert_lossless(network, patience)
        except InvalidInput:
            refused += 1
            assert (surplus_out(network) > 0).any()
    assert 0 < refused < unbalanced


def surplus_out(network: ForestNetwork) -> NDArray[np.int64]:
    """Capacity out beyond capacity in, per switch."""
    balance = np.zeros(network.nodes, dtype=np.int64)
    np.add.at(balance, network.src, network.capacity)
    np.subtract.at(balance, network.dst, network.capacity)
    return balance[network.compute_count :]


def network_of(ranks: int, supply: int, arcs: list[tuple[int, int, int]]) -> ForestNetwork:
    nodes = max(max(src, dst) for src, dst, _ in arcs) + 1
    src, dst, capacity = zip(*sorted(arcs, key=lambda arc: (arc[1], arc[0])), strict=True)
    supplies = np.array([supply] * ranks + [0] * (nodes - ranks))
    return ForestNetwork(
        ranks, nodes, np.array(src, np.int32), np.array(dst, np.int32), np.array(capacity), supplies
    )  # fmt: skip


def test_a_refused_switch_is_called_by_its_name() -> None:
    network = optimal_network(random_fabric(50), 1)
    names = [f"node {number}" for number in range(network.nodes)]
    with pytest.raises(InvalidInput, match=r"switch node 7, with \d+ trees in and \d+ trees out left to join"):
        remove_switches(network, names=names)


@pytest.mark.parametrize(
    ("spec", "k", "longest"),
    [
        ("a100:2", None, 4),
        ("a100:4", 1, 4),
        ("mi250:2", None, 2),
        ("railclos:4,4,2,2", None, 4),
        ("fattree:8", None, 6),
        ("dragonfly:4,2,2", None, 5),
        ("dragonfly:4,4,1", None, 5),
        ("without(a100:16;node=3)", None, 4),
        ("without(mi250:8;node=3)", None, 2),
    ],
)
def test_routes_of_fabrics_are_shortest(spec: str, k: int | None, longest: int) -> None:
    split = remove_switches(optimal_network(parse_topology(spec), k))
    assert len(narrow_cuts(split.network, 1)) == 0
    assert split.pieces.length.max() == longest
    assert_paths_are_real(split)


@pytest.mark.parametrize(
    "spec",
    [
        "without(fattree:8;link=edge:0.0-agg:0.0)",
        "without(dragonfly:4,2,2;link=router:0.0-router:1.3)",
        "without(dragonfly:4,2,2;link=router:0.0-router:0.1)",
    ],
)
def test_a_failed_link_costs_short_detours_and_few_arcs(spec: str) -> None:
    split = remove_switches(optimal_network(parse_topology(spec)))
    ranks = split.network.nodes
    assert split.pieces.length.max() <= 10
    assert len(split.network.src) > 0.95 * ranks * (ranks - 1)


@pytest.mark.parametrize("spec", ["fattree:8", "dragonfly:4,2,2"])
def test_a_fabric_without_bottleneck_joins_every_two_ranks(spec: str) -> None:
    split = remove_switches(optimal_network(parse_topology(spec)))
    ranks = split.network.nodes
    assert len(split.network.src) == ranks * (ranks - 1)
