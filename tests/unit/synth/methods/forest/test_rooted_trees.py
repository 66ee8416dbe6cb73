"""Trees of one root: as many as cuts allow, never more, each spanning the network within the capacity of its arcs."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.forest import packing as module
from chorale.synth.methods.forest.network import ForestNetwork, Trees
from chorale.synth.topology.spec import parse_topology
from tests.forest_networks import can_be_packed, network_of, random_arcs
from tests.properties import random_cases
from tests.reference.packed_trees import faults_of


def trees_of(network: ForestNetwork) -> Trees | None:
    """Return the trees in the arcs of `network`, None if there are no such trees."""
    try:
        packing = module._Packing(network, np.arange(network.nodes, dtype=np.int32))
    except CheckFailed:
        return None
    if not packing.add_all_of_one_root():
        return None
    trees, names = packing.parts[0], np.append(packing.arcs.name, np.int32(-1))
    return Trees(trees.root, trees.weight, names[trees.parent_arc])


@random_cases(150)
@given(st.randoms(use_true_random=False), st.integers(2, 7), st.integers(1, 5))
def test_there_are_trees_exactly_where_no_cut_forbids_them(random: Random, nodes: int, count: int) -> None:
    arcs, root = random_arcs(random, nodes), random.randrange(nodes)
    supply = [count * (node == root) for node in range(nodes)]
    network = network_of(nodes, arcs, supply)
    trees = trees_of(network)
    assert (trees is not None) == can_be_packed(nodes, arcs, supply)
    if trees is not None:
        assert faults_of(network, trees) == []
        assert len(trees) == count


def test_other_roots_and_much_work_are_left_to_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(3, [(a, b, 2) for a in range(3) for b in range(3) if a != b], [1, 1, 0])
    assert trees_of(network) is None
    network.supply[1] = 0
    assert trees_of(network) is not None
    monkeypatch.setattr(module, "MAX_ROOTED_WORK", 3)
    assert trees_of(network) is None


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_large_networks_have_trees_of_weight_1_at_the_bound(collective: str) -> None:
    made = synthesize("forest", parse_topology("torus:24x24"), parse_collective(collective, 5), None, SerialExecutor())
    assert (made.cost.time_per_byte, made.schedule.trees_per_root) == (
        1 / (4 * made.schedule.topology.links[0].bandwidth),
        4,
    )
